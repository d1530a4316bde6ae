"""Modules with hand-written attention, or with what only looks like it, and whether it is fused and trains alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from autoopt_strategies.compute.rewriting.attention import survey_attention
from autoopt_strategies.compute.rewriting.attention_source import statements
from autoopt_strategies.compute.rewriting.source import rewrite_functions
from autoopt_strategies.compute.rewriting.survey import NoDropout

WIDTH = 16


def rewrite(model: nn.Module, *args: Any) -> dict[str, Any]:
    """Edits the attention of a model in place, as far as it is checked on a call of the model."""

    def run() -> None:
        with torch.no_grad(), torch.random.fork_rng():
            model(*args)

    found = survey_attention(model, run)
    rewrite_functions(model, found["functions"], statements)
    return found


class Functions(TorchFunctionMode):
    """Names of the functions that a forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def is_fused(module: nn.Module, *inputs: Any, **named: Any) -> bool:
    """Whether attention is asked for as one operator, and no softmax beside it."""
    with Functions() as functions:
        module(*inputs, **named)
    fused = any("scaled_dot_product" in name for name in functions.seen)
    assert not fused or not any("softmax" in name for name in functions.seen)
    return fused


def same_training(plain: nn.Module, rewritten: nn.Module, *inputs: Any) -> None:
    """Output and all gradients, without dropout."""
    for model in (plain, rewritten):
        model.zero_grad()
    with NoDropout():
        expected, got = plain(*inputs), rewritten(*inputs)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    for out in (expected, got):
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    for a, b in zip(plain.parameters(), rewritten.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def parts(self, x: torch.Tensor) -> Any:
        return (layer(x).view(*x.shape[:2], 4, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))


class OverQueries(Base):
    """Slots compete for keys: the softmax runs over the queries."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = q @ k.transpose(-2, -1) / 2.0
        return scores.softmax(-2) @ v


class GivesWeights(Base):
    """As the annotated Transformer does: a mask and a dropout that are given, and the probabilities, too."""

    def forward(self, x: torch.Tensor, mask: Any = None, dropout: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.parts(x)
        scores = torch.matmul(q, k.transpose(-2, -1)) / 2.0
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = F.softmax(scores, dim=-1)
        if dropout is not None:
            weights = dropout(weights)
        return torch.matmul(weights, v), weights


class GivesBoth(Base):
    """The same in two statements."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: Any = None, dropout: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.parts(x)
        weights = self.drop(F.softmax(torch.matmul(q / 2.0, k.transpose(2, 3)), dim=-1))
        output = torch.matmul(weights, v)
        return output, weights


class Asks(nn.Module):
    """Takes what an attention gives; ``uses``: computes with its probabilities."""

    def __init__(self, attention: nn.Module, uses: bool = False) -> None:
        super().__init__()
        self.attention, self.drop, self.uses, self.seen = attention, nn.Dropout(0.1), uses, None

    def forward(self, x: torch.Tensor) -> Any:
        mask = torch.ones(x.shape[1], x.shape[1]).tril()
        out, self.seen = self.attention(x, mask, dropout=self.drop)
        return out.sum() + (self.seen.square().sum() if self.uses else 0.0)  # type: ignore[union-attr]


class UsesWeights(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = q @ k.transpose(-2, -1) / 2.0
        weights = scores.softmax(-1)
        return weights @ v + weights.mean()


class KeepsScores(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = q @ k.transpose(-2, -1) / 2.0
        self.last = scores
        return scores.softmax(-1) @ v


class SoftMask(Base):
    """Masked scores become 0, which leaves them a share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = q @ k.transpose(-2, -1) / 2.0
        future = torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
        return scores.masked_fill(future, 0.0).softmax(-1) @ v


class Capped(Base):
    """Scores pass through tanh, as in Gemma 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = q @ k.transpose(-2, -1) / 2.0
        return (5 * torch.tanh(scores / 5)).softmax(-1) @ v


class Pooling(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.q(x).softmax(1) * x).sum(1)


class LinearAttention(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v)


class Gate(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q(x).softmax(-1) * self.v(x)


class UsesSdpa(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return F.scaled_dot_product_attention(q, k, v) * self.q(x)[:, None, :, :1].softmax(-1)


OTHER = {
    OverQueries: "runs over dimension -2",
    UsesWeights: "used a second time",
    KeepsScores: "second time",
    SoftMask: "leaves them a share",
    Capped: "tanh, which is not understood",
    Pooling: "runs over dimension 1|not understood",
    LinearAttention: "come from q",
    Gate: "not understood",
    UsesSdpa: "not understood",
}


class Window(Base):
    """A window that is wider than the batch is long: causal at that length alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = q @ k.transpose(-2, -1) / 2.0
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().triu(-20)
        return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v


class Padding(Base):
    """Keys that are padding get the lowest number; a sample of padding alone averages over all."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = q @ k.transpose(-2, -1) / 2.0
        scores = scores.masked_fill(~keep[:, None, None, :], torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ v
