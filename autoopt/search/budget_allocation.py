"""How the budget is shared, so that a run always ends with a checked result.

The baseline gets at most a quarter. What verification and ablation will need is estimated from
what was measured so far and kept back; the search has the rest. Nothing is started that cannot
finish before its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.strategy import Risk

BASELINE = 0.25
NOISE = 0.10
NOISE_SECONDS = 15.0
NOISE_AT_MOST = 0.25
"""Short runs: fewer seconds than this do not hold the pairs of processes that an A/A control needs."""

KEPT_BACK_AT_MOST = 0.45
KEPT_BACK_AT_LEAST = 0.15
MORE_SHARE = 0.15
"""Of the budget, for ablation and further seeds at most."""


@dataclass(frozen=True)
class BudgetAllocation:
    """Deadlines of one run on its own clock, in seconds.

    Args:
        budget: the whole.
        start_seconds: what it costs to start a trial and warm it up, as measured.
        baseline_seconds: one training of the baseline to the target, as measured; 0 before that.
        pair_seconds: a pair of processes of it with few blocks, as measured; 0 before that.
    """

    budget: float
    start_seconds: float = 5.0
    baseline_seconds: float = 0.0
    pair_seconds: float = 0.0

    @property
    def baseline(self) -> float:
        """Seconds for the baseline's training."""
        return self.budget * BASELINE

    @property
    def noise(self) -> float:
        """Seconds for the A/A control."""
        return min(max(self.budget * NOISE, NOISE_SECONDS), self.budget * NOISE_AT_MOST)

    def verification(self, seeds: int = 2, speedup: float = 1.0) -> float:
        """Seconds to train baseline and final plan to the target from that many seeds.

        The first seed of the baseline is at hand already.

        Args:
            speedup: of the final plan over the baseline, as far as it is known; 1 where it is not.
        """
        training = self.baseline_seconds + self.start_seconds
        return (seeds - 1) * training + seeds * training / speedup

    def ablation_deadline(self, risk: Risk, speedup: float = 1.0) -> float:
        """When the ablation ends, on the run's clock: the verification comes after it.

        Where the losses are the same, a second seed tells less than what each change is worth.
        """
        return self.budget - self.verification(1 if risk is Risk.EXACT else 2, speedup) - self.comparison

    def ablation(self, changes: int) -> float:
        """Seconds to leave out each of that many changes; trying them alone has what is left at the end.

        Without the last one the plan was compared when that was kept.
        """
        return max(changes - 1, 0) * self.comparison

    @property
    def comparison(self) -> float:
        """Seconds that a short comparison takes: two pairs of processes and their blocks."""
        return 2 * (self.pair_seconds or 2 * self.start_seconds + 4.0)

    def kept_back(self, changes: int, speedup: float = 1.0) -> float:
        """Seconds reserved for the end of the run.

        Comparing the final plan once more and training it from one seed is kept back in any case. Ablation and a
        second seed have a limited share of a short run, in which they would leave nothing to be verified; they
        take whatever else is left. Before anything was kept they have none, since there may be nothing to ablate.

        Args:
            changes: of the plan that would be verified.
            speedup: of the incumbent over the baseline.
        """
        must = self.comparison + self.verification(1, speedup)
        more = self.verification(2, speedup) - self.verification(1, speedup) + self.ablation(changes)
        wanted = must + (min(more, MORE_SHARE * self.budget) if changes > 1 else 0.0)
        return min(max(wanted, KEPT_BACK_AT_LEAST * self.budget), KEPT_BACK_AT_MOST * self.budget)

    def search_deadline(self, changes: int, speedup: float = 1.0) -> float:
        """When the search ends, on the run's clock."""
        return self.budget - self.kept_back(changes, speedup)

    @property
    def trial(self) -> float:
        """Seconds that one comparison may take at most: long runs allow more pairs of processes."""
        return min(max(0.12 * self.budget, 1.5 * self.comparison), 900.0)
