"""Evidence that the judge decides on, beside the comparison of throughput."""

from __future__ import annotations

from autoopt.records import Estimate, Quality, Record, RunParts, Verdict
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.interleaved import TrainedPair
from autoopt.search.compare.comparison import LossPath, SideFailure


class Evidence(Record):
    """Trainings and facts for the quality gate. Runs are paired by their ``seed``.

    ``incumbent_runs``: of what the candidate was compared with, where it takes other steps than the
    baseline (a kept change of class ``training``); empty: the baseline's runs stand for it.
    ``in_turns``: trainings of the incumbent and the candidate beside each other, whose own seconds tell them apart.
    ``deterministic``: the dataset gives the same sample twice (None: not known).
    ``epsilon``: rounding of the arithmetic that both sides train in (float32 by default).
    ``planned_steps``: optimizer steps of the run that the user plans, as the incumbent takes them.
    ``run``: parts of a whole run of the baseline. ``evaluation_of_incumbent``: seconds of an evaluation of
    the incumbent over one of the baseline, where evaluations were measured by themselves; ``evaluation_ratio``: of the
    candidate over the incumbent, None where they were not.
    ``failure``: how a training of the candidate ended badly.
    ``memory_limit_bytes``: of the device; None where it is not known.
    ``level``: what probes tell of the quality of an ``exact`` or ``numeric`` change; None where none was made.
    ``accept_undecided``: the user takes what is not proven.
    ``rounded``: losses of the incumbent whose weights begin a rounding apart; empty where nobody asked for them.
    ``alpha_accept``: the level that the run's error budget leaves for keeping a change of training.
    """

    baseline_runs: tuple[TrainingRun, ...] = ()
    incumbent_runs: tuple[TrainingRun, ...] = ()
    candidate_runs: tuple[TrainingRun, ...] = ()
    in_turns: tuple[TrainedPair, ...] = ()
    deterministic: bool | None = None
    epsilon: float = 2.0**-23
    planned_steps: int | None = None
    run: RunParts | None = None
    evaluation_of_incumbent: float = 1.0
    evaluation_ratio: float | None = None
    failure: SideFailure | None = None
    memory_limit_bytes: int | None = None
    level: Quality | None = None
    accept_undecided: bool = False
    rounded: LossPath = LossPath()
    alpha_accept: float = 0.05

    def paired(self) -> list[tuple[TrainingRun, TrainingRun]]:
        """Baseline and candidate of the same seed."""
        return _pairs(self.baseline_runs, self.candidate_runs)

    def paired_with_incumbent(self) -> list[tuple[TrainingRun, TrainingRun]]:
        return _pairs(self.incumbent_runs or self.baseline_runs, self.candidate_runs)


def _pairs(before: tuple[TrainingRun, ...], after: tuple[TrainingRun, ...]) -> list[tuple[TrainingRun, TrainingRun]]:
    by_seed = {run.seed: run for run in before}
    return [(by_seed[run.seed], run) for run in sorted(after, key=lambda run: run.seed) if run.seed in by_seed]


class RequiredRuns(Record):
    """Trainings that the judge still wants: of each plan, from the first ``seeds`` seeds of the run.

    They train until the target is reached or the run's limit. All ``seeds`` are totals; 0: nothing more is wanted.
    ``needed_seeds``: those that it is thought to take in the end, without the time for which the next tell nothing.
    """

    baseline_seeds: int = 0
    candidate_seeds: int = 0
    needed_seeds: int = 0
    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.candidate_seeds or self.baseline_seeds)


class Judgement(Record):
    """The verdict, the sentence that the report shows, and what it rests on.

    ``planned_steps``: of the planned run that ``time_to_target`` is of; None where it is of a run to the target.
    """

    verdict: Verdict
    reason: str
    quality: Quality
    time_to_target: Estimate | None = None
    planned_steps: int | None = None
