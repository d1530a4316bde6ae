"""A bare training loop that honours a Setup's transforms: real losses and curves without the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autoopt.records import Curve, CurvePoint
from autoopt.records.messages import TrainingRun
from autoopt.setup import Setup
from autoopt.workload import Workload


def train(workload: Workload, setup: Setup, seed: int, *, jitter: float = 0.0) -> TrainingRun:
    """Trains for as many samples as the workload's steps hold, evaluating as often as it says.

    ``jitter`` multiplies each gradient by ``1 + jitter * normal``: another arithmetic, as bf16 has.
    """
    model, factory, loss = workload.model, workload.optimizer, workload.loss
    dataset = workload.train_data
    for change in setup.dataset:
        dataset = change(dataset)
    for change in setup.model:
        model = change(model)
    for change in setup.optimizer:
        factory = change(factory)
    for change in setup.loss:
        loss = change(loss)
    optimizer = factory([p for p in model.parameters() if p.requires_grad])
    for group in optimizer.param_groups:
        group["lr"] *= setup.batch.learning_rate_factor
    size, noise = setup.batch.size or workload.batch_size, torch.Generator().manual_seed(seed + 17)
    x, y = dataset.tensors
    losses, points, reached, looked = [], [], False, 0
    batches = _batches(len(x), size, seed)
    limit = workload.max_steps * workload.batch_size // size
    every = max(workload.evaluate_every * workload.batch_size // size, 1)
    for step in range(1, limit + 1):
        index = next(batches)
        optimizer.zero_grad()
        value = loss(model, (x[index], y[index]))
        value.backward()
        for parameter in model.parameters():
            if parameter.grad is not None and jitter:
                parameter.grad *= 1 + jitter * torch.randn(parameter.grad.shape, generator=noise)
        optimizer.step()
        losses.append(float(value.detach()))
        if step % every == 0:
            metric, looked = _evaluate(workload, model, setup)
            points.append(CurvePoint(step=step, seconds=0.01 * step, metric=metric))
            if workload.target.reached(metric):
                reached = True
                break
    return TrainingRun(
        seed=seed,
        curve=Curve(seed=seed, points=tuple(points), reached=reached),
        seconds=0.01 * step,
        training_seconds=0.01 * step,
        evaluation_seconds=0.0,
        evaluations=len(points),
        evaluated_samples=looked,
        steps=step,
        samples=step * size,
        fixed_seconds=1.0,
        reached=reached,
        losses=tuple(losses),
    )


def _batches(samples: int, size: int, seed: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(samples, generator=generator).split(size)


def _evaluate(workload: Workload, model: Any, setup: Setup) -> tuple[float, int]:
    x, y = workload.valid_data.tensors
    looked = [0]

    def batches() -> Iterator[Any]:
        for start in range(0, len(x), 64):
            looked[0] += len(y[start : start + 64])
            yield x[start : start + 64], y[start : start + 64]

    with environment(setup.flags.get("env", {})), torch.no_grad():
        metric = workload.evaluate(model, batches())["accuracy"]
    return metric, looked[0]


@contextmanager
def environment(values: Any) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
