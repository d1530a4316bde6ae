"""What gave way to a kept change is decided where the two were measured on one incumbent."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest

from autoopt.records import Verdict
from autoopt.search.compare.comparison import PairOfProcesses
from autoopt.search.compare.statistics import BetweenProcess
from autoopt.search.decided import in_place
from autoopt.strategy import Applies, Case
from simulated import World, product, strategy


def pair(log_ratio: float, error: float = 0.03) -> PairOfProcesses:
    return PairOfProcesses(log_ratio=log_ratio, standard_error=error, block_log_ratios=())


@pytest.mark.parametrize("sd", [0.015, 0.045, 0.07])
def test_a_rival_that_is_a_gain_in_its_place_is_hardly_ever_called_none(sd: float) -> None:
    """Truly 1 % faster than what was kept, of which two pairs were measured, and one of the rival."""
    rng, wrong, runs = np.random.default_rng(4), 0, 500
    for _ in range(runs):
        rival, *kept = (pair(mean + float(rng.normal(0, np.hypot(sd, 0.03)))) for mean in (log(1.01), 0.0, 0.0))
        found = in_place([rival], kept, BetweenProcess(0.045, 2.0))
        assert found is not None
        wrong += found.high < 1.01
    assert wrong <= 0.07 * runs


def test_what_excludes_the_plan_and_is_slower_in_its_place_is_decided(tmp_path: Path) -> None:
    def beside(self: object, case: Case) -> Applies:
        return Applies.no("not beside fast") if "fast" in case.plan.names() else Applies.yes()

    strategies = [strategy("fast"), strategy("middling", applies=beside), strategy("equal", applies=beside)]
    speeds = {"fast": 1.8, "middling": 1.3, "equal": 1.78}
    outcome = World(tmp_path, *strategies, speed=product(speeds), budget=480.0).go()
    assert outcome.best.plan.names() == ("fast",)
    trials = {trial.strategy: trial for trial in outcome.state.trials if trial.verdict is not Verdict.KEPT}
    assert trials["middling"].verdict is Verdict.NO_GAIN
    assert "in the place of fast" in trials["middling"].reason
    assert trials["equal"].verdict is Verdict.INCONCLUSIVE
