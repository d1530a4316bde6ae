"""Durations as text: ``"2h"`` to seconds, and back."""

from __future__ import annotations

import math
import re

from autoopt.errors import UsageError

UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
EXAMPLE = "such as 2h, 90m, 1h30m or 45s"

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in UNIT_SECONDS), re.ASCII)
_BARE = re.compile(rf"[+]?{_NUMBER}", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds of a duration: numbers with units, the larger unit first (``"1h30m"``, ``"1.5h"``, ``"45s"``).

    Raises:
        UsageError: no text, no unit, negative, zero, or anything else that is not a duration.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"a duration is text, got {type(value).__name__}", hint=EXAMPLE)
    text = str(value).strip().lower()
    compact = re.sub(r"\s+", "", text)
    if _BARE.fullmatch(compact):
        number = compact[:20].lstrip("+")
        raise UsageError(f"a duration needs a unit: {number}h, {number}m or {number}s?", hint=EXAMPLE)
    if compact.startswith("-") and len(compact) > 1:
        raise UsageError("a duration cannot be negative", hint=EXAMPLE)
    match = _DURATION.fullmatch(compact) if compact else None
    if match is None:
        raise UsageError("not a duration", hint=EXAMPLE)
    seconds = sum(float(number) * UNIT_SECONDS[unit] for unit, number in match.groupdict().items() if number)
    if not 0 < seconds < math.inf:
        raise UsageError("a duration must be more than nothing and finite", hint=EXAMPLE)
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest text that :func:`parse_duration` reads back to the second: ``5400`` is ``"1h30m"``.

    Below one second the fraction is kept, since rounding would leave nothing.
    """
    if seconds < 1:
        return f"{seconds:.3g}s" if seconds >= 0.001 else "0s"
    left = round(seconds)
    parts = []
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
