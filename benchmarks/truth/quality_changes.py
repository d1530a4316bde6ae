"""Changes whose truth is known: twenty that train otherwise, and twenty that do not but for rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from autoopt.records import JsonDict
from autoopt.setup import Setup
from autoopt.strategy import Risk, Strategy
from benchmarks.truth import quality_nets as nets

LATER = 100
"""Steps after which what breaks later does so: a probe records 64."""


class Change(Strategy):
    """One case: what it does to a setup, on which workload.

    Args:
        name: of the case.
        build: of the workload.
        change: ``change(setup) -> setup``.
        risk: the class that it claims.
    """

    def __init__(self, name: str, build: Callable[..., Any], change: Callable[[Setup], Setup], risk: Risk) -> None:
        self.name, self.build, self._change, self.risk = name, build, change, risk

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return self._change(setup)


def hooked(hook: Callable[[torch.optim.Optimizer, int], None]) -> Callable[[Setup], Setup]:
    """A hook before each step of the optimizer, with the number of the step."""

    def around(factory: Callable[..., Any]) -> Callable[..., Any]:
        def made(params: Any) -> torch.optim.Optimizer:
            optimizer, count = factory(params), [0]

            def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
                count[0] += 1
                hook(optimizer, count[0])

            optimizer.register_step_pre_hook(before)
            return optimizer

        return made

    return lambda setup: setup.with_optimizer(around)


def drop(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _skip_later(optimizer: torch.optim.Optimizer, step: int) -> None:
    if step > LATER and step % 3:
        drop(optimizer)


def _forget_momentum(every: int) -> Callable[[torch.optim.Optimizer, int], None]:
    def forget(optimizer: torch.optim.Optimizer, step: int) -> None:
        if step > 1 and step % every == 1:
            optimizer.state.clear()

    return forget


def without_decay(factory: Callable[..., Any]) -> Callable[..., Any]:
    def made(params: Any) -> torch.optim.Optimizer:
        optimizer = factory(params)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        return optimizer

    return made


def _each(kind: type, change: Callable[[Any], None]) -> Callable[[Setup], Setup]:
    """A change of every module of a kind."""

    def changed(model: nn.Module) -> nn.Module:
        for module in model.modules():
            if isinstance(module, kind):
                change(module)
        return model

    return lambda setup: setup.with_model(changed)


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda module: setattr(module, name, value)


def _other_length(factory: Callable[..., Any]) -> Callable[..., Any]:
    return lambda optimizer, total_steps: factory(optimizer, 3 * total_steps // 2)


def _loss(loss: Callable[..., torch.Tensor]) -> Callable[[Setup], Setup]:
    return lambda setup: setup.with_loss(lambda inner: loss)


def _smoothed(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def _in_bf16(model: nn.Module, batch: Any) -> torch.Tensor:
    return nets.by_probabilities(model, batch, torch.bfloat16)


def _easiest(model: nn.Module, batch: Any) -> torch.Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses.sort().values[: max(len(losses) // 2, 1)].mean()


def _biased(share: float) -> Callable[[Setup], Setup]:
    """The gradient has a constant added, in the direction of the parameters at first, whatever the batch."""

    def around(inner: Callable[..., Any]) -> Callable[..., Any]:
        directions: list[torch.Tensor] = []

        def biased(model: nn.Module, batch: Any) -> torch.Tensor:
            parameters = list(model.parameters())
            if not directions:
                generator = torch.Generator().manual_seed(5)
                drawn = [torch.randn(p.shape, generator=generator) for p in parameters]
                length = sum(float(d.square().sum()) for d in drawn) ** 0.5
                directions.extend(share * d / length for d in drawn)
            loss = inner(model, batch)
            shift = sum((d * p).sum() for d, p in zip(directions, parameters, strict=True))
            return loss + shift - (shift.detach() if isinstance(shift, torch.Tensor) else 0.0)

        return biased

    return lambda setup: setup.with_loss(around)


class Noise(torch.autograd.Function):
    """Adds noise to a gradient that has so many times its length."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
        ctx.size, ctx.generator = size, generator
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        drawn = torch.randn(gradient.shape, generator=ctx.generator)
        return gradient + ctx.size * gradient.norm() / drawn.norm() * drawn, None, None


