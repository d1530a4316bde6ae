"""How exported results fare: scripts, and the Trainers' own loops."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

from benchmarks.whole_runs.figures import ratio

SIDES = ("plain", "optimized")


def in_turns(pairs: int, run: Callable[[str, int], dict[str, Any]]) -> dict[str, Any]:
    """The ratio of the seconds of whole trainings, in pairs whose order is turned each time.

    Args:
        run: trains a side with a seed; its document has ``seconds``.
    """
    rows = [{side: run(side, seed) for side in SIDES[:: -1 if seed % 2 else 1]} for seed in range(pairs)]
    logs = [log(row["plain"]["seconds"] / row["optimized"]["seconds"]) for row in rows]
    return {"speedup": ratio(logs), "pairs": rows}
