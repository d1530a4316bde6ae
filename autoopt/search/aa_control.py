"""The A/A control of a run: the baseline against itself, with its noise and what it says of costs."""

from __future__ import annotations

import numpy as np

from autoopt.records import Noise, Record
from autoopt.search.compare.comparison import Comparison, Side
from autoopt.search.compare.statistics import MIN_BLOCKS


class AAControl(Record):
    """The A/A control, and what it says of the baseline besides."""

    noise: Noise
    comparison: Comparison
    doubts: tuple[str, ...] = ()

    @property
    def side(self) -> Side:
        return self.comparison.incumbent

    @property
    def start_seconds(self) -> float:
        """Seconds to start a trial and warm it up: half of what a pair of them took."""
        pairs = [pair.startup_seconds for pair in self.comparison.pairs]
        return max(float(np.median(pairs)) / 2 if pairs else 5.0, 0.5)

    @property
    def pair_seconds(self) -> float:
        """Seconds of a pair of processes with the fewest blocks that count; 0 where none was measured."""
        pairs = [pair for pair in self.comparison.pairs if pair.block_log_ratios]
        seconds = [
            pair.startup_seconds + MIN_BLOCKS * (pair.seconds - pair.startup_seconds) / len(pair.block_log_ratios)
            for pair in pairs
        ]
        return float(np.median(seconds)) if seconds else 0.0
