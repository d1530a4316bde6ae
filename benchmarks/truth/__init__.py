"""How true the verdicts are, in simulated time and live."""

from __future__ import annotations

from typing import Any


def accuracy(model: Any, batches: Any) -> dict[str, float]:
    """The share of samples whose class a model names; the ``evaluate`` of workloads here."""
    right = total = 0
    for x, y in batches:
        right, total = right + int((model(x).argmax(1) == y).sum()), total + len(y)
    return {"accuracy": right / total}
