"""Options of ``autoopt latency``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoopt.errors import UsageError

PATTERN = 20
"""Requests after which a distribution of sizes comes round again, which is as finely as it is kept."""


@dataclass(frozen=True)
class Serve:
    """Options of ``autoopt latency``.

    Args:
        limit_seconds: of the P95; None: none.
        max_drop: of the metric, as a fraction of the baseline's.
        clients: that ask at once where the limit is to hold.
        weights: a checkpoint; empty: as ``build()`` gives them.
        sizes: samples of requests, in the order in which they come round.
        lengths: of tokens; None: as they are.
        students: builds of other models.
    """

    limit_seconds: float | None = None
    max_drop: float = 0.01
    clients: int = 1
    weights: str = ""
    sizes: tuple[int, ...] = (1,)
    lengths: tuple[int | None, ...] = (None,)
    students: tuple[str, ...] = ()

    @property
    def loads(self) -> tuple[int, ...]:
        """Numbers of clients that are measured: that of the limit first."""
        return (self.clients, 1) if self.clients > 1 else (1, 4)


def parse_latency(text: str) -> float:
    """Seconds of ``80ms``, ``1.5s`` or ``900us``.

    Raises:
        UsageError: no unit, no number, or nothing at all.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s)", text.strip(), re.ASCII)
    if match is None:
        raise UsageError("not a latency with its unit", hint="such as 80ms")
    seconds = float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]
    if not 0 < seconds < 3600:
        raise UsageError("must be above 0 and below an hour", hint="such as 80ms")
    return seconds


def parse_shares(text: str) -> dict[int, float]:
    """Numbers with their shares: ``8`` is always 8, ``1=80%,8=20%`` four times out of five 1.

    Raises:
        UsageError: something else, or shares that do not add up to 100 %.
    """
    example = "such as 8, or 1=80%,8=20%"
    found: dict[int, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\s*=\s*(\d+(?:\.\d+)?)\s*%)?", part.strip(), re.ASCII)
        if match is None or int(match[1]) < 1:
            raise UsageError(f"{part.strip()!r} is no number of 1 or more with its share", hint=example)
        if int(match[1]) in found:
            raise UsageError(f"{match[1]} is given twice", hint=example)
        found[int(match[1])] = float(match[2]) / 100 if match[2] else 1.0
    if abs(sum(found.values()) - 1.0) > 1e-6:
        raise UsageError(f"the shares add up to {100 * sum(found.values()):g} %", hint=example)
    return found


def pattern(shares: dict[int, float]) -> tuple[int, ...]:
    """Numbers in an order that spreads them evenly, each as often as its share says."""
    if len(shares) == 1:
        return tuple(shares)
    given: dict[int, int] = dict.fromkeys(shares, 0)
    order = []
    for place in range(1, PATTERN + 1):
        least = max(shares, key=lambda number: shares[number] * place - given[number])
        given[least] += 1
        order.append(least)
    return tuple(order)
