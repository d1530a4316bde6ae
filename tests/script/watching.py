"""Watching as the tests of scripts need it; also imported in a script's process."""

from __future__ import annotations

from typing import Any

from autoopt.benchmark.live import drives
from autoopt.records import JsonDict
from autoopt.script import tasks


@drives
def sites(live: Any, steps: int, seconds: float) -> JsonDict:
    """The sites after so many steps, however slow they are; an evaluation is waited for so many seconds."""
    tasks.WATCHED_SECONDS = seconds
    return tasks.sites(live, seconds=90.0, steps=steps)
