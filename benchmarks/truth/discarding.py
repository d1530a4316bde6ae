"""Does leaving out disturbed block pairs favour the side that uses fewer cores?

    python -m benchmarks.truth.discarding

A hypervisor takes time from every core that is busy, so that a side with more busy cores sees more foreign CPU time at
the same slowdown. Blocks of both sides are slowed alike here, in bursts and all the time; the true ratio is 1, of the
machine at rest as in the long run. Rule, fixed beforehand: the mean error of the log ratio stays below half a per cent.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import numpy as np
from scipy.stats import trim_mean

from autoopt.search.compare.rounds import DISTURBED, undisturbed
from benchmarks.documents import RESULTS, environment, load, save

MOST_BIAS = 0.005
BLOCK, PAIRS, SD = 0.3, 24, 0.02
"""Seconds of a block, block pairs of a pair of processes, and their own noise (log)."""

CORES = ((1, 1), (1, 2), (2, 1), (1, 4), (4, 1))
BURSTS = ((0.0, 0.3), (0.1, 0.3), (0.3, 0.3), (0.3, 0.6), (1.0, 0.3))
"""Bursts a second, and the share of each busy core's time that one takes for about half a second."""

STEADY = 0.02
"""Share of each busy core's time that is taken always."""

LENGTH = 0.5


def pair(rng: np.random.Generator, cores: tuple[int, int], rate: float, share: float) -> tuple[list[float], list[Any]]:
    """Log ratios and foreign shares of the block pairs of one pair of processes, ABBA or BAAB by lot."""
    seconds = 2 * PAIRS * BLOCK
    starts = rng.uniform(-LENGTH * 4, seconds, rng.poisson(rate * (seconds + LENGTH * 4)))
    ends = starts + rng.exponential(LENGTH, len(starts))
    ratios: list[float] = []
    shares: list[Any] = []
    order = [0, 1]
    for number in range(PAIRS):
        order = order[::-1] if number % 2 else ([0, 1] if rng.integers(2) else [1, 0])
        logs, foreign = [0.0, 0.0], [0.0, 0.0]
        for place, side in enumerate(order):
            at = (2 * number + place) * BLOCK
            overlap = np.clip(np.minimum(ends, at + BLOCK) - np.maximum(starts, at), 0, None).sum() / BLOCK
            taken = min(STEADY + share * overlap, 0.95)
            logs[side] = math.log(1 - taken) + SD * rng.standard_normal()
            foreign[side] = cores[side] * taken
        ratios.append(logs[1] - logs[0])
        shares.append(tuple(foreign))
    return ratios, shares


def measure(repeats: int = 2000) -> dict[str, Any]:
    """Mean error of the log ratio over pairs of processes, with and without leaving out."""
    began, rng = time.monotonic(), np.random.default_rng(0)
    rows = []
    for cores in CORES:
        for rate, share in BURSTS:
            kept_values, all_values, left_out = [], [], 0
            for _ in range(repeats):
                ratios, shares = pair(rng, cores, rate, share)
                keep = undisturbed(shares)
                kept_values.append(trim_mean([r for r, k in zip(ratios, keep, strict=True) if k], 0.2))
                all_values.append(trim_mean(ratios, 0.2))
                left_out += keep.count(False)
            rows.append(
                {
                    "cores": cores,
                    "bursts_per_second": rate,
                    "share_taken": share,
                    "left_out": left_out / (repeats * PAIRS),
                    "bias": float(np.mean(kept_values)),
                    "bias_error": float(np.std(kept_values) / math.sqrt(repeats)),
                    "bias_of_all_blocks": float(np.mean(all_values)),
                    "sd": float(np.std(kept_values)),
                    "sd_of_all_blocks": float(np.std(all_values)),
                }
            )
    return {
        "rule": f"the mean error of the log ratio stays below {MOST_BIAS:.1%}",
        "settings": {"block": BLOCK, "pairs": PAIRS, "sd": SD, "steady": STEADY, "length": LENGTH, "limit": DISTURBED},
        "rows": rows,
        "holds": all(abs(row["bias"]) + 2 * row["bias_error"] < MOST_BIAS for row in rows),
        "seconds": time.monotonic() - began,
    }


if __name__ == "__main__":
    document = load(RESULTS / "truth.json")
    document["discarding"] = {**measure(), "environment": environment()}
    save(RESULTS / "truth.json", document)
    for row in document["discarding"]["rows"]:
        sys.stdout.write(f"{row}\n")
    sys.stdout.write(f"holds: {document['discarding']['holds']}\n")
