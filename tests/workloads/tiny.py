"""A tiny MLP on generated data that builds in milliseconds, with a knob for everything that can break.

Knobs are environment variables, read in ``build()``:

* ``TINY_WORKERS`` (0), ``TINY_TARGET`` (0.9; ``none`` for a target without a value).
* ``TINY_SLOW`` (0): seconds that each training sample takes.
* ``TINY_FAULT``: what goes wrong (a key of ``FAULTS``), and ``TINY_AT``: at which call of the place
  where it goes wrong, counted from 1 (default 3).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import autoopt

FOREVER = 3600.0


def knob(name: str, default: int) -> int:
    return int(os.environ.get(f"TINY_{name}", default))


def raises(error: type[BaseException], words: str = "") -> Callable[[], None]:
    def raising() -> None:
        raise error(words)

    return raising


def bus_error() -> None:
    """Touches a page beyond the end of a file, which is what a full /dev/shm looks like."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        mapped[0] = 1


def hang() -> None:
    time.sleep(FOREVER)


def hang_hard() -> None:
    """Hangs with every signal that can be blocked blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
    time.sleep(FOREVER)


def spin() -> None:
    while True:
        pass


def recurse() -> None:
    recurse()


def print_a_lot() -> None:
    for _ in range(200):
        print("x" * 10_000)
        os.write(2, b'{"kind": "answer", "data": {}}\n')


def close_output() -> None:
    """Closes standard output and every low descriptor, as code that makes itself a daemon does."""
    sys.stdout.close()
    os.closerange(0, 64)


def set_handlers() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)


def start_threads() -> None:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(FOREVER,)).start()


def start_children() -> None:
    """A child, a grandchild in a session of its own, and an orphan: all outlive the process that made them."""
    subprocess.Popen(["sleep", str(int(FOREVER))])
    subprocess.Popen(["setsid", "sleep", str(int(FOREVER))])
    subprocess.Popen(["sh", "-c", f"sleep {int(FOREVER)} & exit 0"]).wait()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(FOREVER)
        os._exit(0)


def leave_shared_memory() -> None:
    from multiprocessing import resource_tracker, shared_memory

    segment = shared_memory.SharedMemory(create=True, size=1 << 20)
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
    KEPT.append(segment)


def leave_files() -> None:
    with open(os.path.join(tempfile.mkdtemp(), "left"), "wb") as file:
        file.write(b"x" * 1000)


def reseed() -> None:
    random.seed(1)
    torch.manual_seed(1)


KEPT: list[Any] = []
ON_DEVICE = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79.15 GiB, of which 1 GiB is free."
SHARED = "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"
LAUNCH = "CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later."

FAULTS: dict[str, tuple[str, Callable[[], object]]] = {
    f"{what}_in_{place}": (place, function)
    for place in ("build", "dataset", "collate", "loss", "backward", "optimizer", "evaluate")
    for what, function in {
        "error": raises(ValueError, "broken on purpose"),
        "segfault": lambda: ctypes.string_at(0),
        "bus_error": bus_error,
        "abort": os.abort,
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "os_exit": lambda: os._exit(7),
        "sys_exit": lambda: sys.exit(3),
        "hang": hang,
        "hard_hang": hang_hard,
        "spin": spin,
        "host_memory": lambda: torch.empty(1 << 60, dtype=torch.uint8),
        "python_memory": raises(MemoryError),
        "device_memory": raises(torch.OutOfMemoryError, ON_DEVICE),
        "shared_memory": raises(RuntimeError, SHARED),
        "device_lost": raises(RuntimeError, LAUNCH),
        "recursion": recurse,
        "prints": print_a_lot,
        "closed_output": close_output,
        "chdir": lambda: os.chdir("/"),
        "handlers": set_handlers,
        "threads": start_threads,
        "children": start_children,
        "shared_memory_left": leave_shared_memory,
        "files_left": leave_files,
        "reseed": reseed,
        "interrupt": raises(KeyboardInterrupt),
        "generator_exit": raises(GeneratorExit),
    }.items()
}
"""Name of a fault to the place where it strikes and what it does there: ``segfault_in_loss``, and so on.

Beside these, ``nan_in_loss`` and ``inf_in_loss`` spoil the loss from call ``TINY_AT`` on."""


class Trap:
    """Springs the fault of ``TINY_FAULT`` at the n-th call of its place."""

    def __init__(self) -> None:
        self.name = os.environ.get("TINY_FAULT", "")
        if self.name and self.name not in FAULTS and self.name not in ("nan_in_loss", "inf_in_loss"):
            raise KeyError(f"no such fault: {self.name}")
        self.at = knob("AT", 3)
        self.calls: dict[str, int] = {}

    @classmethod
    def unarmed(cls) -> Trap:
        trap = cls()
        trap.name = ""
        return trap

    def pass_by(self, place: str) -> None:
        self.calls[place] = self.calls.get(place, 0) + 1
        where, function = FAULTS.get(self.name, ("", hang))
        if where == place and self.calls[place] == (1 if place == "build" else self.at):
            function()

    def spoil(self, loss: torch.Tensor) -> torch.Tensor:
        if self.calls["loss"] >= self.at:
            return loss * {"nan_in_loss": float("nan"), "inf_in_loss": float("inf")}.get(self.name, 1.0)
        return loss


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points labelled by the sign of a fixed direction."""

    def __init__(self, trap: Trap, samples: int, seed: int, slow: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(samples, 16, generator=generator)
        self.y = (self.x[:, :8].sum(dim=1) > 0).long()
        self.trap = trap
        self.slow = slow

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.trap.pass_by("dataset")
        if self.slow:
            time.sleep(self.slow)
        return self.x[index], self.y[index]


class Collate:
    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def __call__(self, items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        self.trap.pass_by("collate")
        return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


class Passing(torch.autograd.Function):
    """The identity; its backward passes by the trap."""

    trap: Trap

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        Passing.trap.pass_by("backward")
        return gradient


class Sgd(torch.optim.SGD):
    trap: Trap

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        Sgd.trap.pass_by("optimizer")
        return super().step(closure)


def build() -> autoopt.Workload:
    trap = Trap()
    Passing.trap = Sgd.trap = trap
    trap.pass_by("build")

    def loss(model: torch.nn.Module, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        trap.pass_by("loss")
        value = F.cross_entropy(model(pair[0]), pair[1])
        return trap.spoil(Passing.apply(value) if trap.name.endswith("_in_backward") else value)

    def evaluate(model: torch.nn.Module, batches: Any) -> dict[str, float]:
        trap.pass_by("evaluate")
        right = total = 0
        for x, y in batches:
            right += int((model(x).argmax(dim=1) == y).sum())
            total += len(y)
        return {"accuracy": right / total}

    wanted = os.environ.get("TINY_TARGET", "0.9")
    loader = DataLoader(
        Points(trap, 512, seed=1, slow=float(os.environ.get("TINY_SLOW", "0"))),
        batch_size=32,
        shuffle=True,
        num_workers=knob("WORKERS", 0),
        collate_fn=Collate(trap),
        generator=torch.Generator().manual_seed(0),
    )
    return autoopt.Workload(
        model=torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)),
        train_data=loader,
        loss=loss,
        optimizer=lambda parameters: Sgd(parameters, lr=0.2, momentum=0.9),
        valid_data=DataLoader(Points(Trap.unarmed(), 128, seed=2), batch_size=64),
        evaluate=evaluate,
        target=autoopt.Target("accuracy", at_least=None if wanted == "none" else float(wanted)),
        max_steps=60,
        name="tiny",
    )
