"""Documents of trials that run at the same time: what they cost one another."""

from __future__ import annotations

from autoopt.records.base import Estimate, Plan
from autoopt.records.record import Record


class Sharing(Record):
    """A plan's throughput next to neighbours that train the same, over that of the same process with them stopped.

    ``places``: where the processes ran; ``beside``: the ratio of each, None where it was not measured. ``floor``: the
    noise floor of the run, which the effect is held against. ``allowed``: candidates are examined side by side on this
    plan; ``reason``: why, or why not.
    """

    plan: Plan = Plan()
    places: tuple[str, ...] = ()
    beside: tuple[Estimate | None, ...] = ()
    floor: float | None = None
    allowed: bool = False
    reason: str = ""
    seconds: float = 0.0
