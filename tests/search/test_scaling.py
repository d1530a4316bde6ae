"""Several processes through the whole loop, in simulated time: found, asked for, and how they scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from autoopt.errors import EnvironmentLacks
from autoopt.records import Change, Environment, Estimate, JsonDict, Plan
from autoopt.search.baseline import check_devices
from autoopt.search.outcome import configuration
from autoopt.search.scaling import counts, efficiency
from autoopt.setup import Setup
from autoopt.storage.history import KnownNoise, Remembered
from autoopt.strategy import Applies, Case, Risk, Strategy
from autoopt.trial.protocol import Launch
from tests.simulated import World, strategy

SPEED = {1: 1.0, 2: 1.8, 4: 3.0}


class Several(Strategy):
    """As ``ddp``: as many processes as may be."""

    name: ClassVar[str] = "ddp"
    risk = Risk.EXACT

    def applies(self, case: Case) -> Applies:
        alone = case.setup.distributed.processes == 1
        return Applies.yes() if case.processes > 1 and alone else Applies.no("one process was asked for")

    def settings(self, case: Case) -> Any:
        return [{"processes": case.processes}]

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_distributed(processes=setting["processes"])


def world(tmp_path: Path, nproc: str | None, **more: Any) -> World:
    speed = lambda plan: SPEED[plan.processes] * (1.3 if "quick" in plan.names() else 1.0)  # noqa: E731
    return World(tmp_path, Several(), strategy("quick"), speed=speed, nproc=nproc, budget=900.0, **more)


def test_up_to_four_are_found_and_scaling_is_told_with_its_interval(tmp_path: Path) -> None:
    outcome = world(tmp_path, "1..4").go()
    assert outcome.baseline.plan == Plan()
    assert outcome.best.plan.processes == 4
    found = outcome.state.scaling
    assert found is not None
    assert [point.processes for point in found.points] == [2, 4]
    for point in found.points:
        true = SPEED[point.processes]
        assert point.throughput.low <= true <= point.throughput.high
        assert point.efficiency.low <= true / point.processes <= point.efficiency.high


def test_four_as_asked_for_are_the_baseline_and_no_change_of_the_plan(tmp_path: Path) -> None:
    outcome = world(tmp_path, "4").go()
    assert outcome.baseline.plan.processes == outcome.best.plan.processes == 4
    assert [change.strategy for change in outcome.state.found] == ["quick"]
    ratio = outcome.speedup.throughput
    assert ratio is not None
    assert ratio.low <= 1.3 <= ratio.high


@pytest.mark.slow
def test_one_process_is_used_where_nothing_was_asked_for(tmp_path: Path) -> None:
    outcome = world(tmp_path, None).go()
    assert outcome.best.plan.processes == 1
    assert outcome.state.scaling is None


@pytest.mark.slow
def test_a_resumed_run_finds_the_same(tmp_path: Path) -> None:
    first = world(tmp_path / "run", "1..4").go()
    again = world(tmp_path / "run", "1..4", resume=True).go()
    assert again.state.scaling == first.state.scaling


def test_processes_of_a_plan() -> None:
    plan = Plan(changes=(Change(strategy="ddp", setting={"processes": 4}), Change(strategy="amp", setting={})))
    assert (plan.processes, Plan().processes) == (4, 1)
    assert plan.with_processes(2).setting("ddp") == {"processes": 2}
    assert plan.with_processes(1).names() == ("amp",)


def test_all_are_measured_first_then_powers_of_two() -> None:
    assert [counts(2), counts(6), counts(8)] == [[2], [6, 2, 4], [8, 2, 4]]
    found = efficiency(Estimate(value=3.0, low=2.8, high=3.2, n=4), 4)
    assert (found.value, found.low, found.high) == pytest.approx((0.75, 0.7, 0.8))


def test_each_process_has_a_device() -> None:
    cuda = Environment(python="3", device="cuda:0", devices=2)
    check_devices(2, cuda)
    check_devices(64, Environment(python="3", device="cpu"))
    with pytest.raises(EnvironmentLacks, match="--nproc 4: there are 2 devices"):
        check_devices(4, cuda)


def test_a_script_that_a_launcher_starts_is_compared_with_the_first_of_its_processes(tmp_path: Path) -> None:
    """Its plan does not say how many there are."""
    seen: list[tuple[str, int | None]] = []
    made = World(tmp_path, strategy("quick"), speed=lambda plan: 1.3 if "quick" in plan.names() else 1.0)
    made.runner.facts = made.runner.facts.model_copy(update={"processes": 4})
    plain = made.runner.start

    def start(plan: Plan, label: str, processes: int | None = None) -> Any:
        if processes is not None:
            seen.append((label, processes))
        return plain(plan, label)

    made.runner.start = start  # type: ignore[method-assign]
    found = made.go().state.scaling
    assert found is not None
    assert [point.processes for point in found.points] == [2, 4]
    assert {label for label, processes in seen if processes == 1} == {"incumbent"}
    assert {processes for label, processes in seen if label == "candidate"} == {2, 4}


def test_fewer_processes_of_a_launcher_know_how_many_they_are() -> None:
    four = Launch(ranks=tuple({"RANK": str(r), "WORLD_SIZE": "4", "X": "y"} for r in range(4)), command=("torchrun",))
    assert four.with_processes(2).ranks == tuple({"RANK": str(r), "WORLD_SIZE": "2", "X": "y"} for r in range(2))


@pytest.mark.parametrize(("device", "cost"), [("cuda:0", 8.0), ("cpu", 2.0)])
def test_the_price_is_that_of_all_devices(device: str, cost: float) -> None:
    plan = Plan(changes=(Change(strategy="ddp", setting={"processes": 4}),))
    hour = Estimate(value=3600.0, low=3500.0, high=3700.0, n=2)
    made = configuration(plan, Environment(python="3", device=device), time_to_target=hour, price_per_hour=2.0)
    assert made.cost_to_target == pytest.approx(cost)


@pytest.mark.slow
def test_a_remembered_plan_of_more_processes_than_are_offered_is_not_looked_at(tmp_path: Path) -> None:
    remembered = Remembered(plan=Plan(changes=(Change(strategy="ddp", setting={"processes": 4}),)), speedup=3.0)
    looked = world(tmp_path, "1..2")
    looked.context.history = Memory(remembered)  # type: ignore[assignment]
    assert looked.go().best.plan.processes == 2


class Memory:
    """A history of one plan."""

    def __init__(self, plan: Remembered) -> None:
        self.plan = plan

    def recall(self, key: str) -> Remembered:
        return self.plan

    def noise(self, device: str) -> KnownNoise:
        return KnownNoise()

    def remember_noise(self, device: str, found: KnownNoise) -> None:
        """Nothing."""

    def remember(self, key: str, found: Remembered) -> None:
        """Nothing is kept."""
