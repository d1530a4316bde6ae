"""``torch.compile`` in place: something is compiled, whatever the module's class, and storms are noticed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autoopt.benchmark.compiling import AGAIN, compilations, compile_in_place, compile_model, trouble
from autoopt.setup import Compile

Graphs = list[torch.fx.GraphModule]


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    """Graphs that torch found to compile; they are not compiled any further, which would take seconds."""
    import torch._dynamo
    from torch._dynamo.utils import counters, guard_failures

    seen: Graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    compiler = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, mode=None, **options: compiler(function, backend=backend, **options)
    )
    torch._dynamo.reset()
    counters.clear()
    guard_failures.clear()
    yield seen
    torch._dynamo.reset()
    counters.clear()
    guard_failures.clear()


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class Branching(Own):
    """Python that decides by a number: another graph for each."""

    def forward(self, x: torch.Tensor, number: int = 0) -> torch.Tensor:
        return super().forward(x) + number * 1.5 if number % 2 else super().forward(x) - f"{number}".count("1")


KINDS = {
    "of the user": Own,
    "Sequential": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    "of torch": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_of_any_class_is_compiled(kind: str, graphs: Graphs) -> None:
    torch.manual_seed(0)
    module = KINDS[kind]()
    names = [*module.state_dict()]
    x = torch.randn(2, 3, 4)
    expected = module(x)
    compile_in_place(module)
    torch.testing.assert_close(module(x), expected)
    assert len(graphs) == 1
    assert [*module.state_dict()] == names
    assert trouble() is None


def test_hooks_of_a_compiled_module_still_run() -> None:
    module, seen = nn.Sequential(nn.Linear(4, 4)), []
    module.register_forward_hook(lambda *_: seen.append(1))
    compile_in_place(module)
    module(torch.randn(2, 4))
    assert seen


def test_a_copy_of_a_compiled_module_computes_with_weights_of_its_own() -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    compile_in_place(module)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(torch.ones(1, 4)).abs().max() == 0
    assert module(torch.ones(1, 4)).abs().max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_repeats_is_compiled_once(kind: str, graphs: Graphs) -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList(KINDS[kind]() for _ in range(4))})
    compile_model(model, Compile(regional=True))
    x = torch.randn(2, 3, 4, requires_grad=True)
    for block in model["blocks"]:
        x = block(x)
    assert len(graphs) == 1
    assert compilations() == 1


def test_nothing_compiled_is_told() -> None:
    assert str(trouble()).startswith("torch.compile compiled nothing")


def test_a_storm_of_compilations_is_told_with_its_reason() -> None:
    module = Branching()
    compile_in_place(module, dynamic=False)
    for number in range(1, 12):
        module(torch.randn(2, 4), number)
    told = str(trouble())
    assert told.startswith(AGAIN)
    assert "number" in told


def test_a_few_shapes_are_no_storm() -> None:
    module = Own()
    compile_in_place(module)
    for number in range(1, 5):
        module(torch.randn(number, 4))
    assert compilations() > 1
    assert trouble() is None
