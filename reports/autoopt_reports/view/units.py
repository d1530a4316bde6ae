"""Numbers as a reader sees them. Every function takes SI units and returns text.

The digits follow the size of the number; for an estimate they follow its interval, so that a
report never shows a precision that was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

Formatter = Callable[[float], str]

NOT_MEASURED = "not measured"

_TIMES = ((86400.0, "d", 172800.0), (3600.0, "h", 5400.0), (60.0, "min", 120.0), (1.0, "s", 1.0), (1e-3, "ms", 1e-3))
_BINARY = ((1024.0**4, "TiB"), (1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def significant(value: float, digits: int = 3) -> str:
    """``value`` with so many significant digits, never in scientific notation, thousands grouped."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 9)}f}"


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a time of this size is read: its length in seconds and its name."""
    for size, name, smallest in _TIMES:
        if abs(seconds) >= smallest:
            return size, name
    return 1e-6, "µs"


def duration(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    size, name = time_unit(seconds)
    return f"{significant(seconds / size)} {name}"


def bytes_(count: float) -> str:
    for size, name in _BINARY:
        if abs(count) >= size:
            return f"{significant(count / size)} {name}"
    return f"{count:,.0f} B"


def _scaled(value: float, unit: str) -> str:
    size, prefix = next((each for each in _DECIMAL if abs(value) >= each[0]), (1.0, ""))
    return f"{significant(value / size)} {prefix}{unit}"


def _unscaled(value: float, unit: str) -> str:
    return f"{significant(value)} {unit}"


flops, bandwidth = partial(_scaled, unit="FLOP/s"), partial(_scaled, unit="B/s")
intensity, rate, step_rate = (partial(_unscaled, unit=unit) for unit in ("FLOP/B", "samples/s", "steps/s"))


def percent(value: float) -> str:
    return f"{significant(value * 100, 2 if abs(value) < 0.1 else 3)} %" if value else "0 %"


def count(value: float) -> str:
    return f"{value:,.0f}"


def plain(value: float) -> str:
    text = significant(value, 4)
    return text.rstrip("0").rstrip(".") if "." in text else text


def money(value: float) -> str:
    return f"{value:,.2f}" if abs(value) >= 0.01 or value == 0 else significant(value, 2)


def ratio(value: float) -> str:
    return f"{value:,.{2 if abs(value) < 10 else 1}f}×"


def interval_decimals(low: float, high: float) -> int:
    """Decimals that an interval justifies: its half width shows in the last of them."""
    half = (high - low) / 2
    if half <= 0:
        return 2
    return max(1 if half >= 0.5 or high >= 20 else 2, min(3, -math.floor(math.log10(half))))


def floor_to(value: float, decimals: int) -> float:
    """Rounded down, so that the lower bound as shown is never above the one measured."""
    scale = 10.0**decimals
    nearest = round(value, decimals)
    return nearest if nearest <= value else math.floor(value * scale) / scale


def ceil_to(value: float, decimals: int) -> float:
    return -floor_to(-value, decimals)
