"""Seconds of a script's imports, by the user's lines that ask for them; the standard library alone is needed."""

from __future__ import annotations

import builtins
import sys
import threading
from collections import defaultdict
from time import perf_counter
from typing import Any

from autoopt.records import Site
from autoopt.script.frames import is_users, place_of

NEEDED = frozenset({"torch", "numpy"})
"""Modules that a training needs in any case."""
MOST = 5
LEAST = 0.05
"""Seconds below which an import is not reported."""


class ImportClock:
    """Times imports in the main thread, until :meth:`stop`.

    Attributes:
        seconds: of all of them.
        lines: seconds by the user's file, line, end line and module: of what a line imports itself, without what lines
            of the user's own modules import one after the other.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.lines: defaultdict[tuple[str, int, int, str], float] = defaultdict(float)
        self._plain: Any = None
        self._timed: Any = None
        self._depth, self._inner = 0, 0.0

    def start(self) -> None:
        plain = self._plain = builtins.__import__
        main = threading.main_thread()

        def timed(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe().f_back
            if threading.current_thread() is not main or args[0] in sys.modules or frame is None:
                return plain(*args, **kwargs)
            users = is_users(frame.f_code.co_filename)
            if self._depth and not users:
                return plain(*args, **kwargs)
            before, self._inner = self._inner, 0.0
            self._depth += 1
            began = perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                passed = perf_counter() - began
                self._depth -= 1
                if users:
                    place = place_of(frame)
                    self.lines[place.file, place.line, place.end_line, args[0]] += passed - self._inner
                self._inner = before + passed
                self.seconds += 0.0 if self._depth else passed

        self._timed = builtins.__import__ = timed

    def stop(self) -> float:
        """Puts the import back as it was; seconds so far."""
        if self._timed is not None and builtins.__import__ is self._timed:
            builtins.__import__ = self._plain
        return self.seconds


def import_sites(*clocks: ImportClock) -> tuple[Site, ...]:
    """The lines whose imports take longest, the longest first."""
    lines = [each for clock in clocks for each in clock.lines.items()]
    told = [each for each in lines if each[1] >= LEAST and each[0][3].split(".")[0] not in NEEDED]
    told.sort(key=lambda each: -each[1])
    return tuple(
        Site(kind="import", file=file, line=line, end_line=end, call=module, options={"seconds": round(seconds, 3)})
        for (file, line, end, module), seconds in told[:MOST]
    )