def noisy(size: float) -> Callable[[Setup], Setup]:
    """Unbiased noise on the gradients of what each linear and convolution layer gives on."""

    def changed(model: nn.Module) -> nn.Module:
        generator = torch.Generator().manual_seed(11)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_hook(
                    lambda m, i, out: Noise.apply(out, size, generator) if out.requires_grad else out
                )
        return model

    return lambda setup: setup.with_model(changed)


class Averaged(nn.Module):
    """Evaluates with an average of the weights that lags behind, as one that was not updated does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self._average = inner, [p.detach().clone() for p in inner.parameters()]

    def forward(self, x: Any) -> Any:
        if self.training:
            for a, p in zip(self._average, self.inner.parameters(), strict=True):
                a.lerp_(p.detach(), 0.002)
            return self.inner(x)
        kept = [p.detach().clone() for p in self.inner.parameters()]
        with torch.no_grad():
            for p, a in zip(self.inner.parameters(), self._average, strict=True):
                p.copy_(a)
            found = self.inner(x)
            for p, k in zip(self.inner.parameters(), kept, strict=True):
                p.copy_(k)
        return found


class FrozenLater(nn.Module):
    """Trains its last layer alone after some steps."""

    def __init__(self, inner: nn.Sequential, later: int = LATER) -> None:
        super().__init__()
        self.inner, self.later, self.steps = inner, later, 0

    def forward(self, x: Any) -> Any:
        self.steps += self.training
        if not self.training or self.steps <= self.later:
            return self.inner(x)
        with torch.no_grad():
            for layer in list(self.inner)[:-1]:
                x = layer(x)
        return self.inner[-1](x)


class HalfEvaluated(nn.Module):
    """In evaluation, every second sample is told by the one before it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x) if self.training else self.inner(x[::2]).repeat_interleave(2, dim=0)[: len(x)]


class Reading(Dataset[Any]):
    """Reads other samples than it is asked for: ``choose(index, reads so far, length) -> index``."""

    def __init__(self, inner: Any, choose: Callable[[int, int, int], int]) -> None:
        self.inner, self.choose, self.reads = inner, choose, 0

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.inner[self.choose(index, self.reads - 1, len(self.inner))]


