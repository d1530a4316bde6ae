"""Tasks that only the process of a script can be asked for."""

from __future__ import annotations

from contextlib import suppress
from statistics import median
from typing import Any

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
        between, until = live.training.session.between, min(seconds, WATCHED_SECONDS)
        if not between.of("evaluate"):  # one is waited for no longer than the watching itself took
            live.training.follow(lambda done, elapsed: elapsed >= until or bool(between.of("evaluate")))
    # of one loop: a later one may have begun since
    found: JsonDict = {"period": first.period, "backwards": first.backwards, "run": run_parts(live.training, lap)}
    whole = sum(lap.stages.values())
    if lap.steps and whole > 0:
        found["step_seconds"] = median(lap.steps)
        found["shares"] = {stage: seconds / whole for stage, seconds in lap.stages.items() if seconds > 0}
    document: JsonDict = script.sites().model_copy(update=found).model_dump()
    return document
