"""Tasks that only the process of a script can be asked for: its sites, and evaluations of weights that are not its own.

A script evaluates within its loop, so it trains on, and the weights are put back after every step until it has
evaluated them: what it reports, the loss of its next steps and the batches of its evaluation are those of the held
weights, and of the script's own code and data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pickle import UnpicklingError
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.clock import Lap
from autoopt.benchmark.distributed.group import Enough
from autoopt.benchmark.fingerprint import SampleDigest, digest
from autoopt.benchmark.live import Stretch, drives
from autoopt.benchmark.probe import kept_state
from autoopt.benchmark.saving import wait_until_saved
from autoopt.records import JsonDict
from autoopt.records.evaluating import HeldEvaluations
from autoopt.script.loaders import Watcher
from autoopt.script.metric import LEAST_EVALUATIONS, candidates, chosen, name_of, values
from autoopt.script.process import run_parts
from autoopt.script.session import Goal, seconds_by_step

WATCHED_SECONDS, FEWEST_WATCHED = 4.0, 10
"""A script is watched for so many steps; where they are slow, for that time and fewer steps, or for twice that time."""
LOSSES = 32
"""Steps whose loss is reported; more would say little more."""

SAVED = "a file that reads as what was saved"
"""The metric of checkpoints."""

_HASHED = 4096
"""Samples of the first evaluation that are hashed: data that differ do so before."""


@drives
def sites(live: Any, seconds: float = WATCHED_SECONDS, steps: int = 24, wait: float = 0.0) -> JsonDict:
    """The sites that the script has shown after so many steps, or about that time: :class:`~autoopt.records.Sites`.

    Its first evaluation is waited for, no longer than the watching itself may take; ``wait``: seconds in which the end
    of an epoch is, where that takes longer, and of a second one where the first does not name the metric.
    """
    script = live.training.script
    assert script.observer is not None, "only a watched script knows its sites"

    def enough(done: int, elapsed: float) -> bool:
        return done >= steps or elapsed >= (seconds if done >= FEWEST_WATCHED else 2 * seconds)

    watched = live.training.follow(enough)
    lap, lines, first = watched.lap(), watched.lines, script.sites()
    with suppress(Exception):  # what fails after the first steps is reported by the training that comes to it
        for number in (1, 2):
            if number > 1 and (candidates(lines) or script.command.metric is not None):
                break
            stretch = _to_evaluation(live.training, number, lap, min(seconds, WATCHED_SECONDS), wait)
            if stretch is not None:
                wait, lines = wait - stretch.lap().seconds, [*lines, *stretch.lines]
    # of one loop: a later one may have begun since
    found: JsonDict = {"period": first.period, "run": run_parts(live.training, lap)}
    found["metric_patterns"] = candidates(lines)
    whole = sum(lap.stages.values())
    if lap.steps and whole > 0:
        found["step_seconds"] = median(lap.steps)
        found["shares"] = {stage: seconds / whole for stage, seconds in lap.stages.items() if seconds > 0}
    document: JsonDict = script.sites().model_copy(update=found).model_dump()
    return document


def _to_evaluation(training: Any, number: int, lap: Lap, usual: float, wait: float) -> Stretch | None:
    """Trains on to an evaluation: to the first one for the ``usual`` seconds, and to the end of as many epochs as it is
    where that is within ``wait``. None where it was seen already, or is too far."""
    session, until = training.session, usual if number == 1 else 0.0
    left = number * (training.lengths.per_epoch or 0) - session.steps
    near = until < left * lap.seconds / len(lap.steps) <= wait

    def over(done: int, elapsed: float) -> bool:
        late = done > left or elapsed >= wait if near else elapsed >= until
        return late or len(session.interruptions("evaluate")) >= number

    if len(session.interruptions("evaluate")) >= number or not (near or until):
        return None
    found: Stretch = training.follow(over)
    return found


@drives
def evaluate(live: Any, weights: str, seconds: float, pattern: str | None = None) -> JsonDict:
    """The metric of weights in a file, by the script's own evaluation.

    Args:
        live: the trial, which stands at the end of its first step.
        weights: a file of ``autoopt.comparing.tasks:keep``, read as tensors alone.
        seconds: after which no evaluation is waited for.
        pattern: of the metric, where an evaluation before has shown it.

    Returns:
        ``metric``, ``value``: its name and what the first evaluation reported, None where ``why`` says why not.
        ``pattern``: for the next call. ``losses``: of the next training steps at these weights, None where not finite.
        ``digest``: of what the first evaluation read; None where there was none. Nothing of weights that are not those
        of a model like this one.
    """
    training, session = live.training, live.training.session
    state = session.in_main(lambda: kept_state(training, weights))
    if state is None:
        return {}
    held, began = HeldWeights(training, state), perf_counter()
    session.in_main(held.put)

    def enough(done: int, elapsed: float) -> bool:
        goal: Goal = session.goal
        late = perf_counter() - began > seconds
        return late or held.metric_found(goal, pattern) is not None or held.evaluations >= LEAST_EVALUATIONS

    goal = held.followed(enough, held)
    found = held.metric_found(goal, pattern)
    return {
        "metric": name_of(found[0]) if found else None,
        "pattern": found[0] if found else None,
        "value": found[1] if found and not held.others and held.seen else None,
        "why": held.why(bool(found), perf_counter() - began, session.over),
        "losses": list(goal.captured.losses()[:LOSSES]),
        "digest": held.hashed.hexdigest() if held.evaluations else None,
    }


class HeldWeights(Watcher):
    """Keeps weights in place, and reads what the script's evaluation is called with.

    ``others``: an evaluation called the model with other weights, such as the best so far; ``seen``: it was seen to
    call the model that trains, not a copy such as an average of its weights.
    """

    def __init__(self, training: Any, state: dict[str, Any]) -> None:
        self.training, self.session, self.metric = training, training.session, training.script.command.metric
        self.model, self.state = training.model, state
        self.hashed = SampleDigest(_HASHED)
        self.others = False
        self._before, self._looked = self.session.evaluations, 0

    @property
    def evaluations(self) -> int:
        """That have begun since."""
        return int(self.session.evaluations - self._before)

    @property
    def seen(self) -> bool:
        return self._looked > 0

    @property
    def samples(self) -> int | None:
        """Those that the first evaluation read; None where they were not counted, or it has not ended."""
        ended = self.session.interruptions("evaluate")[self._before :]
        return ended[0].samples or None if ended else None

    def put(self) -> None:
        self.model.load_state_dict(self.state)

    def followed(self, enough: Enough, watcher: Watcher) -> Goal:
        """The training as far as ``enough``, watched by somebody; the weights are put back after each step."""
        watchers = self.training.script.hooks.watchers
        watchers.append(watcher)
        goal: Goal = self.training.follow(enough, lambda *_: self.put())
        watchers.remove(watcher)
        return goal

    def batch_given(self, loader: Any, batch: Any, training: bool, drawn: Sequence[Any] | None) -> None:
        if not training and self.evaluations <= 1:
            self.hashed.update(batch, "given")

    def forward(self, model: nn.Module, args: Any, kwargs: Any, training: bool) -> None:
        if training:
            return
        if self.evaluations <= 1:
            self.hashed.update((args, kwargs), "called")
        if self._looked < max(self.evaluations, 1):
            self._looked = max(self.evaluations, 1)
            own = self.model.state_dict()
            self.others = self.others or not all(
                torch.equal(own[name], kept.to(own[name].device)) for name, kept in self.state.items()
            )

    def metric_at(self, goal: Goal) -> float | None:
        """The metric that the first evaluation reported, where it was of these weights."""
        found = self.metric_found(goal, None) if self.metric is not None else None
        return found[1] if found is not None and self.seen and not self.others else None

    def metric_found(self, goal: Goal, pattern: str | None) -> tuple[str, float] | None:
        """The metric's pattern and the first value of it."""
        if self.metric is not None:
            return (self.metric, goal.metrics[0][2]) if goal.metrics else None
        if pattern is None:
            pattern = chosen(candidates(goal.lines, least=1))
        printed = values(pattern, goal.lines) if pattern is not None else []
        return (pattern, printed[0][2]) if pattern is not None and printed else None

    def why(self, found: bool, seconds: float, over: bool) -> str:
        """Why no value is reported; empty where one is."""
        if found:
            if not self.seen:
                return "the evaluation was not seen to call the model that trains"
            return "the evaluation puts other weights into the model" if self.others else ""
        if not self.evaluations:
            return f"the script {'ended' if over else f'trained {seconds:.0f} s'} without an evaluation"
        if self.metric is not None:
            return f"--metric {self.metric!r} is in nothing that it printed or logged"
        if over or self.evaluations >= LEAST_EVALUATIONS:
            return "no printed number is known to be the metric: name it with --metric"
        return f"one evaluation in {seconds:.0f} s does not show which number it is: name it with --metric"


