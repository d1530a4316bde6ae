"""Hand-written attention: four spellings are rewritten and equal, what only looks like it is left alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoopt_strategies.compute.attention.arguments import bound, described
from autoopt_strategies.compute.attention.replace import SayAttention, replace_attention
from autoopt_strategies.compute.attention.survey import survey
from autoopt_strategies.compute.attention.trace import Refused

BATCH, LENGTH, WIDTH, HEADS = 2, 12, 16, 4


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.attn_dropout = nn.Dropout(0.1)
        mask = torch.ones(LENGTH, LENGTH).tril()
        self.register_buffer("mask", mask.view(1, 1, LENGTH, LENGTH))

    def split(self, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return layer(x).view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)


class Einsum(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x, self.q), self.split(x, self.k), self.split(x, self.v)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (WIDTH // HEADS) ** -0.5
        weights = torch.softmax(scores, dim=-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))


class MatmulTranspose(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(x, layer).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        mixed = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out(mixed.transpose(1, 2).contiguous().view(x.shape))


class MaskedFillCausal(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (self.split(x, layer).transpose(1, 2) for layer in (self.q, self.k, self.v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        return self.out((att @ v).transpose(1, 2).contiguous().view(batch, length, width))


class AdditiveMaskDropout(Base):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (self.split(x, layer).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q.matmul(k.transpose(2, 3)) / math.sqrt(WIDTH // HEADS)
        if mask is not None:
            scores = scores + mask
        weights = F.dropout(scores.float().softmax(dim=-1).type_as(q), p=0.2, training=self.training)
        return self.out(weights.matmul(v).transpose(1, 2).reshape(x.shape))


class Bmm(Base):
    """Single heads, a scale on the queries, ``where`` for the mask, ``nn.Softmax``."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = nn.Softmax(dim=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x) * WIDTH**-0.5
        scores = torch.bmm(q, self.k(x).transpose(1, 2))
        keep = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        scores = torch.where(keep, scores, torch.tensor(-1e9))
        return self.out(torch.bmm(self.normalize(scores), self.v(x)))


class BmmPerSample(Base):
    """Single heads, a mask for each sample that is made from the input, in two steps."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ self.k(x).mT / 4 + bias
        padding = (bias.sum(-1, keepdim=True) > 1e6).transpose(1, 2)
        scores = scores.masked_fill(padding, float("-inf"))
        return self.out(scores.softmax(-1) @ self.v(x))


class OverQueries(MatmulTranspose):
    """Slots compete for keys: the softmax runs over the queries."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(x, layer).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        mixed = torch.matmul(F.softmax(scores, dim=-2), v)
        return self.out(mixed.transpose(1, 2).contiguous().view(x.shape))


class GivesWeights(MatmulTranspose):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(x, layer).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = F.softmax(torch.matmul(q, k.transpose(-2, -1)), dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(x.shape)) + weights.mean()


class SoftMask(MatmulTranspose):
    """Masked scores become 0, which leaves them a share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(x, layer).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-2, -1)).masked_fill(self.mask == 0, 0.0)
        return self.out(torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).reshape(x.shape))


class Capped(MatmulTranspose):
    """Scores pass through tanh, as in Gemma 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(x, layer).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = 5 * torch.tanh(torch.matmul(q, k.transpose(-2, -1)) / 5)
        return self.out(torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).reshape(x.shape))


