"""What probes are asked, by how slow steps are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Objective, Plan
from autoopt.search.accept.gathering import Probes
from autoopt.strategy import Risk
from autoopt.testing.strategies import sample_case


class AtOnce:
    def step(self, kind: str, key: Any, make: Callable[[], Any], record: Any) -> Any:
        return make()


class Asked:
    def __init__(self) -> None:
        self.gradients: list[int] = []

    def ask(self, plan: Plan, task: str, **how: Any) -> Any:
        self.gradients.append(how["gradients"])
        raise TrialFailed("error", "enough was asked", where="start")


@pytest.mark.parametrize(("step", "batches"), [(None, 16), (0.01, 32), (0.06, 22), (0.1, 16), (0.4, 16), (0.5, 4)])
def test_slow_steps_are_asked_for_as_many_gradients_at_once_as_tell_a_bias(
    step: float | None, batches: int, tmp_path: Path
) -> None:
    """Of 4 batches, as slow steps once had, no plan that rounds otherwise was ever told: both were probed again."""
    runner = Asked()
    probes = Probes(runner, AtOnce(), tmp_path)  # type: ignore[arg-type]
    probes.step_seconds = step
    ending = {"metric": None, "target": None, "target_source": "baseline"}
    objective = Objective(mode="max", tolerance=0.01, min_gain=0.01, **ending)  # type: ignore[arg-type]
    facts = sample_case().workload
    found = probes.quality(Risk.NUMERIC, Plan(), Plan(), facts, objective, epsilon=1e-7)
    assert runner.gradients == [batches]
    assert found.passed is None
