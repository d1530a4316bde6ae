"""Modules that write an operator of torch's out, and modules that only look as if they did."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 16


class NewGELU(nn.Module):
    """minGPT's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class ErfGELU(nn.Module):
    """BERT's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The exact form."""
        half = x * 0.5
        return half * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Swish(nn.Module):
    """A part of it is a module of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


class Mish(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tanh(F.softplus(x))


class RMSNorm(nn.Module):
    """Llama's."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self._norm(x.float()).type_as(x)
        return output * self.gain


class PlainRMSNorm(nn.Module):
    """Without a weight; its epsilon is a number in its source."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-5)


class LayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-1, 1, WIDTH))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.variance_epsilon = 1e-12

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.variance_epsilon)
        return self.scale * x + self.shift


KNOWN: dict[type[nn.Module], str] = {
    NewGELU: 'return F.gelu(x, approximate="tanh")',
    ErfGELU: "return F.gelu(x)",
    Swish: "return F.silu(x)",
    Mish: "return F.mish(x)",
    RMSNorm: "return F.rms_norm(x, self.gain.shape, self.gain, eps=self.eps)",
    PlainRMSNorm: "return F.rms_norm(x, x.shape[-1:], eps=1e-05)",
    LayerNorm: "return F.layer_norm(x, self.scale.shape, self.scale, self.shift, eps=self.variance_epsilon)",
}


class QuickGELU(nn.Module):
    """CLIP's, which torch does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class WrongConstant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.0445 * torch.pow(x, 3.0))))


class LearnedSwish(nn.Module):
    """Its gate has a parameter, which happens to be one."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.beta * x)


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, self.slope * x)


class Counting(nn.Module):
    """It counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def count(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.count(x) * torch.sigmoid(x)


class Keeping(nn.Module):
    """It keeps its output for others."""

    last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * torch.sigmoid(x)
        return self.last


class Printing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("activations", x.shape)
        return x * torch.sigmoid(x)


class Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * torch.sigmoid(x), 0.1, self.training)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x) + 1e-3 * torch.randn_like(x)


class OnlyInTraining(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(x) if self.training else (x > 0).to(x.dtype)
        return x * gate


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(x)
        x *= gate
        return x


class UnbiasedNorm(nn.Module):
    """The annotated transformer's: another deviation, and the epsilon outside of the root."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a * (x - mean) / (std + self.eps) + self.b


class OverChannels(nn.Module):
    """A norm over the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * self.weight


OTHER: dict[type[nn.Module], str] = {
    QuickGELU: "differ",
    WrongConstant: "differ",
    LearnedSwish: "no native",
    Leaky: "no native",
    Counting: "keeps something",
    Keeping: "keeps something",
    Printing: "more than compute",
    Dropping: "dropout",
    Noisy: "other numbers each time",
    OnlyInTraining: "differ",
    InPlace: "writes into its input",
    UnbiasedNorm: "differ",
    OverChannels: "differ",
}


class Layers(nn.Module):
    """Two layers with an operator behind each."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.operators = nn.ModuleList(kind() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, operator in zip(self.layers, self.operators, strict=True):
            x = operator(layer(x))
        return x


class TextCNN(nn.Module):
    """Kim's classifier, without its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, 48, (size, 64)) for size in (3, 4, 5)])
        self.fc = nn.Linear(3 * 48, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unsqueeze(1)
        found = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        return self.fc(torch.cat([F.max_pool1d(each, each.size(2)).squeeze(2) for each in found], 1))
