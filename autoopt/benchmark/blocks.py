"""Short runs of training steps, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from autoopt.benchmark.compiling import compilations
from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.benchmark.training import Training
from autoopt.measurements import Block

Loss = torch.Tensor | float
Enough = Callable[[int, float], bool]
"""``enough(steps, seconds)``: whether a block may end."""


def run_block(training: Training, enough: Enough, *, ramp_seconds: float = 0.0) -> Block:
    """Trains until ``enough``, and measures.

    Args:
        training: goes on from where it stands.
        enough: asked after each step.
        ramp_seconds: trained first, unmeasured.
    """
    _ramp(training, ramp_seconds)
    device, clock = training.device, training.clock
    workers = bool(training.loader.loader.num_workers)
    device.reset_peak()
    retries, compiled = device.allocation_retries(), compilations()
    first, samples = training.steps, training.samples
    losses: list[Loss] = []
    before = cpu_times(with_children=workers)
    clock.start()
    while True:
        losses.append(kept(training.step(training.next()), training))
        if enough(len(losses), clock.elapsed()):
            break
    lap = clock.stop()
    after = cpu_times(with_children=workers)
    return Block(
        steps=training.steps - first,
        samples=training.samples - samples,
        seconds=lap.seconds,
        stage_seconds=lap.stages,
        step_seconds=tuple(lap.steps),
        losses=finite_losses(losses),
        cpu_seconds=max(after.own - before.own, 0.0),
        foreign_cpu_seconds=foreign_seconds(before, after),
        peak_memory_bytes=device.peak_bytes(),
        peak_host_memory_bytes=training.host_peak_bytes(),
        allocation_retries=device.allocation_retries() - retries,
        recompilations=compilations() - compiled,
        first_step=first,
    )


def _ramp(training: Training, seconds: float) -> None:
    if seconds <= 0:
        return
    training.clock.start()
    while training.clock.elapsed() < seconds:
        training.step(training.next())


def kept(loss: torch.Tensor, training: Training) -> Loss:
    """The loss for later. On the CPU its number; elsewhere reading it would wait for the device, so that
    it is a copy there (a replayed CUDA graph writes the next loss to the same place)."""
    return loss.item() if training.device.kind == "cpu" else loss.detach().clone()


def finite_losses(losses: Sequence[Loss]) -> tuple[float | None, ...]:
    """Losses as numbers, read from the device at once; None where not finite."""
    if not losses:
        return ()
    tensors = [loss.reshape(()).float() for loss in losses if isinstance(loss, torch.Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else ())
    values = [next(read) if isinstance(loss, torch.Tensor) else loss for loss in losses]
    return tuple(value if math.isfinite(value) else None for value in values)
