"""Losses that part by rounding alone are told from those of another training, by the incumbent a rounding apart."""

from __future__ import annotations

import pytest

from autoopt.records import Quality, Verdict
from autoopt.search.accept.gate import may_be_rounding
from autoopt.search.compare.comparison import LossPath
from autoopt.strategy import Risk
from made_up import NOISE, OBJECTIVE, comparison, evidence, judge_as


def unstable(step: int, apart: float) -> float:
    """A loss that rises at a large learning rate, from weights that are ``apart`` by a rounding."""
    return 7.0 + min(step, 8) * 0.7 + min(apart * 9.0**step, 1.0)


def paths_of(*aparts: float, steps: int = 24) -> list[LossPath]:
    kept = tuple(range(steps))
    return [LossPath(steps=kept, losses=tuple(unstable(step, apart) for step in kept)) for apart in aparts]


@pytest.mark.parametrize("level", ["equivalent", "undecided"])
def test_losses_that_part_as_they_do_from_a_rounding_of_the_weights_are_the_same_training(level) -> None:
    before, after, own = paths_of(0.0, 1e-5, -1e-5)
    found = comparison(before.losses, after.losses)
    probed = Quality(method="probe", level=level, passed=True if level == "equivalent" else None, detail="probed")
    known = evidence(level=probed)
    assert may_be_rounding(found, known) == (24 if level == "equivalent" else 0)
    assert may_be_rounding(found, known.model_copy(update={"risk": Risk.EXACT})) == 0
    assert judge_as(Risk.NUMERIC, found, known, OBJECTIVE, NOISE).verdict is Verdict.QUALITY_LOST
    judged = judge_as(Risk.NUMERIC, found, known.model_copy(update={"rounded": own}), OBJECTIVE, NOISE)
    assert judged.verdict is (Verdict.KEPT if level == "equivalent" else Verdict.INCONCLUSIVE)


def test_losses_that_part_sooner_or_further_than_by_a_rounding_are_another_training() -> None:
    before, own, early = paths_of(0.0, 1e-12, 0.5)
    probed = Quality(method="probe", level="equivalent", passed=True, detail="probed")
    far = tuple(loss + (8.0 if step > 10 else 0.0) for step, loss in enumerate(before.losses))
    for after in (early.losses, far):
        known = evidence(level=probed, rounded=own)
        judged = judge_as(Risk.NUMERIC, comparison(before.losses, after), known, OBJECTIVE, NOISE)
        assert judged.verdict is Verdict.QUALITY_LOST
