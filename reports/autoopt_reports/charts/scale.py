"""From a number to a place on an axis, and the ticks that a user would draw."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps ``low..high`` to ``start..end``; logarithmic where asked for (then both must be positive)."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; outside values stand at the nearer end."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if high <= low:
            return round((self.start + self.end) / 2, 2)
        x = math.log(value) if self.log and value > 0 else low if self.log else value
        share = min(1.0, max(0.0, (x - low) / (high - low)))
        return round(self.start + share * (self.end - self.start), 2)


def span(values: Iterable[float], *, log: bool = False, pad: float = 0.04) -> tuple[float, float]:
    """The range that holds all finite values, with some room; never empty."""
    finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if not finite:
        return (0.5, 2.0) if log else (0.0, 1.0)
    low, high = min(finite), max(finite)
    if log:
        factor = (high / low) ** pad if high > low else 1.1
        return low / max(factor, 1.0001), high * max(factor, 1.0001)
    room = (high - low) * pad or max(abs(high) * 0.05, 1e-12)
    return low - room, high + room


def linear_ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) inside the range."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, wanted)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = min((m * magnitude for m in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    first = math.ceil(low / step - 1e-9)
    ticks: list[float] = []
    while first * step <= high * (1 + 1e-12) + 1e-15 and len(ticks) < 24:
        ticks.append(round(first * step, 12))
        first += 1
    return ticks


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; where fewer than two fit, 1-2-5 steps, and below a factor of two, linear ones."""
    if high / low < 3:
        return [t for t in linear_ticks(low, high) if t > 0]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    tens = [10.0**e for e in range(first, last + 1)]
    inside = [t for t in tens if low <= t <= high]
    if len(inside) >= 3:
        every = max(1, math.ceil(len(inside) / 6))
        return inside[::every]
    return [t * m for t in tens for m in (1, 2, 5) if low <= t * m <= high]


def tick_text(value: float) -> str:
    """``1.2``, ``400``, ``10k``, ``2M``."""
    size = abs(value)
    for factor, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= factor:
            return f"{value / (1e3 if suffix == 'k' else factor):g}{suffix}"
    return f"{value:.6g}"