class Remembering(Dataset[Any]):
    """Gives each sample again as it was read first: draws that are frozen."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.known = inner, {}

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if index not in self.known:
            self.known[index] = self.inner[index]
        return self.known[index]


def reading(choose: Callable[[int, int, int], int]) -> Callable[[Setup], Setup]:
    return lambda setup: setup.with_dataset(lambda dataset: Reading(dataset, choose))


def _shuffled(dataset: TensorDataset) -> TensorDataset:
    x, y = dataset.tensors
    y = y.clone()
    count = len(y) // 4
    y[:count] = y[torch.randperm(count, generator=torch.Generator().manual_seed(3))]
    return TensorDataset(x, y)


class SameOrder:
    """The order of the first epoch in each: a sampler that is not told its epoch."""

    def __init__(self, length: int) -> None:
        self._order = torch.randperm(length, generator=torch.Generator().manual_seed(0)).tolist()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Any:
        return iter(self._order)


def _unclipped(step: Any) -> Any:
    step.clip, step._plain_update = None, step.scaler is None
    return step.train


def _fused(factory: Callable[..., Any]) -> Callable[..., Any]:
    def made(params: Any) -> torch.optim.Optimizer:
        optimizer = factory(params)
        for group in optimizer.param_groups:
            group["foreach"], group["fused"] = False, True
        optimizer.defaults |= {"foreach": False, "fused": True}
        return optimizer

    return made


def _channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)


EXACT, NUMERIC = Risk.EXACT, Risk.NUMERIC


def bf16(setup: Setup) -> Setup:
    return setup.with_precision(dtype="bfloat16")


BROKEN: tuple[Change, ...] = (
    Change("frozen_statistics", nets.images, _each(nn.BatchNorm2d, _set("momentum", 0.0)), NUMERIC),
    Change("schedule_of_another_length", nets.images_scheduled, lambda s: s.with_scheduler(_other_length), EXACT),
    Change("second_epoch_of_a_subset", nets.images, reading(lambda i, n, c: i // 8 if n >= c else i), EXACT),
    Change("subset_after_four_epochs", nets.images, reading(lambda i, n, c: i // 8 if n >= 4 * c else i), EXACT),
    Change("same_order_each_epoch", nets.tabular, lambda s: s.with_sampler(lambda o, d, b: SameOrder(len(o))), EXACT),
    Change("dropped_last_batch", nets.tabular_48, lambda s: s.with_loader(drop_last=True), EXACT),
    Change("frozen_draws", nets.images_augmented, lambda s: s.with_dataset(Remembering), EXACT),
    Change("shuffled_labels", nets.tabular, lambda s: s.with_dataset(_shuffled), EXACT),
    Change("biased_gradient", nets.images, _biased(0.03), NUMERIC),
    Change("label_smoothing", nets.transformer, _loss(_smoothed), NUMERIC),
    Change("loss_in_low_precision", nets.images_by_probabilities, _loss(_in_bf16), NUMERIC),
    Change("easiest_half", nets.tabular, _loss(_easiest), NUMERIC),
    Change("no_weight_decay", nets.images, lambda s: s.with_optimizer(without_decay), NUMERIC),
    Change("doubled_dropout", nets.transformer, _each(nn.Dropout, _set("p", 0.2)), NUMERIC),
    Change("stale_average_in_evaluation", nets.tabular, lambda s: s.with_model(Averaged), NUMERIC),
    Change("half_of_the_evaluation", nets.images, lambda s: s.with_model(HalfEvaluated), NUMERIC),
    Change("no_clipping", nets.images_clipped, lambda s: s.with_step(_unclipped), NUMERIC),
    Change("momentum_forgotten_each_epoch", nets.images, hooked(_forget_momentum(32)), NUMERIC),
    Change("steps_skipped_later", nets.images, hooked(_skip_later), NUMERIC),
    Change("layers_frozen_later", nets.tabular, lambda s: s.with_model(FrozenLater), NUMERIC),
)

HONEST: tuple[Change, ...] = (
    Change("bf16_images", nets.images, bf16, NUMERIC),
    Change("bf16_images_batch_8", nets.images_8, bf16, NUMERIC),
    Change("bf16_images_scheduled", nets.images_scheduled, bf16, NUMERIC),
    Change("bf16_images_clipped", nets.images_clipped, bf16, NUMERIC),
    Change("bf16_tabular", nets.tabular, bf16, NUMERIC),
    Change("bf16_tabular_batch_512", nets.tabular_512, bf16, NUMERIC),
    Change("bf16_transformer", nets.transformer, bf16, NUMERIC),
    Change("bf16_gan", nets.gan, bf16, NUMERIC),
    Change("channels_last_images", nets.images, lambda s: s.with_model(_channels_last), NUMERIC),
    Change("channels_last_bf16_images", nets.images, lambda s: bf16(s.with_model(_channels_last)), NUMERIC),
    Change("fused_images", nets.images, lambda s: s.with_optimizer(_fused), NUMERIC),
    Change("fused_recurrent", nets.recurrent, lambda s: s.with_optimizer(_fused), NUMERIC),
    Change("fused_transformer", nets.transformer, lambda s: s.with_optimizer(_fused), NUMERIC),
    Change("fused_gan", nets.gan, lambda s: s.with_optimizer(_fused), NUMERIC),
    Change("attention_in_one_call", nets.transformer, _each(nets.Attention, _set("fused", True)), NUMERIC),
    Change("compiled_tabular", nets.tabular_512, lambda s: s.with_compile(), NUMERIC),
    Change("workers_with_augmentation", nets.images_augmented, lambda s: s.with_loader(num_workers=2), EXACT),
    Change("workers_tabular", nets.tabular, lambda s: s.with_loader(num_workers=2), EXACT),
    Change("evaluation_in_larger_batches", nets.recurrent, lambda s: s.with_evaluation(batch_size=512), EXACT),
    Change("pieces_tabular_batch_512", nets.tabular_512, lambda s: s.with_batch(size=128, accumulation=4), NUMERIC),
)
