"""The loss compiled with the model: one graph of both, and the same losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from autoopt.benchmark.compiling import compilations
from autoopt.records import Trial
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case, tiny_workload, train_few_steps

COMPILE = load_strategies()["compile"]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are traced and run as they are: no kernels are made, which takes long."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_model_and_loss_are_one_graph_with_the_same_losses() -> None:
    usual = train_few_steps(tiny_workload(), Setup())
    before = compilations()
    found = train_few_steps(tiny_workload(), COMPILE.apply(Setup(), {"mode": "default", "loss": True}))
    assert compilations() == before + 1, "the model is a part of the loss's graph, not a graph of its own"
    assert found == pytest.approx(usual, rel=1e-5)


def test_the_loss_is_compiled_once_the_model_has_paid() -> None:
    trial: Any = Trial.model_construct(verdict="kept", reason="")
    case = sample_case()
    settings: Any = COMPILE.settings(case)
    first = next(settings)
    found = [settings.send(trial)]
    while "loss" not in found[-1]:
        found.append(settings.send(trial))
    assert first.get("regional"), "blocks that repeat come first, and leave the loss as it is"
    assert found[-1] == {"mode": "default", "loss": True}
