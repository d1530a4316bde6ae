"""Strategies that are faster and spoil the training, and the workload that they spoil.

Each would be kept by whoever looks at throughput alone. ``BREAKERS`` is the table that tests run over.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from autoopt.records import JsonDict
from autoopt.setup import Setup
from autoopt.strategy import Risk, Strategy
from autoopt.workload import Target, Workload

FEATURES, CLASSES, BATCH = 16, 4, 32
TINY_LOSS = 1e-6
"""The loss is this much smaller than usual; Adam does not mind, fp16 gradients vanish."""


def points(samples: int, seed: int) -> TensorDataset:
    """Noisy points around class centres that the seed does not change."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    x = 0.45 * centres[y] + torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(x, y)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return TINY_LOSS * F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
    """Accuracy; looks at so many batches only where ``BREAKERS_BATCHES`` says so."""
    most = int(os.environ.get("BREAKERS_BATCHES", "1000000"))
    right = total = 0
    for number, (x, y) in enumerate(batches):
        if number >= most:
            break
        right += int((model(x).argmax(dim=1) == y).sum())
        total += len(y)
    return {"accuracy": right / total}


def build() -> Workload:
    return Workload(
        model=nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
        train_data=points(4096, seed=1),
        batch_size=BATCH,
        loss=loss,
        optimizer=partial(torch.optim.AdamW, lr=3e-3, eps=1e-15),
        valid_data=points(1024, seed=2),
        evaluate=evaluate,
        target=Target("accuracy", at_least=0.82),
        max_steps=256,
        evaluate_every=32,
    )


@dataclass(frozen=True)
class Shuffled:
    """A share of the labels belongs to other samples."""

    share: float = 0.25

    def __call__(self, dataset: TensorDataset) -> Dataset[Any]:
        x, y = dataset.tensors
        y = y.clone()
        count = int(self.share * len(y))
        y[:count] = y[torch.randperm(count, generator=torch.Generator().manual_seed(3))]
        return TensorDataset(x, y)


def skip_every_second(inner: Callable[..., Any]) -> Callable[..., Any]:
    calls = [0]

    def skipping(model: nn.Module, batch: Any) -> torch.Tensor:
        calls[0] += 1
        if calls[0] % 2 or not model.training:
            return inner(model, batch)
        with torch.no_grad():
            value = inner(model, batch)
        return value.requires_grad_()

    return skipping


def easiest_half(inner: Callable[..., Any]) -> Callable[..., Any]:
    def easy(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        with torch.no_grad():
            keep = F.cross_entropy(model(x), y, reduction="none").argsort()[: max(len(y) // 2, 1)]
        return inner(model, (x[keep], y[keep]))

    return easy


def hooked(hook: Callable[[torch.optim.Optimizer], None], factory: Callable[..., Any]) -> Callable[..., Any]:
    def made(params: Any) -> torch.optim.Optimizer:
        optimizer = factory(params)
        optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: hook(optimizer))
        return optimizer

    return made


def truncate(optimizer: torch.optim.Optimizer) -> None:
    """Keeps the first row of each gradient."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.dim() > 1:
                parameter.grad[1:] = 0


def freeze(model: nn.Sequential) -> nn.Sequential:
    for parameter in list(model.parameters())[:-2]:
        parameter.requires_grad_(False)
    return model


class _HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.half().float()


class _Half(nn.Module):
    """A layer whose gradients pass through fp16, as autocast without a gradient scaler has them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _HalfGradient.apply(self.inner(x))


def halve(model: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*(_Half(layer) if isinstance(layer, nn.Linear) else layer for layer in model))


class Breaker(Strategy):
    """Base: tells the true seconds of a step beside the untouched one."""

    risk: ClassVar[Risk] = Risk.NUMERIC
    step_factor: ClassVar[float] = 0.7


class ShuffledLabels(Breaker):
    name = "shuffled_labels"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_dataset(Shuffled())


class SkippedBackward(Breaker):
    name = "skipped_backward"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_loss(skip_every_second)


class HugeLearningRate(Breaker):
    name = "huge_learning_rate"
    risk = Risk.TRAINING

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_batch(learning_rate_factor=30.0)


class TruncatedGradients(Breaker):
    name = "truncated_gradients"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_optimizer(partial(hooked, truncate))


class EasySamplesOnly(Breaker):
    name = "easy_samples_only"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_loss(easiest_half)


class FewerEvaluated(Breaker):
    name = "fewer_evaluated"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_flags(env={"BREAKERS_BATCHES": "4"})


class FrozenWeights(Breaker):
    name = "frozen_weights"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_model(freeze)


class HugeBatch(Breaker):
    name = "huge_batch"
    risk = Risk.TRAINING
    step_factor = 16.0

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_batch(size=32 * BATCH)


class Fp16WithoutScaling(Breaker):
    name = "fp16_without_scaling"

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_model(halve)


BREAKERS: tuple[Breaker, ...] = (
    ShuffledLabels(),
    SkippedBackward(),
    HugeLearningRate(),
    TruncatedGradients(),
    EasySamplesOnly(),
    FewerEvaluated(),
    FrozenWeights(),
    HugeBatch(),
    Fp16WithoutScaling(),
)


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


class Augmented(Dataset[Any]):
    """Adds noise that is drawn anew whenever a sample is read."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        x, y = self.inner[index]
        return x + 0.1 * torch.randn(FEATURES), y


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


def build_augmented() -> Workload:
    workload = build()
    return dataclasses.replace(workload, train_data=Augmented(points(1024, seed=1)))


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
"""What losses of a probe do not show, and its digests, updates and metric do."""

LATER = LayersFrozenLater()
KICKED = KickedLater()
FROZEN = FrozenAugmentation()
PIECES = InPieces()

HONEST: tuple[Breaker, ...] = (LowerPrecision(), FewerThreads())
