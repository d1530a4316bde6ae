"""Evidence that the gate decides on: trainings and facts next to the comparison of throughput, and its judgement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import fmean
from typing import Any

from autoopt.records import Environment, Estimate, Noise, Objective, Quality, Record, RunParts, Verdict
from autoopt.records.messages import TrainingRun
from autoopt.search.compare.comparison import LossPath, Side, SideFailure, most
from autoopt.setup import Setup
from autoopt.strategy import Risk

Pairs = Sequence[tuple[TrainingRun, TrainingRun]]

FEWEST_SEEDS = 2
"""One seed never gives a verdict on the metric."""

MARGIN = 0.05
"""Share of the device's memory that must stay free: longer batches, fragmentation and evaluation want it."""


class TrainedPair(Record):
    """Both trainings from one seed.

    ``interleaved``: alternately; False where they did not fit into memory together. ``whole``: a whole run of the
    untouched script and one of the patched script, nothing listening, in an order drawn at random. ``time_sliced``:
    these took turns of a second, and no other program took much of the machine.
    """

    baseline: TrainingRun
    best: TrainingRun
    interleaved: bool = True
    whole: bool = False
    time_sliced: bool = False

    @property
    def log_ratio(self) -> float:
        """Of the seconds of both."""
        return log(self.baseline.seconds / self.best.seconds)

    @property
    def curves(self) -> tuple[float | None, ...]:
        """What both reported: whole runs of a script that sets its own seed are the same again.

        Others train from the seed that names them, which comes first.
        """
        reported = [point.metric for run in (self.baseline, self.best) for point in run.curve.points]
        return tuple(reported if self.whole else [self.baseline.seed, *reported])

    @property
    def time_sliced_same_steps(self) -> bool:
        """Whether they took turns over as many steps: their ratio then scatters as that of one program with itself."""
        return self.time_sliced and self.baseline.steps == self.best.steps


def length_scatter(pairs: Sequence[TrainedPair], run: RunParts | None) -> float:
    """How far the log ratio of whole runs that end by their result may be from that of runs of another seed.

    Those end an evaluation sooner or later, and the start, which most changes leave as it is, is then another share of
    both. Zero of runs of a given length.
    """
    if run is None or not run.ends_by_result:
        return 0.0
    shares = (run.once_seconds * abs(1 / pair.best.seconds - 1 / pair.baseline.seconds) for pair in pairs)
    return fmean(share / max(pair.baseline.evaluations, 1) for share, pair in zip(shares, pairs, strict=True))


class Evidence(Record):
    """Trainings and facts for the quality gate, with the objective that they are held to and the noise that is known.
    Runs are paired by their ``seed``.

    ``risk``: the class of the candidate's riskiest change. ``incumbent_runs``: of what the candidate was compared with,
    where it takes other steps than the baseline (a kept change of class ``training``); empty: the baseline's runs stand
    for it. ``interleaved_pairs``: trainings of the incumbent and the candidate next to each other, whose own seconds
    distinguish them.

    ``deterministic``: the dataset gives the same sample twice (None: not known). ``drawn``: the model draws (dropout).
    ``epsilon``: rounding of the arithmetic that both sides train in (float32 by default). ``rounded``: losses of the
    incumbent whose weights begin a rounding apart; empty where nobody asked for them.

    ``planned_steps``: optimizer steps of the run that the user plans, as the incumbent takes them. ``run``: parts of a
    whole run, with evaluations and checkpoints as long as the incumbent's are. ``evaluation_ratio``: seconds of an
    evaluation of the candidate over one of the incumbent; None where they were not measured by themselves.
    ``checkpoint_ratio``: the same of checkpoints.

    ``failure``: how a training of the candidate ended badly. ``level``: what probes tell of the quality of an ``exact``
    or ``numeric`` change; None where none was made. ``accept_undecided``: the user takes what is not confirmed.
    ``alpha_accept``: the level that the run's error budget leaves for keeping a change of training.
    """

    objective: Objective
    noise: Noise = Noise()
    risk: Risk = Risk.NUMERIC
    baseline_runs: tuple[TrainingRun, ...] = ()
    incumbent_runs: tuple[TrainingRun, ...] = ()
    candidate_runs: tuple[TrainingRun, ...] = ()
    interleaved_pairs: tuple[TrainedPair, ...] = ()
    deterministic: bool | None = None
    drawn: bool = False
    epsilon: float = 2.0**-23
    planned_steps: int | None = None
    run: RunParts | None = None
    evaluation_ratio: float | None = None
    checkpoint_ratio: float | None = None
    failure: SideFailure | None = None
    memory_limit_bytes: int | None = None
    level: Quality | None = None
    accept_undecided: bool = False
    rounded: LossPath = LossPath()
    alpha_accept: float = 0.05

    def paired(self) -> list[tuple[TrainingRun, TrainingRun]]:
        """Baseline and candidate of the same seed."""
        by_seed = {run.seed: run for run in self.baseline_runs}
        after = sorted(self.candidate_runs, key=lambda run: run.seed)
        return [(by_seed[run.seed], run) for run in after if run.seed in by_seed]

    def paired_with_incumbent(self) -> list[tuple[TrainingRun, TrainingRun]]:
        """What the candidate was compared with, and the candidate, of the same seed."""
        known = {"baseline_runs": self.incumbent_runs or self.baseline_runs}
        return self.model_copy(update=known).paired()


