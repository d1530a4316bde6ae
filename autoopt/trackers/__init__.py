"""Trackers that follow a run: the run is the parent, each trial its child, the report an artifact.

Each is a listener of ``autoopt.events``; its library is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.events import Event

logger = logging.getLogger(__name__)

KINDS = ("mlflow", "tensorboard", "wandb")
"""Each is the name of its package, too."""


class Tracker(Protocol):
    """A listener that is notified of the report at the end."""

    def __call__(self, event: Event) -> None: ...

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Numbers of a training in one of its steps (``autoopt train``)."""

    def finish(self, report: Path | None = None) -> None:
        """Hands over the report, which is rendered after the run's last event, and closes."""


def tracker(kind: str) -> Tracker:
    """A tracker by name.

    Raises:
        UsageError: there is none of that name.
        EnvironmentLacks: its package is not installed.
    """
    if kind not in KINDS:
        raise UsageError(f"there is no tracker {kind!r}", hint=f"there are: {', '.join(KINDS)}")
    check_installed([kind])
    made: Tracker = importlib.import_module(f"autoopt.trackers.to_{kind}").make()
    return made


def check_installed(kinds: Iterable[str]) -> None:
    """Checks that the packages of trackers are there, without importing them.

    Raises:
        EnvironmentLacks: one is not.
    """
    for kind in kinds:
        if importlib.util.find_spec(kind) is None:
            extra = f"pip install 'torch-autoopt[{kind}]'"
            raise EnvironmentLacks(f"--log {kind}: {kind} is not installed", hint=extra)


class Following(list[Tracker]):
    """The trackers of a run. ``report``: the page, once it is written."""

    report: Path | None = None


@contextmanager
def following(kinds: Iterable[str]) -> Iterator[Following]:
    """Trackers for the length of a run; each is closed at its end, however that comes.

    Raises:
        EnvironmentLacks: a package is not installed.
    """
    trackers = Following(tracker(kind) for kind in kinds)
    try:
        yield trackers
    finally:
        for each in trackers:
            try:
                each.finish(trackers.report)
            except Exception:  # a tracker that fails must not cost the run
                logger.warning("a tracker could not be closed: %r", each, exc_info=True)
