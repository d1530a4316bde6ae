"""Synthetic documents for tests, benchmarks and work on the templates. Nothing in them was ever measured.

Every document says so in its name, so that a page made from one cannot be taken for a result.
"""

from __future__ import annotations

from collections.abc import Callable

from autoopt.records import Result
from benchmarks.sample.hard import HOSTILE, hostile, interrupted, many, out_of_memory
from benchmarks.sample.plain import no_gain, profile, win
from benchmarks.sample.sizes import sizes

DOCUMENTS: dict[str, Callable[[], Result]] = {
    "win": win,
    "no_gain": no_gain,
    "out_of_memory": out_of_memory,
    "interrupted": interrupted,
    "thousand": many,
    "hostile": hostile,
    "sizes": sizes,
}

__all__ = [
    "DOCUMENTS",
    "HOSTILE",
    "hostile",
    "interrupted",
    "many",
    "no_gain",
    "out_of_memory",
    "profile",
    "sizes",
    "win",
]
