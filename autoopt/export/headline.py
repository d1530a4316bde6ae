"""The headline of a result once more: the exported script and the baseline trained to the target in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log
from typing import Any

from autoopt.benchmark.target import parts
from autoopt.errors import TrialFailed
from autoopt.records import Estimate, Objective, Record, Result
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.trainings import PATIENCE, Process, Turns, ratio_of_pairs
from autoopt.search.trial_runner import CONFIRMED, TrialRunner

AGAIN_SEEDS = 2000
"""Above the seeds that search and verification of a run have seen."""

MOST_PAIRS = 4
START_SECONDS = 20.0
"""To start both and to build them, about."""

Wrap = Callable[[Any], Process]


class Headline(Record):
    """Trainings of baseline and script, paired by seed. ``detail``: their seconds, or why there are none."""

    measured: Estimate | None = None
    detail: str = ""
    failed: bool = False


def pair_seconds(result: Result) -> float | None:
    """Seconds of one pair of trainings, about; None where the run knows no time to the target."""
    times = (result.baseline.time_to_target_seconds, result.best.time_to_target_seconds)
    if result.objective.target is None or any(time is None for time in times):
        return None
    return START_SECONDS + sum(time.value for time in times if time is not None)


def train_again(
    runner: TrialRunner, script: Wrap, result: Result, *, until: float, clock: Callable[[], float]
) -> Headline:
    """Trains pairs from fresh seeds, as many as fit the time.

    Args:
        runner: starts trials of the workload.
        script: makes the trial's process train with the exported script.
        until: on the clock; a pair that does not fit is not begun.
    """
    each = pair_seconds(result)
    if each is None:
        return Headline(detail="the run has no time to a target, so only the throughput is compared")
    pairs: list[tuple[TrainingRun, TrainingRun]] = []
    while len(pairs) < MOST_PAIRS and clock() + each <= until:
        try:
            pairs.append(_pair(runner, script, result, result.reproduce.seed + AGAIN_SEEDS + len(pairs)))
        except TrialFailed as failure:
            return Headline(detail=f"the training failed: {failure.reason}", failed=True)
    if not pairs:
        return Headline(
            detail=f"the time to the target was not measured again: a pair of trainings takes about {each:.0f} s, and "
            f"the verification {each * 2:.0f} s; give more with --budget"
        )
    return summed_up(pairs, result)


def summed_up(pairs: list[tuple[TrainingRun, TrainingRun]], result: Result) -> Headline:
    """The ratio of these trainings; a failure where the script misses a target that the baseline reaches."""
    timed = [(_seconds(old, result.objective), _seconds(new, result.objective)) for old, new in pairs]
    missed = [run for (_, run), (old, new) in zip(pairs, timed, strict=True) if old is not None and new is None]
    if missed:
        target = f"{result.objective.metric} {result.objective.target:g}"
        where = f"in {missed[0].steps} steps from {len(missed)} of {len(pairs)} seeds"
        return Headline(detail=f"the script does not reach {target} {where}, where the baseline does", failed=True)
    both = [(old, new) for old, new in timed if old is not None and new is not None]
    if not both:
        return Headline(detail="the baseline did not reach the target again, so there is no time to compare")
    ratio = ratio_of_pairs([log(old / new) for old, new in both], result.noise.process_sd)
    seen = ", ".join(f"{old:.1f} s to {new:.1f} s" for old, new in both)
    return Headline(measured=ratio, detail=f"trained to the target, baseline to script by seed: {seen}")


def _seconds(run: TrainingRun, objective: Objective) -> float | None:
    found = parts(run, objective.target, objective.mode)
    return found.seconds if found is not None else None


def _pair(runner: TrialRunner, script: Wrap, result: Result, seed: int) -> tuple[TrainingRun, TrainingRun]:
    times = (result.baseline.time_to_target_seconds, result.best.time_to_target_seconds)
    assert times[0] is not None
    assert times[1] is not None
    limit = PATIENCE * max(time.value for time in times if time is not None) + START_SECONDS
    arguments = {"max_seconds": limit, "target": result.objective.target, "confirm": CONFIRMED}
    with (
        _frozen(runner, result.baseline.plan, "verify-baseline", seed) as one,
        _frozen(runner, result.best.plan, "verify-script", seed) as other,
    ):
        turns = Turns((one, script(other)), arguments, times[0].value, times[0].value / times[1].value)
        return turns.run(seed % 2)


@contextmanager
def _frozen(runner: TrialRunner, plan: Any, label: str, seed: int) -> Iterator[Any]:
    with runner.trial(plan, label, seed) as process:
        if getattr(process, "can_freeze", True):
            process.freeze()
        yield process
