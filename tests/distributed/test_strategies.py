"""Each strategy of several processes in two: its losses beside those of one process, and of all of them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autoopt.records import Change, Plan, Verdict
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.strategy import Strategy
from autoopt.testing.method_cards import shipped
from autoopt.testing.strategies import example_of, sample_case
from tests.distributed.conftest import TWO, Start, alone, losses, trained

ALL = [strategy for strategy in shipped() if example_of(strategy).processes > 1]


def with_two(strategy: Strategy) -> Plan:
    change = Change(strategy=strategy.name, setting=example_of(strategy).setting)
    return load_strategies().order(TWO.with_change(change))


def test_there_is_one_here_for_each_that_says_so() -> None:
    assert {strategy.name for strategy in ALL} == {"ddp", "ddp_options", "sharding"}


@pytest.mark.parametrize("strategy", [each for each in ALL if each.name != "ddp"], ids=lambda strategy: strategy.name)
def test_its_losses_are_those_of_one_process(start: Start, strategy: Strategy) -> None:
    """``ddp`` alone, over more steps: test_groups."""
    allowed = max(example_of(strategy).losses or 0.0, 1e-4)
    assert losses(start, with_two(strategy)) == pytest.approx(alone(start), rel=allowed)


OPTIONS = (
    ("ddp_options", {"static_graph": True}),
    ("ddp_options", {"bucket_megabytes": 5.0}),
    ("ddp_options", {"bucket_view": True, "quiet_accumulation": True}),
    ("affinity", {"own": True}),
)


@pytest.mark.parametrize(("name", "setting"), OPTIONS)
def test_losses_are_the_same_with_every_option(start: Start, name: str, setting: dict[str, Any]) -> None:
    plan = load_strategies().order(TWO.with_change(Change(strategy=name, setting=setting)))
    assert losses(start, plan) == pytest.approx(alone(start), rel=1e-4)


def test_options_are_tried_beside_what_was_kept_of_those_before() -> None:
    def asked(kept: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        setup = Setup().with_distributed(processes=2, find_unused=True)
        case = replace(sample_case("cuda:0", parameters=50_000_000), setup=setup, processes=2)
        talk: Any = load_strategies()["ddp_options"].settings(case)
        tried: list[dict[str, Any]] = []
        trial: Any = None
        try:
            while True:
                tried.append(talk.send(trial))
                trial = SimpleNamespace(verdict=Verdict.KEPT if kept(tried[-1]) else Verdict.NO_GAIN)
        except StopIteration:
            return tried

    assert asked(lambda setting: False)[0] == {"bucket_view": True}
    both = asked(lambda setting: set(setting) <= {"bucket_view", "static_graph"})
    assert both[1] == {"bucket_view": True, "static_graph": True}
    assert both[-1] == {"bucket_view": True, "static_graph": True, "compression": "bfloat16"}


def test_parameters_that_are_shared_out_train_and_evaluate_the_same(start: Start) -> None:
    """Between processes of a CPU, where it pays nothing: the engine's way is that of devices."""
    change = Change(strategy="sharding", setting={"fully_sharded": {"reshard": True}})
    runs = [trained(start, plan, max_steps=16) for plan in (TWO.with_change(change), Plan())]
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-3)
    ends = [run.curve.points[-1].metric for run in runs]
    assert ends[0] == pytest.approx(ends[1], abs=0.011)


def test_all_of_them_train_together(start: Start) -> None:
    plan = TWO
    for strategy in ALL:
        plan = plan.with_change(Change(strategy=strategy.name, setting=example_of(strategy).setting))
    assert losses(start, load_strategies().order(plan)) == pytest.approx(alone(start), rel=5e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
def test_its_losses_are_those_of_one_process_on_devices(start: Start, strategy: Strategy) -> None:
    """NCCL; two devices at least."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("it takes two devices")
    allowed = max(example_of(strategy).losses or 0.0, 1e-3)
    one = losses(start, Plan(), device="cuda:0")
    assert losses(start, with_two(strategy), device="cuda") == pytest.approx(one, rel=allowed)
