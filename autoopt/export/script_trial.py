"""Tasks that train with the exported script in a trial's process, so that it can be compared like any plan."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.benchmark.loss_recorder import finite_losses
from autoopt.benchmark.transfer import samples_of
from autoopt.errors import WorkloadError
from autoopt.records import JsonDict
from autoopt.records.messages import Block, Startup

_FOREVER = "1000000"
_STEADY_STEPS = 5
_SCRIPTS: dict[str, _Script] = {}


class _Script:
    """The script's own training loop, step by step and without end."""

    def __init__(self, path: str, device: Any, seed: int) -> None:
        self.module = _loaded(Path(path))
        self.device = device
        self.words = [
            "--seed",
            str(seed),
            "--device",
            str(device),
            "--epochs",
            _FOREVER,
            "--evaluate-every",
            "1000000000",
        ]
        self.samples = self.steps = 0
        grouped = self.module.groups

        def counting(batches: Any, size: int) -> Iterator[Any]:
            for group in grouped(batches, size):
                self.samples += sum(samples_of(batch) or 1 for batch in group)
                yield group

        self.module.groups = counting
        self.run = self.module.train(self.module.arguments(self.words))

    def step(self) -> torch.Tensor:
        for _ in range(2):
            try:
                _, loss, _ = next(self.run)
            except StopIteration:  # a run of a fixed number of steps: once more from the start
                self.run = self.module.train(self.module.arguments(self.words))
                continue
            self.steps += 1
            kept: torch.Tensor = loss.clone()
            return kept
        raise WorkloadError("the exported script trained no step")

    def synchronize(self) -> None:
        self.device.synchronize()


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("optimized_train", path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["optimized_train"] = module
    spec.loader.exec_module(module)
    return module


def warm_up(live: Any, script: str, max_seconds: float) -> JsonDict:
    """Builds the script's training and trains until its steps are steady: a ``Startup``."""
    began = time.perf_counter()
    made = _SCRIPTS[script] = _Script(script, live.device, live.seed)
    losses = [made.step()]
    seconds: list[float] = []
    built = time.perf_counter()
    while built - began < max_seconds or len(seconds) < 1:
        at = time.perf_counter()
        losses.append(made.step())
        made.synchronize()
        seconds.append(time.perf_counter() - at)
        if _steady(seconds) or time.perf_counter() - began > max_seconds:
            break
    done = time.perf_counter()
    return Startup(
        build_seconds=0.0,
        setup_seconds=0.0,
        warmup_seconds=done - began,
        warmup_steps=made.steps,
        steady=_steady(seconds),
        fixed_seconds=max(done - began - made.steps * min(seconds), 0.0),
        losses=finite_losses(losses),
    ).model_dump(mode="json")


def _steady(seconds: list[float]) -> bool:
    """The last steps are no faster than those before them."""
    if len(seconds) < 2 * _STEADY_STEPS:
        return False
    last, before = sorted(seconds[-_STEADY_STEPS:]), sorted(seconds[-2 * _STEADY_STEPS : -_STEADY_STEPS])
    return last[_STEADY_STEPS // 2] > 0.9 * before[_STEADY_STEPS // 2]


def run_block(live: Any, script: str, seconds: float, min_steps: int = 1, ramp_seconds: float = 0.0) -> JsonDict:
    """Trains ``ramp_seconds`` unmeasured, then measures: a ``Block``."""
    made = _SCRIPTS[script]
    ramp = time.perf_counter()
    while time.perf_counter() - ramp < ramp_seconds:
        made.step()
    made.synchronize()
    first, samples, losses, times = made.steps, made.samples, [], []
    before = cpu_times(with_children=True)
    began = last = time.perf_counter()
    while made.steps - first < min_steps or last - began < seconds:
        losses.append(made.step())
        now = time.perf_counter()
        times.append(now - last)
        last = now
    made.synchronize()
    after = cpu_times(with_children=True)
    return Block(
        steps=made.steps - first,
        samples=made.samples - samples,
        seconds=time.perf_counter() - began,
        step_seconds=tuple(times),
        losses=finite_losses(losses),
        foreign_cpu_seconds=foreign_seconds(before, after),
        first_step=first,
    ).model_dump(mode="json")