class RequiredRuns(Record):
    """Trainings that the gate still wants of each plan; false where none is.

    ``seeds``: from so many in all. ``planned``: those that it is thought to take in the end, without the time for which
    the next tell nothing.
    """

    seeds: int = 0
    planned: int = 0

    def __bool__(self) -> bool:
        return bool(self.seeds)


class Judgement(Record):
    """The verdict, the sentence that the report shows, and what it rests on.

    ``planned_steps``: of the planned run that ``time_to_target`` is of; None where it is of a run to the target.
    ``between_ratio``: where evaluations, or checkpoints, were timed, the candidate's seconds over the incumbent's.
    """

    verdict: Verdict
    reason: str
    quality: Quality = Quality(method="not_tested")
    time_to_target: Estimate | None = None
    planned_steps: int | None = None
    between_ratio: float | None = None


@dataclass
class EvaluationRatios:
    """Seconds of an evaluation, or a checkpoint, under a setup over those under another, by their options."""

    _known: dict[str, float] = field(default_factory=dict)

    def measured(self, stage: str, setup: Setup, over: Setup, ratio: float) -> None:
        """Notes the seconds of a stage (``evaluate``, ``checkpoint``) under one setup over another's."""
        self._known[_key(stage, setup)] = ratio * self._known.get(_key(stage, over), 1.0)

    def ratio(self, stage: str, setup: Setup, over: Setup) -> float | None:
        """Of an evaluation under one setup over one under another; None where it was not measured."""
        one, other, none = _key(stage, setup), _key(stage, over), _key(stage, Setup())
        if one == other:
            return 1.0
        known = {none: 1.0, **self._known}
        return known[one] / known[other] if one in known and other in known else None


def _key(stage: str, setup: Setup) -> str:
    options: Mapping[str, Any] = {"beside": setup.flags.get("save_in_background")}
    if stage == "evaluate":  # what changes a script's loop of evaluations is among what changes its model
        options = {**setup.evaluation, "model": [repr(each) for each in setup.model]}
    return f"{stage} {json.dumps(dict(options), sort_keys=True, default=str)}"


BETWEEN = {"evaluate": "evaluation_seconds", "checkpoint": "checkpoint_seconds"}
"""Stages between steps, each with the part of a run that holds its seconds."""


def with_between(run: RunParts | None, ratios: Mapping[str, float]) -> RunParts | None:
    """Parts of a whole run whose stages between steps take so many times as long."""
    if run is None:
        return None
    known = ((name, getattr(run, name), ratios.get(stage, 1.0)) for stage, name in BETWEEN.items())
    return run.model_copy(update={name: seconds * ratio for name, seconds, ratio in known if seconds is not None})


def near_limit(peak: int | None, limit: int | None, retries: int = 0, allocated: int | None = None) -> str:
    """Why a plan leaves too little memory free, as a sentence; empty where it does not, or where it is not known; all
    in bytes.

    What an allocator keeps beyond what tensors hold (``allocated``) it gives back before it fails: that counts once it
    had to free its cache and try again (``retries``).
    """
    kept = "" if allocated is None or peak is None else f" (tensors held {allocated / 2**20:,.0f} MiB at once)"
    if retries:
        return f"the device's memory ran out {retries} times, and the allocator freed its cache to go on{kept}"
    used = peak if allocated is None else allocated
    if used is None or not limit or used <= (1 - MARGIN) * limit:
        return ""
    return f"{used / 2**20:,.0f} MiB are {used / limit:.0%} of the memory there is; {MARGIN:.0%} must stay free"


def memory_limit(environment: Environment) -> int | None:
    """Bytes that a training may take; None on a CPU that nobody limited, where the peak is that of the process."""
    free = environment.device == "cpu" and environment.device_memory_bytes == environment.ram_bytes
    return None if free else environment.device_memory_bytes


def lost_margin(before: Side, after: Side, limit: int | None, trained: tuple[TrainingRun, ...] = ()) -> str:
    """Why a candidate, or a training of it, leaves too little memory where the incumbent does not; empty where not."""
    retries = after.allocation_retries if not before.allocation_retries else 0
    peak = most([after.peak_memory_bytes, *(run.peak_memory_bytes for run in trained)])
    held = most([after.allocated_memory_bytes, *(run.allocated_memory_bytes for run in trained)])
    one, other = (peak, before.peak_memory_bytes) if held is None else (held, before.allocated_memory_bytes)
    if one is not None and other is not None and one <= other:
        peak = held = None  # no worse than it was
    return near_limit(peak, limit, retries, held)
