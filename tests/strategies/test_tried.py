"""Predictions from what was tried on copies: the ratio goes into the graph; copies leave the original alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from autoopt.registry import load_strategies
from autoopt.search.planner import predict
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Case
from autoopt.testing.strategies import sample_case
from autoopt_strategies.compute.fused_optimizer import on_copies, rebuilt, update_ratios
from autoopt_strategies.input import probes
from tests.strategies.stand_ins import promised

REGISTRY = load_strategies()
RATIO = 0.6

TRIED: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "amp": ({"bfloat16_channels_last": RATIO, "bfloat16": 0.9}, {"dtype": "bfloat16"}, ("forward", "backward")),
    "channels_last": ({"ratio": RATIO}, {}, ("forward", "backward")),
    "matmul_precision": ({"medium": RATIO}, {"precision": "medium"}, ("forward", "backward")),
    "flash_attention": ({"ratio": RATIO}, {}, ("forward", "backward")),
    "native_operators": ({"ratio": RATIO}, {}, ("forward", "backward")),
    "fused_optimizer": ({"fused": RATIO, "foreach": 0.9}, {"implementation": "fused"}, ("optimizer",)),
}


def doubled(case: Case, ratio: float) -> Case:
    """The same with twice the batch measured."""
    assert isinstance(case.pipeline, Pipeline)
    round_ = case.pipeline.round
    known = round_.simulation.model_copy(update={"doubled": ratio})
    return dataclasses.replace(case, pipeline=Pipeline(round_.model_copy(update={"simulation": known})))


@pytest.mark.parametrize("name", TRIED)
def test_what_was_tried_is_what_is_predicted(name: str) -> None:
    inspected, setting, stages = TRIED[name]
    case = sample_case(inspected={name: inspected})
    found = predict(REGISTRY[name], case, setting)
    changed = {stage.name: stage.seconds * RATIO for stage in case.pipeline.stages if stage.name in stages}
    assert found == case.pipeline.gain(changed).as_kind("tried")
    assert predict(REGISTRY[name], sample_case(), setting) != found


@pytest.mark.parametrize("name", [name for name in TRIED if name != "fused_optimizer"])
def test_what_makes_it_slower_is_predicted_to_be_slower(name: str) -> None:
    inspected, setting, _ = TRIED[name]
    found = promised(REGISTRY[name], sample_case(inspected={name: dict.fromkeys(inspected, 1.5)}), setting)
    assert found.value < 1.0


def test_numbers_of_a_strategy_s_own_are_declared() -> None:
    """Neither confidence nor interval is claimed for what nobody measured; the pipeline's own what-if is simulated."""
    found = promised(REGISTRY["allocator"], sample_case("cuda:0"), {"expandable_segments": True})
    assert (found.kind, found.confidence) == ("declared", None)
    simulated = promised(REGISTRY["workers"], sample_case(), {"num_workers": 2})
    assert (simulated.kind, simulated.confidence) == ("simulated", None)


def test_a_batch_twice_as_large_costs_what_it_was_seen_to_cost() -> None:
    setting = {"size": 128, "learning_rate_factor": 1.4142, "warmup_steps": 0}
    assert promised(REGISTRY["batch_size"], sample_case(), setting), "by what launches cost, where none was seen"
    linear, shared = (promised(REGISTRY["batch_size"], doubled(sample_case(), ratio), setting) for ratio in (2.0, 1.2))
    assert linear.value < shared.value
    pieces = promised(REGISTRY["accumulation"], doubled(sample_case(), 1.2), {"size": 32, "accumulation": 2})
    assert pieces.value < 1.0


def test_trying_an_update_leaves_the_optimizer_as_it_is() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert set(update_ratios(optimizer, 1e9)) == {"foreach", "fused"}
    assert update_ratios(optimizer, 10.0) == {}
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_copies_are_updated_alike_by_every_implementation() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(3, 2).parameters(), lr=0.1, momentum=0.9)
    one = on_copies(optimizer)
    other = rebuilt(one, "foreach")
    assert other.param_groups[0]["params"][0] is one.param_groups[0]["params"][0]


def test_a_sample_from_the_cache_costs_what_it_was_seen_to_cost() -> None:
    def predicted(hit: float) -> float:
        case = sample_case(inspected={"prepared_samples": {"kept": {"deterministic": True, "hit": hit}}})
        found = promised(REGISTRY["prepared_samples"], case, {"form": "samples", "where": "memory"})
        return found.value

    assert predicted(0.05) > predicted(0.5) > predicted(1.0)
    data = torch.utils.data.TensorDataset(torch.ones(20, 3))
    found = probes.kept(data)
    assert found["deterministic"]
    assert 0.0 < found["hit"] <= 1.0


def test_one_index_is_timed_at_the_size_of_the_batch() -> None:
    seen = []

    class Counting(torch.utils.data.TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            seen.append(index)
            return super().__getitem__(index)

    found = probes.batches(Counting(torch.ones(20, 3)), 5)
    assert found["index"] == "tensor"
    assert 0.0 < found["ratio"] <= 1.0
    assert [index for index in seen if isinstance(index, torch.Tensor)][-1].shape == (5,)
