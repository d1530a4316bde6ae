"""Tasks that train with the exported script in a trial's process, so that it can be compared like any plan."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.benchmark.losses import finite_losses
from autoopt.benchmark.steady import Steady, excess, find_steady
from autoopt.benchmark.warmup import PART_SECONDS, least_groups
from autoopt.errors import WorkloadError
from autoopt.records import Curve, CurvePoint, JsonDict
from autoopt.records.messages import Block, Startup, TrainingRun
from autoopt.workload import Target

ENDLESS = ("--epochs", "1000000", "--evaluate-every", "1000000000")
"""A training that is never evaluated and does not end."""

_SCRIPTS: dict[str, _Script] = {}


class _Script:
    """The script's own training loop, step by step.

    Args:
        words: of the command line, next to seed and device.
    """

    def __init__(self, path: str, device: Any, seed: int, words: tuple[str, ...] = ENDLESS) -> None:
        self.module = _loaded(Path(path))
        self.device = device
        self.words = ["--seed", str(seed), "--device", str(device), *words]
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


class _ScriptRun:
    """One training of the script to the target or to its own end, in legs (``autoopt.benchmark.run.RunUnderWay``).

    Evaluations count as part of the steps in which the script makes them.
    """

    def __init__(self, live: Any, script: str, max_seconds: float, target: float | None, confirm: int) -> None:
        began = time.perf_counter()
        self.live, self.max_seconds, self.wanted, self.confirm = live, max_seconds, target, confirm
        self.goal: Target | None = live.workload.target
        self.made = _Script(script, live.device, live.seed, ())
        self.loaded = time.perf_counter() - began
        self.seconds, self.over, self.there = 0.0, False, 0
        self.times: list[float] = []
        self.losses: list[torch.Tensor] = []
        self.points: list[CurvePoint] = []

    def go_on(self, seconds: float) -> bool:
        """Trains so many seconds more. True when it is over."""
        began = last = time.perf_counter()
        while not self.over and last - began < seconds:
            found = next(self.made.run, None)
            if found is None:
                self.over = True
                break
            now = time.perf_counter()
            self.times.append(now - last)
            last = now
            step, loss, metrics = found
            self.losses.append(loss.clone())
            self._evaluated(step, self.seconds + now - began, metrics)
            self.over = self.over or self.seconds + now - began >= self.max_seconds
        self.made.synchronize()
        self.seconds += time.perf_counter() - began
        return self.over

    def _evaluated(self, step: int, seconds: float, metrics: dict[str, Any]) -> None:
        if not metrics or self.goal is None:
            return
        metric = float(metrics[self.goal.metric])
        self.points.append(CurvePoint(step=step, seconds=seconds, metric=metric if math.isfinite(metric) else None))
        if self.wanted is None:
            return
        reached = metric >= self.wanted if self.goal.direction == "max" else metric <= self.wanted
        self.there = self.there + 1 if reached else 0
        self.over = self.there > self.confirm

    def document(self) -> TrainingRun:
        once, losses = excess(self.times), finite_losses(self.losses)
        return TrainingRun(
            seed=self.live.seed,
            curve=Curve(seed=self.live.seed, points=tuple(self.points)),
            seconds=self.seconds,
            training_seconds=self.seconds,
            evaluation_seconds=0.0,
            evaluations=len(self.points),
            steps=len(self.times),
            samples=self.made.samples,
            fixed_seconds=self.loaded + once,
            once_seconds=once,
            reached=None if self.wanted is None else self.there > self.confirm,
            finite=None not in losses,
            losses=losses,
        )


def train_leg(
    live: Any,
    script: str,
    seconds: float,
    max_seconds: float,
    target: float | None = None,
    confirm: int = 0,
    **_: Any,
) -> JsonDict:
    """Trains a leg of the script's own training; see ``autoopt.benchmark.tasks.train_leg``."""
    if live.under_way is None:
        live.under_way = _ScriptRun(live, script, max_seconds, target, confirm)
    over = live.under_way.go_on(seconds)
    run = live.under_way.document().model_dump() if over else None
    return {"over": over, "run": run, "seconds": live.under_way.seconds}


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
    made.synchronize()
    first, seconds = time.perf_counter() - began, list[float]()
    steady: Steady | None = None
    while steady is None and (not seconds or first + sum(seconds) < max_seconds):
        part = time.perf_counter() + PART_SECONDS
        while not seconds or time.perf_counter() < part:
            at = time.perf_counter()
            losses.append(made.step())
            made.synchronize()
            seconds.append(time.perf_counter() - at)
        steady = find_steady(seconds, least_groups(seconds))
    return Startup(
        build_seconds=0.0,
        setup_seconds=0.0,
        warmup_seconds=first + sum(seconds),
        warmup_steps=made.steps,
        steady=steady is not None,
        fixed_seconds=first + excess(seconds),
        losses=finite_losses(losses),
    ).model_dump()


def run_block(
    live: Any,
    script: str,
    seconds: float,
    min_steps: int = 1,
    ramp_seconds: float = 0.0,
    cycle: int = 1,
    ramp_steps: int = 0,
) -> JsonDict:
    """See ``autoopt.benchmark.tasks.run_block``."""
    made = _SCRIPTS[script]
    ramp, before_ramp = time.perf_counter(), made.steps
    while time.perf_counter() - ramp < ramp_seconds or made.steps - before_ramp < ramp_steps:
        made.step()
    made.synchronize()
    first, samples, losses, times = made.steps, made.samples, [], []
    before = cpu_times(with_children=True)
    began = last = time.perf_counter()
    while made.steps - first < min_steps or last - began < seconds or (made.steps - first) % cycle:
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
    ).model_dump()
