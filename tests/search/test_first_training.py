"""When the baseline's first training waits for a plan to be trained beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autoopt.records import Percentiles, Site, Sites
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.first_training import may_wait

EVALUATION = Site(file="train.py", line=9, end_line=9, function="main", kind="evaluation", call="Net", name="Net")


def waits(budget: float, epoch: int | None, *seen: Site, metric: str | None = None) -> bool:
    """Of a script whose steps take 0.4 s."""
    side = SimpleNamespace(step_seconds=Percentiles(p50=0.4, p95=0.4, p99=0.4), peak_memory_bytes=None)
    state: Any = SimpleNamespace(
        aa=SimpleNamespace(side=side),
        sites=Sites(command=("python", "train.py"), cwd="/", sites=seen),
        objective=SimpleNamespace(metric=metric, target=None),
        facts=SimpleNamespace(steps_per_epoch=epoch),
        planned_steps=None,
    )
    context: Any = SimpleNamespace(
        allocation=BudgetAllocation(budget=budget), gate=SimpleNamespace(memory_limit_bytes=None)
    )
    return may_wait(context, state)


@pytest.mark.parametrize(
    ("epoch", "seen", "wait"),
    [(5000, (), True), (20, (), False), (None, (), False), (5000, (EVALUATION,), False)],
    ids=["hours to an epoch's end", "an epoch ends in it", "no epoch is known", "it was seen to evaluate"],
)
def test_a_training_that_shows_no_metric_waits(epoch: int | None, seen: tuple[Site, ...], wait: bool) -> None:
    assert waits(240.0, epoch, *seen) is wait
    assert waits(240.0, epoch, *seen, metric="val loss")
    assert not waits(7200.0, epoch, *seen)
