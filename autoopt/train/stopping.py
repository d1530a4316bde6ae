"""Ctrl-C and its kin while training: the first ends it after the step under way, the second at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FrameType

from autoopt.storage.interrupts import handled


@contextlib.contextmanager
def stopping(on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yields what tells whether a signal has come. Signals that were ignored (``nohup``) stay so.

    A step is never broken off by the first: half a step could not be gone on from. Loader workers that are
    forked inherit this, and outlive the Ctrl-C that reaches them, too. The second raises ``KeyboardInterrupt``.

    Args:
        on_first: called from the signal's handler: a word to the user.
    """
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt
        on_first()

    with handled(handle):
        yield lambda: bool(came)
