"""The run's own clock: seconds that the run has been going on, without the time between kill and resume."""

from __future__ import annotations

import time
from collections.abc import Callable


class RunClock:
    """Goes forward only, whatever becomes of the wall clock.

    While a resumed run reads back what its journal holds, the clock stands at the recorded time, so that
    what the loop decides by the clock it decides as before.

    Args:
        monotonic: seconds; injected in tests.
        held: start standing still.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic, held: bool = False) -> None:
        self._monotonic = monotonic
        self._value = 0.0
        self._since: float | None = None if held else monotonic()

    def elapsed(self) -> float:
        """Seconds of the run so far."""
        if self._since is None:
            return self._value
        return self._value + max(0.0, self._monotonic() - self._since)

    def set_forward(self, at: float) -> None:
        """Sets a standing clock to a recorded time; an earlier one changes nothing."""
        if self._since is None:
            self._value = max(self._value, at)

    def release(self) -> None:
        """Lets the clock go, from where it stands."""
        if self._since is None:
            self._since = self._monotonic()