class Classifier(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q(x).softmax(-1)


class Branches(MatmulTranspose):
    """Decides on a value, which cannot be traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1e9:
            return x
        return super().forward(x) + 0 * x.softmax(-1)


SAME = [Einsum, MatmulTranspose, MaskedFillCausal, AdditiveMaskDropout, Bmm]
OTHER = [OverQueries, GivesWeights, SoftMask, Capped, Classifier, Branches]


def made(kind: type[nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return kind(), torch.randn(BATCH, LENGTH, WIDTH)


def operators(module: nn.Module, *inputs: Any) -> list[str]:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Seen():
        module(*inputs)
    return seen


@pytest.mark.parametrize("kind", SAME)
def test_a_spelling_of_attention_is_rewritten_and_equal(kind: type[nn.Module]) -> None:
    module, x = made(kind)
    module.eval()
    plain = copy.deepcopy(module)
    names = [name for name, _ in module.named_parameters()]
    replace_attention(module, bound(module, (x,), {}))
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, got = plain(one), module(two)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    got.square().sum().backward()
    torch.testing.assert_close(two.grad, one.grad, rtol=1e-3, atol=1e-5)
    for a, b in zip(plain.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4)
    assert [name for name, _ in module.named_parameters()] == names
    assert any("scaled_dot_product" in name for name in operators(module, x))
    assert not any("softmax" in name and "scaled" not in name for name in operators(module.eval(), x))


@pytest.mark.parametrize("kind", OTHER)
def test_what_only_looks_like_attention_is_left_alone(kind: type[nn.Module]) -> None:
    module, x = made(kind)
    with pytest.raises(Refused):
        replace_attention(module, bound(module, (x,), {}))
    assert type(module) is kind


def test_a_causal_mask_is_recognized_and_any_length_still_works() -> None:
    module, x = made(MaskedFillCausal)
    plain = copy.deepcopy(module).eval()
    assert replace_attention(module, bound(module, (x,), {}))["causal"]
    module.eval()
    for length in (1, 5, LENGTH):
        torch.testing.assert_close(module(x[:, :length]), plain(x[:, :length]), rtol=1e-4, atol=1e-5)


def test_masks_for_each_sample_without_heads() -> None:
    module, x = made(BmmPerSample)
    bias = torch.randn(BATCH, LENGTH, LENGTH)
    plain = copy.deepcopy(module).eval()
    assert not replace_attention(module, bound(module, (x, bias), {}))["causal"]
    torch.testing.assert_close(module.eval()(x, bias), plain(x, bias), rtol=1e-4, atol=1e-5)
    assert any("scaled_dot_product" in name for name in operators(module, x, bias))


def test_without_a_mask_it_is_not_causal() -> None:
    module, x = made(Einsum)
    assert not replace_attention(module, bound(module, (x,), {}))["causal"]


def test_a_mask_that_is_given_is_used_and_another_way_of_calling_stays_as_it_was() -> None:
    module, x = made(AdditiveMaskDropout)
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH).masked_fill(torch.rand(BATCH, 1, LENGTH, LENGTH) < 0.3, -1e9)
    plain = copy.deepcopy(module).eval()
    replace_attention(module, bound(module, (x, mask), {}))
    module.eval()
    torch.testing.assert_close(module(x, mask=mask), plain(x, mask), rtol=1e-4, atol=1e-5)
    assert any("scaled_dot_product" in name for name in operators(module, x, mask))
    torch.testing.assert_close(module(x), plain(x))
    assert not any("scaled_dot_product" in name for name in operators(module, x))


def test_dropout_stays_in_training_and_goes_in_evaluation() -> None:
    module, x = made(AdditiveMaskDropout)
    replace_attention(module, bound(module, (x,), {}))
    module.train()
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_dropout_keeps_its_rate() -> None:
    """The mean over many draws is the output without dropout, and the spread that of the plain module."""
    module, x = made(AdditiveMaskDropout)
    plain = copy.deepcopy(module)
    replace_attention(module, bound(module, (x,), {}))
    with torch.no_grad():
        one = torch.stack([plain(x) for _ in range(600)])
        two = torch.stack([module(x) for _ in range(600)])
    torch.testing.assert_close(two.mean(0), one.mean(0), rtol=0, atol=0.05)
    torch.testing.assert_close(two.std(0).mean(), one.std(0).mean(), rtol=0.05, atol=0)


def test_a_copy_of_a_rewritten_model_has_weights_of_its_own() -> None:
    module, x = made(Einsum)
    replace_attention(module, bound(module, (x,), {}))
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(x).abs().max() == 0
    assert module(x).abs().max() > 0


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([MaskedFillCausal(), MaskedFillCausal(), Capped()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_a_model_is_surveyed_on_a_real_batch_and_rewritten_by_what_was_found() -> None:
    torch.manual_seed(0)
    model, x = Stack(), torch.randn(BATCH, LENGTH, WIDTH)
    found = survey(model, lambda: model(x))
    assert found["modules"] == ["blocks.*"] or found["modules"] == ["blocks.0", "blocks.1"]
    assert found["found"] == 2
    assert found["causal"] == 2
    assert list(found["refused"]) == ["blocks.2"]
    assert type(model.blocks[0]) is MaskedFillCausal
    plain = copy.deepcopy(model).eval()
    with pytest.warns(UserWarning, match="blocks.2") if found["modules"] == ["blocks.*"] else _nothing():
        SayAttention(tuple(found["modules"]), tuple(found["calls"]))(model)
    torch.testing.assert_close(model.eval()(x), plain(x), rtol=1e-4, atol=1e-5)


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_calls_are_plain_data() -> None:
    module, x = made(AdditiveMaskDropout)
    assert described(bound(module, (x,), {})) == {
        "x": {"shape": [BATCH, LENGTH, WIDTH], "dtype": "float32"},
        "mask": None,
    }


def test_a_plan_with_reduced_matmul_precision_does_not_refuse_what_is_equal() -> None:
    """Both ways are compared in full precision, and the process's own is put back."""
    seen: list[str] = []

    class Watched(Einsum):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_float32_matmul_precision())
            return super().forward(x)

    module, x = made(Watched)
    torch.set_float32_matmul_precision("high")
    try:
        replace_attention(module, bound(module, (x,), {}))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert "highest" in seen