class HeldSaves(Watcher):
    """Whether a file reads as what was saved in it, of the latest checkpoint."""

    def __init__(self) -> None:
        self._path, self._saved = "", ""

    def saved(self, *what: Any) -> None:
        if len(what) > 1 and isinstance(what[1], (str, os.PathLike)):
            self._path, self._saved = os.path.abspath(what[1]), digest(what[0])

    def read(self) -> float | None:
        """1 where it does, 0 where it does not; None where no file of tensors and plain values was saved."""
        wait_until_saved()
        try:
            found = torch.load(self._path, map_location="cpu", weights_only=True) if self._saved else None
        except (OSError, RuntimeError, UnpicklingError):
            return None
        return None if found is None else float(digest(found) == self._saved)


def held_evaluations(training: Any, count: int, seconds: float, stage: str) -> HeldEvaluations:
    """Trains on until it has evaluated, or saved, so often; the weights stay what they are.

    Args:
        count: evaluations or checkpoints that are waited for.
        seconds: after which no other one is.
        stage: ``evaluate`` or ``checkpoint``.
    """
    session, model = training.session, training.model
    state = session.in_main(lambda: {name: value.clone() for name, value in model.state_dict().items()})
    held, before, began = HeldWeights(training, state), len(session.interruptions(stage)), perf_counter()
    saves, other = HeldSaves(), stage != "evaluate"

    def enough(done: int, elapsed: float) -> bool:
        made = session.interruptions(stage)[before:]
        return len(seconds_by_step(made)) >= count or perf_counter() - began > seconds

    goal = held.followed(enough, saves if other else held)
    made = session.interruptions(stage)[before:]
    times = tuple(seconds_by_step(made).values())
    why = "" if made else f"no {'checkpoint' if other else 'evaluation'} came within {perf_counter() - began:.0f} s"
    if other:
        read = saves.read()
        return HeldEvaluations(seconds=times, metric=SAVED if read is not None else None, value=read, why=why)
    reported, digits = held.metric_found(goal, None), None
    if reported:  # decimals of the shortest text that gives it
        digits = len(repr(reported[1]).partition("e")[0].partition(".")[2].rstrip("0"))
    return HeldEvaluations(
        seconds=times,
        samples=sum(each.samples for each in made if each.step == made[0].step) or None,
        metric=reported[0] if reported else None,
        value=reported[1] if reported and not held.others else None,
        digits=digits,
        why=why,
    )
