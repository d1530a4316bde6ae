"""Memory of the plans that were measured, by which it is decided beforehand which processes are alive together."""

from __future__ import annotations

from math import inf

from autoopt.records import Plan
from autoopt.search.compare.comparison import Comparison


class MemoryLedger:
    """Peaks of plans on a device.

    Attributes:
        limit_bytes: that all processes on the device have together; None where that is not known, as on a CPU.
    """

    def __init__(self) -> None:
        self.limit_bytes: int | None = None
        self._peaks: dict[str, int] = {}
        self._too_much: float = inf  # of two that were seen not to fit

    def note(self, comparison: Comparison) -> None:
        """What a comparison has shown of both plans."""
        for side in (comparison.incumbent, comparison.candidate):
            self.note_peak(side.plan, side.peak_memory_bytes)
        if comparison.mode == "alternating":
            together = self._together(comparison.incumbent.plan, comparison.candidate.plan)
            self._too_much = min(self._too_much, together or inf)

    def note_peak(self, plan: Plan, peak: int | None) -> None:
        if peak:
            self._peaks[plan.key] = max(self._peaks.get(plan.key, 0), peak)

    def fit_together(self, one: Plan, other: Plan) -> bool:
        """Whether processes of two plans are known to fit, or not known not to.

        A plan that was not measured counts as the one next to it.
        """
        together = self._together(one, other)
        return together is None or (together < self._too_much and together <= (self.limit_bytes or inf))

    def _together(self, one: Plan, other: Plan) -> int | None:
        first, second = self._peaks.get(one.key), self._peaks.get(other.key)
        if first is None and second is None:
            return None
        return (first or second or 0) + (second or first or 0)
