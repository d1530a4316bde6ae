"""The view of a running search: live on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO, Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live

from autoopt.events import Event
from autoopt_reports.frame import draw
from autoopt_reports.plain import PlainView
from autoopt_reports.state import State
from autoopt_reports.terminal import console_for


class View(Protocol):
    """A listener that is entered before the run and left after it."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def __call__(self, event: Event) -> None: ...


class QuietView:
    """Shows nothing."""

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __call__(self, event: Event) -> None:
        return


class LiveView:
    """Redraws one frame in place, twice a second; the run's clock goes on between events.

    Args:
        console: a terminal.
        clock: seconds, monotonic.
        budget: seconds, where it is known before the run starts.
    """

    def __init__(self, console: Console, clock: Callable[[], float], budget: float | None = None) -> None:
        self._console, self._clock, self._budget = console, clock, budget
        self._state = State()
        self._anchor = (clock(), 0.0)
        # What others write to standard error (warnings, logs) goes above the frame instead of through it.
        redirect = console.file is sys.stderr
        self._live = Live(
            console=console,
            refresh_per_second=2,
            transient=True,
            get_renderable=self.frame,
            redirect_stdout=False,
            redirect_stderr=redirect,
            vertical_overflow="crop",
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A run that came to its end leaves room for the summary; one that did not keeps its last frame."""
        self._live.transient = self._state.finished
        self._live.stop()

    def __call__(self, event: Event) -> None:
        self._state.update(event)
        self._anchor = (self._clock(), self._state.at)

    def frame(self) -> RenderableType:
        """The frame of this moment."""
        state = self._state
        running = state.run is not None and not state.finished
        elapsed = self._anchor[1] + (self._clock() - self._anchor[0] if running else 0.0)
        budget = self._budget if self._budget is not None else state.run.budget_seconds if state.run else 0.0
        size = self._console.size
        return draw(state, elapsed, budget, size.width, size.height)


def make_view(
    stream: IO[str],
    *,
    quiet: bool = False,
    clock: Callable[[], float] = time.monotonic,
    budget: float | None = None,
) -> View:
    """The view that fits the stream.

    A terminal that can move its cursor gets the live view; anything else, ``TERM=dumb`` included,
    gets plain lines. Colours follow ``NO_COLOR`` and ``FORCE_COLOR``; they never turn a log file
    into a terminal.
    """
    if quiet:
        return QuietView()
    console = console_for(stream)
    if stream.isatty() and not console.is_dumb_terminal:
        return LiveView(console, clock, budget)
    return PlainView(stream, clock, budget, beat=clock is time.monotonic)
