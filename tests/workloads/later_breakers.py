"""Breakers that the losses of a probe do not show, and honest changes that must not be taken for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from autoopt.records import JsonDict
from autoopt.setup import Setup
from autoopt.strategy import Risk
from workloads.breakers import BATCH, Breaker, hooked


@dataclass(frozen=True)
class Repeating:
    """Every second batch is the one before it, from the ninth batch on."""

    def __call__(self, dataset: TensorDataset) -> Dataset[Any]:
        return _Counting(
            dataset, lambda read, index, latest: latest if read // BATCH >= 9 and read // BATCH % 2 else index
        )


@dataclass(frozen=True)
class SubsetLater:
    """From the second epoch on an eighth of the samples stands for all."""

    def __call__(self, dataset: TensorDataset) -> Dataset[Any]:
        return _Counting(dataset, lambda read, index, latest: index // 8 if read >= len(dataset) else index)


class _Counting(Dataset[Any]):
    """A dataset that reads other samples than it is asked for, by how many it has given."""

    def __init__(self, inner: Any, choose: Callable[[int, int, int], int]) -> None:
        self._inner, self._choose, self._read, self._given = inner, choose, 0, [0] * BATCH

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        place = self._read % BATCH
        chosen = self._choose(self._read, index, self._given[place])
        self._given[place] = chosen
        self._read += 1
        return self._inner[chosen]


def skip_tenth(optimizer: torch.optim.Optimizer) -> None:
    """Takes the gradients away in every tenth step."""
    optimizer.calls = getattr(optimizer, "calls", 0) + 1
    if optimizer.calls % 10 == 0:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def without_decay(factory: Callable[..., Any]) -> Callable[..., Any]:
    def made(params: Any) -> torch.optim.Optimizer:
        optimizer = factory(params)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        return optimizer

    return made


class Averaged(nn.Sequential):
    """Evaluates with the average of the weights that it had."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__(*inner)
        self._average: list[torch.Tensor] = []

    def forward(self, x: Any) -> Any:
        now = [p.detach() for p in self.parameters()]
        if self.training:
            old = self._average or [p.clone() for p in now]
            self._average = [0.9 * a + 0.1 * p for a, p in zip(old, now, strict=True)]
            return super().forward(x)
        kept = [p.clone() for p in now]
        with torch.no_grad():
            for p, a in zip(self.parameters(), self._average or kept, strict=True):
                p.copy_(a)
            found = super().forward(x)
            for p, k in zip(self.parameters(), kept, strict=True):
                p.copy_(k)
        return found


class RepeatedBatches(Breaker):
    name = "repeated_batches"
    risk = Risk.EXACT

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_dataset(Repeating())


class SubsetOfLaterEpochs(Breaker):
    name = "subset_of_later_epochs"
    risk = Risk.EXACT

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_dataset(SubsetLater())


class SkippedUpdates(Breaker):
    name = "skipped_updates"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_optimizer(partial(hooked, skip_tenth))


class NoWeightDecay(Breaker):
    name = "no_weight_decay"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_optimizer(without_decay)


class AveragedInEvaluation(Breaker):
    name = "averaged_in_evaluation"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_model(Averaged)


class Noisy(nn.Sequential):
    """Evaluates with noise on what it says."""

    def forward(self, x: Any) -> Any:
        found = super().forward(x)
        return found if self.training else found + 2.0 * torch.randn_like(found)


class FrozenLater(nn.Sequential):
    """Trains its last layer alone from the 65th step on: no probe goes that far."""

    steps = 0

    def forward(self, x: Any) -> Any:
        self.steps += self.training
        if not self.training or self.steps <= 64:
            return super().forward(x)
        with torch.no_grad():
            for layer in list(self)[:-1]:
                x = layer(x)
        return self[-1](x)


def kick(optimizer: torch.optim.Optimizer) -> None:
    """Throws the weights about from the 193rd step on, at which the baseline has long reached its target."""
    optimizer.calls = getattr(optimizer, "calls", 0) + 1
    if optimizer.calls > 192:
        for group in optimizer.param_groups:
            group["lr"] = 10.0


class KickedLater(Breaker):
    name = "kicked_later"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_optimizer(partial(hooked, kick))


class NoisyEvaluation(Breaker):
    name = "noisy_evaluation"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_model(lambda inner: Noisy(*inner))


class LayersFrozenLater(Breaker):
    name = "layers_frozen_later"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_model(lambda inner: FrozenLater(*inner))


class Remembering(Dataset[Any]):
    """Gives every sample again as it was read first: augmentation that froze after the first epoch."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.known = inner, {}

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if index not in self.known:
            self.known[index] = self.inner[index]
        return self.known[index]


class FrozenAugmentation(Breaker):
    name = "frozen_augmentation"
    risk = Risk.EXACT

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_dataset(Remembering)


class LowerPrecision(Breaker):
    """Honest: bf16 autocast."""

    name = "lower_precision"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_precision(dtype="bfloat16")


class FewerThreads(Breaker):
    """Honest: another number of threads, which adds up in another order."""

    name = "fewer_threads"
    risk = Risk.EXACT

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_flags(threads=1)


class InPieces(Breaker):
    """Honest: half a batch at a time, two of them accumulated."""

    name = "in_pieces"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_batch(size=BATCH // 2, accumulation=2)


PROBED: tuple[Breaker, ...] = (
    RepeatedBatches(),
    SubsetOfLaterEpochs(),
    SkippedUpdates(),
    NoWeightDecay(),
    AveragedInEvaluation(),
    NoisyEvaluation(),
)
"""Breakers that losses of a probe do not show, and its digests, updates and metric do."""

LATER = LayersFrozenLater()
KICKED = KickedLater()
FROZEN = FrozenAugmentation()
PIECES = InPieces()

HONEST: tuple[Breaker, ...] = (LowerPrecision(), FewerThreads())
