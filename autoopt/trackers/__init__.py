"""Trackers that follow a run: the run is the parent, each trial its child, the report an artifact.

Each is a listener of ``autoopt.events``; its library is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoopt.errors import require
from autoopt.events import BaselineMeasured, Event, Kept, RunEnded, RunStarted, TrialEnded
from autoopt.records import Trial
from autoopt.trackers.values import FILES, Memory, of_configuration, of_result, of_trial

logger = logging.getLogger(__name__)


class Tracker(ABC):
    """A listener that is notified of the report at the end; a library's own class keeps what it is given.

    A run that is resumed in the tracker gets nothing of its replayed events: it has them.
    """

    def __init__(self) -> None:
        self._kept = 0
        self._reopened = False
        self._run: Any = None
        self._memory: Memory | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            directory = Path(event.run_directory)
            self._memory = Memory(directory, type(self).__module__.rpartition("to_")[2])
            self._reopened = self._begin(directory, event)
            return
        self._kept += isinstance(event, Kept)
        if not (event.replayed and self._reopened):
            self._follow(event)

    def _follow(self, event: Event) -> None:
        if isinstance(event, BaselineMeasured):
            self.scalars(0, of_configuration("baseline", event.baseline))
        elif isinstance(event, TrialEnded):
            self._child(event.trial, *of_trial(event.trial))
        elif isinstance(event, Kept):
            self.scalars(self._kept, of_configuration("best", event.best))
        elif isinstance(event, RunEnded):
            self.scalars(self._kept + 1, of_result(event.result))
            for name in FILES:
                self._file(Path(event.run_directory) / name)

    @abstractmethod
    def _begin(self, directory: Path, event: RunStarted) -> bool:
        """Opens the run; whether the tracker had it already."""

    @abstractmethod
    def _child(self, trial: Trial, words: dict[str, str], numbers: dict[str, float]) -> None:
        """Keeps a trial as a child of the run."""

    @abstractmethod
    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Numbers of a training in one of its steps (``autoopt train``), or of a run."""

    @abstractmethod
    def _file(self, path: Path) -> None:
        """Keeps a file of the run directory, where the tracker has a place for it."""

    @abstractmethod
    def _close(self) -> None:
        """Closes the run that is open."""

    def finish(self, report: Path | None = None) -> None:
        """Hands over the report, which is rendered after the run's last event, and closes."""
        if self._run is None:
            return
        if report is not None:
            self._file(report)
        self._close()
        self._run = None


def tracker(kind: str) -> Tracker:
    """A tracker by its name (``autoopt.options.TRACKERS``), which is that of its package, too.

    Raises:
        EnvironmentLacks: its package is not installed.
    """
    check_installed([kind])
    made: Tracker = importlib.import_module(f"autoopt.trackers.to_{kind}").Follower()
    return made


def check_installed(kinds: Iterable[str]) -> None:
    """Checks that the packages of trackers are there, without importing them.

    Raises:
        EnvironmentLacks: one is not.
    """
    for kind in kinds:
        require(kind, what=f"--log {kind}: ")


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
