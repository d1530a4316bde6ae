"""Layers that compute otherwise: dropout by random bits, probabilities in full precision, double in float32."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from autoopt.benchmark.fingerprint import without_draws
from autoopt.records import Change
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_strategies.compute.native_operators import NativeOperators
from autoopt_strategies.compute.rewriting import layers
from autoopt_strategies.compute.rewriting.layers import (
    BitDropout,
    calls_functions,
    draw_by_bits,
    dropout_by_bits,
    functions_by_bits,
    gives_full_probabilities,
    in_float32,
    sigmoids_in_full,
)
from scripted import PLAIN, changed_lines, patched, sites_in


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_many_elements_are_left_out_and_the_mean_stays(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(401, 503, dtype=dtype, requires_grad=True)
    found = BitDropout(p)(x)
    out = (found == 0).float()
    spread = (p * (1 - p) / out.numel()) ** 0.5
    assert out.mean().item() == pytest.approx(p, abs=4 * spread)
    assert found[found != 0].unique().item() == pytest.approx(1 / (1 - p), rel=1e-2)

    found.sum().backward()
    assert torch.equal(x.grad, found.detach())
    flat = out.flatten() - out.mean()
    for apart in (1, 2, 3, 4, 503):  # lanes of one drawn number, neighbours, and rows
        together = (flat[apart:] * flat[:-apart]).mean().item()
        assert abs(together) < 5 * p * (1 - p) / out.numel() ** 0.5


def test_what_is_no_training_or_leaves_nothing_out_is_torchs_own() -> None:
    x = torch.randn(3, 5)
    assert torch.equal(BitDropout(0.5).eval()(x), x)
    assert torch.equal(BitDropout(0.0)(x), x)
    assert not BitDropout(1.0)(x).any()
    assert BitDropout(0.5)(torch.randn(0, 4)).shape == (0, 4)
    assert BitDropout(0.5)(torch.randn(7, 5).t()).shape == (5, 7)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = BitDropout(0.5)(x)
        torch.manual_seed(1)
        assert torch.equal(BitDropout(0.5)(x), first)


def test_layers_of_other_classes_stay_and_a_model_keeps_its_state() -> None:
    class Own(nn.Dropout):
        pass

    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), Own(0.1), nn.Dropout(0.0), nn.Dropout1d(0.1))
    state = copy.deepcopy(model.state_dict())
    assert draw_by_bits(model) is model
    assert [type(module) for module in model[1:]] == [BitDropout, Own, nn.Dropout, nn.Dropout1d]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert type(copy.deepcopy(model)[1]) is BitDropout


@pytest.mark.parametrize(
    ("device", "p", "ratio", "there"),
    [("cpu", 0.1, 0.7, True), ("cpu", 0.1, 0.99, None), ("cpu", 0.0, 0.7, None), ("cuda", 0.1, 0.7, None)],
)
def test_it_is_offered_where_a_copy_was_faster(device: str, p: float, ratio: float, there: bool | None) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(p))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    batches = SimpleNamespace(
        model=model, loss=loss, autocast=None, next=lambda: [torch.randn(3, 4)], setup=SimpleNamespace()
    )
    live: Any = SimpleNamespace(
        training=batches,
        device=SimpleNamespace(kind=device),
        setup=SimpleNamespace(precision=SimpleNamespace(dtype=None)),
        ratio_with=lambda change, **_: ratio,
    )
    found = NativeOperators().inspect(live)
    assert found.get("dropout") is there
    assert found.get("ratio") == (ratio if there else None)


class Functional(nn.Module):
    """Calls the function, in a part of it that ``recomputes`` where that is so."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.recomputes = nn.Linear(16, 64), nn.Linear(64, 2), recomputes

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.relu(self.first(x)), 0.4, training=self.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = checkpoint(self.hidden, x, use_reentrant=False) if self.recomputes else self.hidden(x)
        return self.second(h)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Functional(), True),
        (Functional().eval(), False),
        (Functional(recomputes=True), False),
        (nn.Sequential(nn.Linear(16, 2), nn.Dropout(0.4)), False),
        (nn.Sequential(Functional(), nn.Dropout(0.4)), True),
    ],
)
def test_functions_are_those_outside_of_layers(model: nn.Module, found: bool) -> None:
    state = torch.get_rng_state()
    assert calls_functions(lambda: model(torch.randn(3, 16)).sum()) is found
    assert F.dropout is layers.PLAIN
    assert torch.equal(torch.get_rng_state(), state)


def test_functions_draw_bits_while_their_model_computes() -> None:
    seen = []

    class Noting(Functional):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(F.dropout)
            if len(x) == 1:
                raise ValueError("one row")
            return super().forward(x)

    model = functions_by_bits(Noting())
    model(torch.randn(3, 16)).sum().backward()
    with pytest.raises(ValueError, match="one row"):
        model(torch.randn(1, 16))
    assert seen == [dropout_by_bits] * 2
    assert F.dropout is layers.PLAIN
    x = torch.ones(200, 500)
    assert (dropout_by_bits(x, 0.4) == 0).float().mean().item() == pytest.approx(0.4, abs=0.01)
    assert torch.equal(dropout_by_bits(x, 0.4, training=False), x)


def test_nothing_is_drawn_where_gradients_are_compared() -> None:
    model, x = Functional(), torch.randn(3, 16)
    with without_draws(model):
        model.train()  # by the script's own lines
        plain, other = model(x), functions_by_bits(copy.deepcopy(model))(x)
        assert torch.equal(plain, other)
    assert F.dropout is layers.PLAIN
    assert not torch.equal(model(x), plain)


AMP = load_strategies()["amp"]


class ByFunction(nn.Linear):
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
        (ByFunction(3, 1), False),
        (nn.Sequential(nn.Linear(3, 1), nn.Sigmoid(), ByFunction(1, 1)), False),
    ],
)
def test_probabilities_that_layers_give_may_be_in_full_precision(model: nn.Module, full: bool) -> None:
    x, classes = torch.randn(4, 3), [type(module) for module in model.modules()]
    assert gives_full_probabilities(model, lambda model: model(x), torch.bfloat16) is full
    assert [type(module) for module in model.modules()] == classes


@pytest.mark.parametrize(
    ("last", "full"), [(nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), True), (ByFunction(3, 1), False)]
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
