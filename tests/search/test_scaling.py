"""Several processes and several sizes of the model: found, asked for, and how they scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import made_up
from autoopt.errors import EnvironmentLacks
from autoopt.records import Change, Curve, CurvePoint, Environment, Estimate, JsonDict, Plan
from autoopt.records.messages import TrainingRun
from autoopt.records.protocol import Launch
from autoopt.search.accept.evidence import TrainedPair
from autoopt.search.accept.trainings import Trainings
from autoopt.search.baseline import check_devices
from autoopt.search.outcome import configuration
from autoopt.search.scaling import common_step, counts, model_scaling, point_of, scaling_of
from autoopt.setup import Setup
from autoopt.strategy import Applies, Case, Risk, Strategy
from made_up import OBJECTIVE
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
    assert [point.processes for point in found.points] == [2, 4]
    for point in found.points:
        true = SPEED[point.processes]
        assert point.throughput.low <= true <= point.throughput.high
        assert point.efficiency.low <= true / point.processes <= point.efficiency.high


def test_four_as_asked_for_are_the_baseline_and_no_change_of_the_plan(tmp_path: Path) -> None:
    outcome = world(tmp_path, "4").go()
    assert outcome.baseline.plan.processes == outcome.best.plan.processes == 4
    assert [change.strategy for change in outcome.state.found] == ["quick"]
    ratio, headline = outcome.speedup.throughput, outcome.speedup.headline
    assert ratio.low <= 1.3 <= ratio.high
    assert headline.source == "trained"
    assert headline.value == pytest.approx(1.3, rel=0.1), "both sides of it train in four"


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
    found = point_of(4, Estimate(value=3.0, low=2.8, high=3.2, n=4), "measured").efficiency
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


# Sizes that a run trained as points of result.json, with both power laws or why there is none.

OTHER = Change(strategy="amp", setting={})


def run(parameters: int, seed: int = 0, steps: int = 60, seconds: float | None = 1.0, lack: float = 0.3) -> TrainingRun:
    """A training that lacks less the larger it is, by the power 0.25 of its size, and the longer it goes on."""
    lacks = lack * (parameters / 1e4) ** -0.25 * (1 + seed / 50)
    steps_seen = range(20, steps + 1, 20)
    points = tuple(CurvePoint(step=at, seconds=at / 10, metric=1 - lacks * 20 / at) for at in steps_seen)
    curve = Curve(seed=seed, points=points, reached=seconds is not None, seconds_to_target=seconds)
    return made_up.run(seed, curve=curve, steps=steps, trained_parameters=parameters)


def sized(width: int | None, *others: Change) -> Plan:
    setting = {"build": "m:build", "arguments": {"width": width}}
    change = () if width is None else (Change(strategy="model_size", setting=setting),)
    return Plan(changes=(*others, *change))


def state_of(*pairs: tuple[Plan, Plan]) -> Any:
    """A search whose trials, by number, compared these incumbents with these candidates."""
    trials = [SimpleNamespace(id=number, strategy="model_size") for number, _ in enumerate(pairs)]
    comparisons = {
        number: SimpleNamespace(incumbent=SimpleNamespace(plan=one), candidate=SimpleNamespace(plan=other))
        for number, (one, other) in enumerate(pairs)
    }
    return SimpleNamespace(trials=trials, comparisons=comparisons, objective=OBJECTIVE)


def trainings_of(*pairs: tuple[Plan, TrainingRun, Plan, TrainingRun]) -> Trainings:
    steps = SimpleNamespace(step=lambda kind, key, measure, model: measure())
    made = Trainings(SimpleNamespace(), steps)  # type: ignore[arg-type]
    for one, before, other, after in pairs:
        both = TrainedPair(baseline=before, best=after)
        made._runner = SimpleNamespace(train_interleaved=lambda *_, pair=both, **__: pair)  # type: ignore[assignment]
        made.interleaved(one, other, before.seed, purpose="trial", remember=True)
    return made


WHOLE, HALF, QUARTER = sized(None), sized(32), sized(16)


def swept(*seeds: int) -> Trainings:
    pairs = []
    for seed in seeds:
        pairs.append((WHOLE, run(40_000, seed), HALF, run(10_000, seed, seconds=0.6)))
        pairs.append((HALF, run(10_000, seed, seconds=0.6), QUARTER, run(2_500, seed, steps=40, seconds=0.4)))
    return trainings_of(*pairs)


def test_three_sizes_give_both_laws() -> None:
    found = model_scaling(state_of((WHOLE, HALF), (HALF, QUARTER)), swept(0, 1))
    assert [point.parameters for point in found.points] == [2_500, 10_000, 40_000]
    assert [point.trial for point in found.points] == [1, 0, None]
    assert [point.arguments for point in found.points] == [{"width": 16}, {"width": 32}, {}]
    assert found.steps == 40, "the last step at which all were evaluated"
    assert found.error.exponent.value == pytest.approx(-0.25, abs=1e-6)
    assert (found.error.sizes, found.error.runs) == (3, 6)
    assert found.error.at_target.value == pytest.approx(1e4 * (0.1 / (0.15 * 1.01)) ** -4, rel=0.02)
    assert found.seconds.exponent.value > 0
    assert found.missing == {}


def forgotten() -> Trainings:
    trainings = swept(0, 1)
    trainings.forget(HALF)
    return trainings


@pytest.mark.parametrize(
    ("pairs", "made", "count", "missing"),
    [
        ([(WHOLE, HALF), (HALF, QUARTER)], forgotten, 3, {}),  # by the verification
        ([(WHOLE, HALF)], lambda: trainings_of((WHOLE, run(40_000), HALF, run(10_000))), 2,
         {"error": "2 sizes of 3 that a line needs"}),
        ([(WHOLE, HALF), (HALF, QUARTER)], lambda: trainings_of((WHOLE, run(40_000), HALF, run(10_000, seconds=0.6)),
         (HALF, run(10_000), QUARTER, run(2_500, seconds=None))), 3,
         {"seconds": "2 sizes of 3 that a line needs: 1 of 3 missed the target from a seed"}),
        ([(WHOLE, HALF)], trainings_of, 0, {"error": "0 sizes of 3 that a line needs"}),
    ],
    ids=["forgotten", "two sizes", "missed target", "untrained"],
)  # fmt: skip
def test_sizes_are_points_and_what_is_no_law_says_why(
    pairs: list[tuple[Plan, Plan]], made: Callable[[], Trainings], count: int, missing: dict[str, str]
) -> None:
    found = model_scaling(state_of(*pairs), made())
    assert len(found.points) == count
    assert missing.items() <= found.missing.items()
    for name, law in (("error", found.error), ("seconds", found.seconds)):
        assert (law is None) is (name in found.missing)


def test_sizes_on_different_plans_are_not_one_line() -> None:
    """Seconds with another change are of another machine, so to speak: the largest family of one plan is taken."""
    trainings = trainings_of(
        (WHOLE, run(40_000), HALF, run(10_000)),
        (sized(None, OTHER), run(40_000), sized(32, OTHER), run(10_000)),
        (sized(None, OTHER), run(40_000), sized(16, OTHER), run(2_500)),
    )
    state = state_of(
        (WHOLE, HALF), (sized(None, OTHER), sized(32, OTHER)), (sized(None, OTHER), sized(16, OTHER))
    )  # fmt: skip
    found = model_scaling(state, trainings)
    assert [point.trial for point in found.points] == [2, 1, None]


def test_nothing_is_told_of_a_search_without_sizes() -> None:
    assert model_scaling(SimpleNamespace(trials=[]), swept(0)) is None  # type: ignore[arg-type]


def test_a_metric_whose_best_value_is_not_known_has_no_error() -> None:
    sizes = [({}, None, (run(size, lack=-30.0),)) for size in (2_500, 10_000, 40_000)]
    assert "between zero and one" in scaling_of(sizes, OBJECTIVE).missing["error"]  # type: ignore[arg-type]
    lower = scaling_of(sizes, OBJECTIVE.model_copy(update={"mode": "min"}))  # type: ignore[arg-type]
    assert lower.error is not None, "what is to be small is its own error"


def test_trainings_without_a_step_in_common_are_not_compared() -> None:
    first = run(2_500)
    points = tuple(point.model_copy(update={"step": point.step + 1}) for point in first.curve.points)
    other = first.model_copy(update={"curve": first.curve.model_copy(update={"points": points})})
    assert common_step([first, other]) is None
    found = scaling_of([({}, 1, (other,)), ({}, None, (run(10_000),))], OBJECTIVE)
    assert found.missing["error"] == "the trainings have no evaluation after the same number of steps"
