"""Tasks that only the process of a script can be asked for."""

from __future__ import annotations

from contextlib import suppress
from statistics import median
from typing import Any

from autoopt.benchmark.clock import Lap
from autoopt.benchmark.live import drives
from autoopt.records import JsonDict
from autoopt.script.process import run_parts

WATCHED_SECONDS, FEWEST_WATCHED = 4.0, 10
"""A script is watched for so many steps; where they are slow, for that time and fewer steps, or for twice that time."""


@drives
def sites(live: Any, seconds: float = WATCHED_SECONDS, steps: int = 24) -> JsonDict:
    """The sites that the script has shown after so many steps, or about that time: :class:`~autoopt.records.Sites`."""
    script = live.training.script
    assert script.observer is not None, "only a watched script knows its sites"

    def enough(done: int, elapsed: float) -> bool:
        return done >= steps or elapsed >= (seconds if done >= FEWEST_WATCHED else 2 * seconds)

    lap = live.training.follow(enough).lap()
    first = script.sites()
    with suppress(Exception):  # what fails after the first steps is reported by the training that comes to it
        _wait_for_evaluation(live, seconds)
    turns = {"period": first.period, "backwards": first.backwards}  # of one loop: a later one may have begun since
    found = {**turns, **_first_steps(lap), "run": run_parts(live.training, lap)}
    document: JsonDict = script.sites().model_copy(update=found).model_dump()
    return document


def _wait_for_evaluation(live: Any, seconds: float) -> None:
    """Trains on until an evaluation is over, where none was and that takes no longer than the watching itself."""
    between, until = live.training.session.between, min(seconds, WATCHED_SECONDS)
    if not between.of("evaluate"):
        live.training.follow(lambda done, elapsed: elapsed >= until or bool(between.of("evaluate")))


def _first_steps(lap: Lap) -> JsonDict:
    """Where the time of the watched steps went; nothing where none came to its end."""
    whole = sum(lap.stages.values())
    if not lap.steps or whole <= 0:
        return {}
    shares = {stage: seconds / whole for stage, seconds in lap.stages.items() if seconds > 0}
    return {"step_seconds": median(lap.steps), "shares": shares}
