"""Lower precision of what is no plain float32: probabilities of layers in full, double in float32."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoopt.records import Change
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_strategies.compute.rewriting.layers import gives_full_probabilities, in_float32, sigmoids_in_full
from scripted import PLAIN, changed_lines, patched, sites_in

AMP = load_strategies()["amp"]


class Functional(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sigmoid()


class Reshaped(nn.Sequential):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x).squeeze(1), x


@pytest.mark.parametrize(
    ("model", "full"),
    [
        (nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), True),
        (Reshaped(nn.Linear(3, 1), nn.Sigmoid()), True),
        (nn.Linear(3, 1), False),
        (Functional(3, 1), False),
        (nn.Sequential(nn.Linear(3, 1), nn.Sigmoid(), Functional(1, 1)), False),
    ],
)
def test_probabilities_that_layers_give_may_be_in_full_precision(model: nn.Module, full: bool) -> None:
    x, classes = torch.randn(4, 3), [type(module) for module in model.modules()]
    assert gives_full_probabilities(model, lambda model: model(x), torch.bfloat16) is full
    assert [type(module) for module in model.modules()] == classes


@pytest.mark.parametrize(
    ("last", "full"), [(nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), True), (Functional(3, 1), False)]
)
def test_models_that_are_called_one_by_one_may_give_probabilities(last: nn.Module, full: bool) -> None:
    x, models = torch.randn(4, 3), nn.ModuleList([nn.Linear(3, 3), last])
    assert gives_full_probabilities(models, lambda both: both[1](both[0](x)), torch.bfloat16) is full


def test_a_logit_keeps_its_gradient_where_its_probability_is_in_full_precision() -> None:
    logit = torch.tensor([7.0], requires_grad=True)
    model = sigmoids_in_full(nn.Sequential(nn.Sigmoid()))
    F.binary_cross_entropy(model(logit.bfloat16()), torch.zeros(1)).backward()
    assert logit.grad.item() == pytest.approx(1.0, abs=0.01)
    assert model(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


SIGMOID = PLAIN.replace("model = nn.Linear(8, 2)", "model = nn.Sequential(nn.Linear(8, 2), nn.Sigmoid())").replace(
    "nn.functional.cross_entropy(out, y)", "nn.functional.binary_cross_entropy(out, y)"
)


def test_the_patch_gives_probabilities_in_full_precision(tmp_path: Path) -> None:
    case = sample_case(inspected={"amp": {"probabilities": "full", "bfloat16_channels_last": 0.5}})
    (setting,) = AMP.settings(case)
    assert setting == {"dtype": "bfloat16", "sigmoid": "float32"}
    sites = sites_in(tmp_path, SIGMOID, model="nn.Sequential(")
    _, patch = patched(tmp_path, SIGMOID, Change(strategy="amp", setting=setting), sites=sites)
    lines = changed_lines(patch.diff)
    assert "+    sigmoids_in_full(model)" in lines
    assert any("autocast" in line for line in lines)


def test_a_double_model_computes_in_float32_and_takes_and_gives_double() -> None:
    plain = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    single = in_float32(copy.deepcopy(plain)).double()  # as a script may say below the line that makes it
    x, counts = torch.randn(4, 3, dtype=torch.float64), torch.arange(3)
    losses = [model(x).square().sum() for model in (plain, single)]
    for loss in losses:
        loss.backward()
    assert losses[1].dtype == torch.float64
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)
    assert {each.grad.dtype for each in single.parameters()} == {torch.float32}
    assert in_float32(nn.Identity())(counts).dtype == counts.dtype


DOUBLE = PLAIN.replace("model = nn.Linear(8, 2)", "model = nn.Linear(8, 2).double()")


def test_the_patch_of_a_double_model_says_float32(tmp_path: Path) -> None:
    case = sample_case(inspected={"amp": {"float32": 0.5}})
    double = case.workload.model.model_copy(update={"dtypes": ("float64",)})
    case = replace(case, workload=case.workload.model_copy(update={"model": double}))
    assert AMP.applies(case)
    (setting,) = AMP.settings(case)
    assert setting == {"dtype": "float32"}
    sites = sites_in(tmp_path, DOUBLE, model="nn.Linear(8, 2).double(")
    _, patch = patched(tmp_path, DOUBLE, Change(strategy="amp", setting=setting), sites=sites)
    assert "+    in_float32(model)" in changed_lines(patch.diff)
    assert "autocast" not in patch.diff
