"""Rivals of autoopt's plan: the untouched script, all tips on, one line of compile with bf16.

Each arm is a process of its own. Those but autoopt's are plain loops that use nothing of the engine.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

CASES = Path(__file__).resolve().parent / "cases"
ARMS = ("untouched", "autoopt", "all_tips", "compile_bf16")
"""In the order of their first turns: compilers start last, for the time may be up before they have."""
TITLES = {
    "untouched": "untouched",
    "autoopt": "autoopt's plan",
    "all_tips": "all tips on",
    "compile_bf16": "torch.compile + bf16",
}


def load_case(name: str) -> ModuleType:
    """The module of a case.

    Raises:
        ImportError: it needs a package that is not installed.
    """
    if str(CASES) not in sys.path:
        sys.path.insert(0, str(CASES))  # cases share some code
    spec = importlib.util.spec_from_file_location(f"gpu_case_{name}", CASES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # loader workers find the dataset's class by it
    spec.loader.exec_module(module)
    return module


class Plain:
    """A training loop as a person writes it.

    Args:
        workload: the case's, freshly built.
        device: its name.
        tips: workers, pinned memory, TF32, channels-last, cuDNN's search and a fused optimizer as well.
        compiled: ``torch.compile`` and bf16 autocast.
    """

    def __init__(self, workload: Any, device: str, *, tips: bool = False, compiled: bool = False) -> None:
        import torch

        self.torch, self.workload, self.device = torch, workload, torch.device(device)
        self.losses: list[Any] = []
        on_cuda = self.device.type == "cuda"
        if tips:
            torch.backends.cudnn.benchmark = True
            torch.set_float32_matmul_precision("high")
        self.loader = loader_of(workload, tips=tips, pin=on_cuda)
        self.blocking = not tips
        self.model = workload.model.to(self.device)
        self.channels_last = tips and any(isinstance(m, torch.nn.Conv2d) for m in self.model.modules())
        if self.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.model.train()
        self.optimizer = workload.optimizer(self.model.parameters(), **({"fused": True} if tips else {}))
        self.steps = 0
        self.total = workload.max_steps or int(workload.max_epochs * len(self.loader))
        self.scheduler = workload.scheduler(self.optimizer, self.total) if workload.scheduler else None
        self.autocast = torch.autocast(self.device.type, torch.bfloat16) if compiled else nullcontext()
        self.forward = torch.compile(self.model) if compiled else self.model
        self.batches = iter(())

    def move(self, value: Any) -> Any:
        """A batch on the device."""
        if isinstance(value, dict):
            return {name: self.move(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.move(part) for part in value]
        if self.channels_last and value.dim() == 4:
            value = value.contiguous(memory_format=self.torch.channels_last)
        return value.to(self.device, non_blocking=not self.blocking)

    def next(self) -> Any:
        """The next batch, epoch after epoch."""
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return self.move(batch)

    def step(self) -> int:
        """One optimizer step; the samples in it."""
        batch = self.next()
        with self.autocast:
            loss = self.workload.loss(self.forward, batch)
        loss.backward()
        if self.workload.clip_grad_norm:
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.workload.clip_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None and self.steps < self.total:
            self.scheduler.step()
        self.steps += 1
        self.losses = [loss.detach()]
        return len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch[0])

    def evaluate(self) -> dict[str, float]:
        """The case's metrics as the model is now."""
        self.model.eval()
        with self.torch.no_grad(), self.autocast:
            found: dict[str, float] = self.workload.evaluate(self.model, map(self.move, valid_loader(self.workload)))
        self.model.train()
        return found


class Planned:
    """The workload under autoopt's plan, in the loop that the plan was measured with."""

    def __init__(self, build: Callable[[], Any], plan: Any, device: str) -> None:
        import autoopt

        self.losses: list[Any] = []
        self.training = autoopt.apply(build, plan, device=device)

    def step(self) -> int:
        before = self.training.samples
        self.losses = [self.training.step(self.training.next())]
        return int(self.training.samples - before)

    def evaluate(self) -> dict[str, float]:
        found: dict[str, float] = self.training.evaluate()
        return found


def loader_of(workload: Any, *, tips: bool, pin: bool) -> Any:
    """The loader as the user has it, or with as many workers as there are cores to spare and pinned memory."""
    from torch.utils.data import DataLoader

    data = workload.train_data
    given = isinstance(data, DataLoader)
    if given and not tips:
        return data
    dataset, batch = (data.dataset, data.batch_size) if given else (data, workload.batch_size)
    workers = min(8, len(os.sched_getaffinity(0))) if tips else 0
    more: dict[str, Any] = {"num_workers": workers, "pin_memory": pin, "persistent_workers": True} if tips else {}
    return DataLoader(dataset, batch_size=batch, shuffle=True, **more)


def valid_loader(workload: Any) -> Any:
    """The validation loader as the user has it."""
    from torch.utils.data import DataLoader

    data = workload.valid_data
    return data if isinstance(data, DataLoader) else DataLoader(data, batch_size=workload.batch_size)


def make(arm: str, module: ModuleType, device: str, *, toy: bool, plan: Any = None) -> Plain | Planned:
    """An arm, ready for its first step."""
    import torch

    build = module.build_toy if toy else module.build
    torch.manual_seed(0)
    if arm == "autoopt":
        return Planned(build, plan, device)
    return Plain(build(), device, tips=arm == "all_tips", compiled=arm in ("all_tips", "compile_bf16"))


class Served:
    """The arm of a trial's process (``benchmarks.sides``)."""

    def __init__(self, spec: Any, registry: Any) -> None:
        from autoopt.benchmark.device import open_device

        case, _, arm = spec.workload.partition(":")
        self.device, self.steps, self.samples = open_device(spec.device), 0, 0
        self.arm = make(arm, load_case(case), spec.device, toy=spec.flags["toy"], plan=spec.plan)

    def run(self, enough: Callable[[float], bool]) -> None:
        """Trains until ``enough(now)`` holds after a step."""
        while True:
            self.samples += self.arm.step()
            self.steps += 1
            if enough(time.perf_counter()):
                return

    def close(self) -> None:
        """The process ends with its trial."""


def train(served: Served, target: float, metric: str, every: int, max_seconds: float) -> dict[str, Any]:
    """A task: trains until ``metric`` is ``target`` or more; seconds from here on, evaluations included."""
    began = served.device.now()
    reached, found = False, None
    while not reached and served.device.now() - began < max_seconds:
        ends = served.steps + every
        served.run(lambda now, ends=ends: served.steps >= ends)  # type: ignore[misc]
        found = served.arm.evaluate()[metric]
        reached = found >= target
    return {"seconds": served.device.now() - began, "reached": reached, "metric": found}
