"""A device that waits for launches: what launches less is predicted to pay, what computes faster is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autoopt.records import Operator, Peaks, Plan, Resource, Round, Simulation, Stage
from autoopt.registry import load_strategies
from autoopt.search.planner import Choice, build_queue, predict
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Case, Strategy
from autoopt.testing.strategies import sample_case

REGISTRY = load_strategies()
DEVICE = Resource.DEVICE


def operators(products: float, elementwise: float) -> tuple[Operator, ...]:
    return (
        Operator(name="aten::mm", seconds=products, flops=1e9, bytes=1e6, calls=100, kind="matmul"),
        Operator(name="aten::add", seconds=elementwise, bytes=1e6, calls=900, kind="elementwise", ceiling_seconds=1e-4),
    )


def case_of(kernels: tuple[Operator, ...], issue: float, device: str = "cuda:0", **inspected: Any) -> Case:
    """Kernels of so many seconds, which the training process issues in ``issue`` of 20 ms with the optimizer's 4 ms.

    Alone, forward and backward take as long as issuing them where that is more than their kernels.
    """
    busy = sum(operator.seconds for operator in kernels)
    both = max(busy, issue * 0.8)
    seconds = {"forward": both / 3, "backward": 2 * both / 3, "optimizer": max(0.001, issue * 0.2), "host": issue}
    where = {"host": Resource.HOST}
    stages = tuple(
        Stage(name=name, resource=where.get(name, DEVICE), seconds=value, ceiling_seconds=1e-4 if value else 0.0)
        for name, value in seconds.items()
    )
    known = Simulation(device="cuda" if device != "cpu" else "cpu", cores=8, threads=8, launches=1000,
                       host_seconds=issue, update_issue_seconds=issue * 0.2)  # fmt: skip
    round_ = Round(index=0, plan=Plan(), step_seconds=max(issue, both), stages=stages, simulation=known,
                   operators=kernels, simulation_error=0.0)  # fmt: skip
    case = sample_case(device, inspected=inspected)
    environment = case.environment.model_copy(update={"peaks": Peaks(launch_seconds=5e-6)})
    return dataclasses.replace(
        case, pipeline=Pipeline(round_), environment=environment, planned_steps=None, trials=(), seconds_left=600.0
    )


SHORT, LONG = operators(0.001, 0.002), operators(0.08, 0.02)


@pytest.mark.parametrize(
    ("name", "setting", "least"),
    [
        ("cuda_graphs", {"whole": True}, 4.0),
        ("cuda_graphs", {}, 2.8),
        ("compile", {"mode": "default"}, 1.5),
        ("compile", {"mode": "reduce-overhead"}, 1.6),
        ("fused_optimizer", {"implementation": "fused"}, 1.15),
    ],
)
def test_fewer_launches_pay_where_the_device_waits_for_them(name: str, setting: dict[str, Any], least: float) -> None:
    waiting = predict(REGISTRY[name], case_of(SHORT, 0.02, fused_optimizer={"fused": 0.1}), setting)
    assert waiting is not None
    assert waiting.high >= least
    computing = predict(REGISTRY[name], case_of(LONG, 0.02, fused_optimizer={"fused": 0.1}), setting)
    assert computing is not None
    assert computing.high < 1.3
    assert computing.value < waiting.value


def test_the_planner_does_not_say_of_graphs_that_they_cannot_pay_where_they_matter_most() -> None:
    queue = build_queue(REGISTRY, case_of(SHORT, 0.02), Choice(only=("cuda_graphs", "compile")), 1.05)
    assert {proposal.strategy.name for proposal in queue.proposals} == {"cuda_graphs", "compile"}
    assert queue.skipped == () or all(item.strategy.name not in ("cuda_graphs", "compile") for item in queue.skipped)


class Fusing(Strategy):
    """A strategy of somebody's own that says no more than its stages."""

    name = "fusing"
    stages = frozenset({"forward", "backward"})

    def apply(self, setup: Any, setting: Any) -> Any:
        return setup


def test_a_strategy_of_ones_own_is_bounded_by_what_it_may_leave_to_issue() -> None:
    bound = predict(Fusing(), case_of(SHORT, 0.02), {})
    assert bound is not None
    assert bound.high >= 4.0, "the update alone is left to issue, a fifth of it"


def test_what_was_tried_on_copies_launches_as_much_less_as_it_was_faster() -> None:
    """Half the seconds of forward and backward on a device that waits for launches: 16 of 20 ms of issuing halve."""
    found = predict(REGISTRY["flash_attention"], case_of(SHORT, 0.02, flash_attention={"ratio": 0.5}), {})
    assert found is not None
    assert found.value == pytest.approx(20 / (4 + 16 * (0.5 + 0.5 * 3 / 16)), rel=0.05)


def test_a_cpu_has_nothing_to_issue() -> None:
    found = predict(REGISTRY["fused_optimizer"], case_of(LONG, 0.02, "cpu", fused_optimizer={"fused": 0.5}),
                    {"implementation": "fused"})  # fmt: skip
    assert found is not None
    assert found.value == pytest.approx((0.1 + 0.004 + 0.02) / (0.1 + 0.002 + 0.02), rel=0.02)


RECURRENT = (
    Operator(name="aten::mkldnn_rnn_layer", seconds=0.05, calls=2, kind="other"),
    Operator(name="aten::add", seconds=0.002, bytes=1e6, calls=20, kind="elementwise", ceiling_seconds=1e-4),
)


def test_a_library_s_own_kernels_are_compiled_to_nothing_else() -> None:
    """A recurrent layer is one kernel of a library: compiling leaves it, and predicts hardly more than 1."""
    found = predict(REGISTRY["compile"], case_of(RECURRENT, 0.001, "cpu"), {"mode": "default"})
    assert found is not None
    assert found.high < 1.1


def test_operators_of_one_micro_batch_are_held_to_all_of_the_steps() -> None:
    """With four micro-batches the stages are four times what the operators of one add up to."""
    case = case_of(LONG, 0.001, "cpu")
    pipeline: Any = case.pipeline
    more = pipeline.round.simulation.model_copy(update={"accumulation": 4})
    stages = tuple(
        stage.model_copy(update={"seconds": stage.seconds * 4}) if stage.name in ("forward", "backward") else stage
        for stage in pipeline.round.stages
    )
    four = Pipeline(pipeline.round.model_copy(update={"simulation": more, "stages": stages}))
    one = predict(REGISTRY["compile"], case, {"mode": "default"})
    many = predict(REGISTRY["compile"], dataclasses.replace(case, pipeline=four), {"mode": "default"})
    assert one is not None
    assert many is not None
    assert many.value == pytest.approx(one.value, rel=0.03)
