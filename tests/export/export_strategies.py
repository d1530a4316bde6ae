"""Strategies that set anything, with transforms of every printable form."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from autoopt import Recipe, Risk, Setup, Strategy

SCALE = 1.0


class Cached(Dataset[Any]):
    """Every sample is read once."""

    def __init__(self, dataset: Any) -> None:
        self.samples = [dataset[index] for index in range(len(dataset))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def cached(dataset: Any) -> Any:
    return Cached(dataset) if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") else dataset


# Twice the loss, twice the gradient.
def scaled(loss: Any, factor: float = SCALE) -> Any:
    def wrapped(model: Any, batch: Any) -> Any:
        return loss(model, batch) * factor

    return wrapped


@dataclass(frozen=True)
class Wider:
    """Adds a learnable scale to the output."""

    start: float = 1.0

    def __call__(self, model: Any) -> Any:
        model.scale = torch.nn.Parameter(torch.tensor(self.start))
        model.register_forward_hook(_times_scale)
        return model


def _times_scale(module: Any, inputs: Any, output: Any) -> Any:
    return output * module.scale


def decayed(factory: Any, *, weight_decay: float) -> Any:
    def made(params: Any) -> Any:
        optimizer = factory(params)
        for group in optimizer.param_groups:
            group["weight_decay"] = weight_decay
        return optimizer

    return made


def counted(step: Any) -> Any:
    calls = []

    def wrapped(batches: Any) -> Any:
        calls.append(len(batches))
        return step(batches)

    return wrapped


@dataclasses.dataclass(frozen=True)
class Times:
    collate: Any
    factor: float

    def __call__(self, samples: Any) -> Any:
        inputs, *others = self.collate(samples)
        return [inputs * self.factor, *others]


@dataclasses.dataclass(frozen=True)
class Halved:
    """collate -> collate"""

    factor: float

    def __call__(self, collate: Any) -> Any:
        return Times(collate, self.factor)


class Backwards:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Any:
        return iter(list(self.sampler)[::-1])

    @property
    def generator(self) -> Any:
        return getattr(self.sampler, "generator", None)


def backwards(sampler: Any, dataset: Any, batch_size: int) -> Any:
    """The last sample first."""
    return Backwards(sampler)


class Anything(Strategy):
    """``setting`` holds keywords by method of ``Setup``."""

    name = "anything"
    risk = Risk.TRAINING

    def apply(self, setup: Setup, setting: dict[str, Any]) -> Setup:
        for method, keywords in setting.items():
            setup = getattr(setup, method)(**keywords)
        return setup

    def recipe(self, setting: dict[str, Any]) -> Recipe:
        return Recipe(pytorch="loader = DataLoader(...)", lightning={"precision": "bf16-mixed"})


class Transforming(Strategy):
    """Every kind of transform at once, those that ``setting`` names."""

    name = "transforming"
    risk = Risk.MODEL
    title = "Everything else"

    def apply(self, setup: Setup, setting: dict[str, Any]) -> Setup:
        made = {
            "dataset": cached,
            "loss": functools.partial(scaled, factor=1.5),
            "model": Wider(start=0.5),
            "optimizer": functools.partial(decayed, weight_decay=0.01),
            "step": counted,
            "collate": Halved(0.5),
            "sampler": backwards,
        }
        for part in setting["parts"]:
            setup = getattr(setup, f"with_{part}")(made[part])
        return setup


class Hidden(Strategy):
    """A transform that cannot be printed."""

    name = "hidden"

    def apply(self, setup: Setup, setting: dict[str, Any]) -> Setup:
        return setup.with_model(lambda model: model)

    def recipe(self, setting: dict[str, Any]) -> Recipe:
        raise RuntimeError("no recipe today")
