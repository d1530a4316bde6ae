"""Ctrl-C and its kin: the first asks the search to end after the trial under way, the second stops at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

_AT_ONCE = (signal.SIGTERM, signal.SIGHUP)
"""Whoever sends these does not wait for long: they stop the trial under way, too."""


@contextlib.contextmanager
def handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Answers SIGINT, SIGTERM and SIGHUP with a handler; signals that were ignored (``nohup``) stay so.

    In another thread than the main one, which alone can answer signals, it changes nothing.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *_AT_ONCE):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(TypeError, ValueError):
                signal.signal(number, handler)


class Interrupts:
    """Answers signals while a run is going on.

    The first SIGINT sets ``stopping`` and calls ``on_first``; the second raises ``KeyboardInterrupt`` in
    the main thread, as does the first of those that stop at once. The loop then writes a partial result from what it
    has: while ``shielded()``, further signals are only remembered.

    Args:
        on_first: called once, from the signal's handler: a word to the user.
        at_once: signals whose sender does not wait.
    """

    def __init__(
        self, on_first: Callable[[], object] = lambda: None, *, at_once: tuple[signal.Signals, ...] = _AT_ONCE
    ) -> None:
        self._on_first, self._at_once = on_first, at_once
        self._handled = contextlib.ExitStack()
        self._shielded = False
        self._stopping = False

    def stopping(self) -> bool:
        """Whether the search is to end."""
        return self._stopping

    def __enter__(self) -> Self:
        self._handled.enter_context(handled(self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._handled.close()

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """A stretch that is too short, and too precious, to be broken off: writing the last result."""
        before, self._shielded = self._shielded, True
        try:
            yield
        finally:
            self._shielded = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self._stopping
        self._stopping = True
        if self._shielded:
            return
        if number in self._at_once or again:
            name = signal.Signals(number).name
            raise KeyboardInterrupt(f"stopped by {name}")  # no Exception: guards around plugins let it through
        with contextlib.suppress(OSError):
            self._on_first()
