"""The least that a trial can be made of: builds a workload and trains it step by step. For tests of processes."""

from __future__ import annotations

import os
from typing import Any

from autoopt.errors import TrialFailed
from autoopt.loading.importing import load
from autoopt.loading.validation import build


class TrialContext:
    def __init__(self, spec: Any, registry: Any) -> None:
        self.spec, self.registry = spec, registry
        self.workload = build(load(spec.workload, spec.search_path))
        optimizer = self.workload.optimizer
        self.optimizer = optimizer(self.workload.model.parameters())
        self.batches = iter(self.workload.train_data)


def steps(live: TrialContext, count: int = 5) -> dict[str, Any]:
    """Trains; the loss of each step."""
    losses = []
    for _ in range(count):
        loss = live.workload.loss(live.workload.model, next(live.batches))
        live.optimizer.zero_grad()
        loss.backward()
        live.optimizer.step()
        losses.append(loss.item())
    return {"losses": losses}


def about(live: TrialContext) -> dict[str, Any]:
    """The process as it looks from inside."""
    import gc
    import signal
    import sys
    import tempfile

    import numpy as np
    import torch

    return {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "group": os.getpgid(0),
        "directory": os.getcwd(),
        "argv": sys.argv,
        "temporary": tempfile.gettempdir(),
        "environment": dict(os.environ),
        "stdin": os.read(0, 1).decode(),
        "uncollected": gc.get_freeze_count(),
        "terminal": any(os.isatty(number) for number in range(3)),
        "sigint_ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "random": [int(np.random.randint(1 << 30)), int(torch.randint(1 << 30, (1,)))],
        "hash": hash("a fixed text"),
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "torch_cuda": torch.cuda.is_initialized(),
    }


def descriptors(live: TrialContext) -> dict[str, Any]:
    """Which descriptors a child process of the user's gets, forked and executed."""
    import subprocess
    import sys

    code = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int))"
    executed = subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, text=True).stdout
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, str(sorted(int(name) for name in os.listdir("/proc/self/fd"))).encode())
        os._exit(0)
    return {"executed": executed, "forked": os.read(read, 4096).decode()}


def say(live: TrialContext, **arguments: Any) -> dict[str, Any]:
    print("said in a trial", flush=True)
    return arguments


def large(live: TrialContext, size: int) -> dict[str, Any]:
    return {"text": "x" * size}


def nothing(live: TrialContext) -> Any:
    return None


def not_json(live: TrialContext) -> dict[str, Any]:
    return {"value": object()}


def not_finite(live: TrialContext) -> dict[str, Any]:
    return {"value": float("nan")}


def says_why(live: TrialContext) -> dict[str, Any]:
    raise TrialFailed("not_finite", "the loss is NaN at step 3", where="step")


def fork_that_returns(live: TrialContext) -> dict[str, Any]:
    """A fork of the user's that comes back through autoopt's own code must not answer."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return {"pid": os.getpid()}


def fork_that_raises(live: TrialContext) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        raise ValueError("in the fork")
    os.waitpid(pid, 0)
    return {"pid": os.getpid()}


def spawn_tree(live: TrialContext) -> dict[str, Any]:
    """Processes in the group, in a session of their own, and orphaned; all busy."""
    import subprocess
    import sys

    busy = [sys.executable, "-c", "while True: pass"]
    first = subprocess.Popen(busy)
    second = subprocess.Popen(busy, start_new_session=True)
    subprocess.Popen(["sh", "-c", "setsid sh -c 'while :; do :; done' & exit 0"]).wait()
    return {"pids": [first.pid, second.pid]}


def imported(live: TrialContext, names: list[str]) -> dict[str, Any]:
    """The processes that imported modules, which each has kept; and what importing may have changed."""
    import random
    import sys

    modules = {name: getattr(sys.modules.get(name) or _loaded_from(name), "PID", None) for name in names}
    before = getattr(sys.modules.get("third_party"), "BEFORE", None)
    about = {"pid": os.getpid(), "environment": dict(os.environ), "random": random.random(), "before": before}
    return {**modules, **about}


def before(live: TrialContext, names: list[str]) -> dict[str, Any]:
    """What modules have noted down as they were imported."""
    import sys

    return {name: (sys.modules.get(name) or _loaded_from(name)).BEFORE for name in names}


def _loaded_from(name: str) -> Any:
    """A module that was imported by its path, under another name."""
    import sys

    return next(
        (m for m in list(sys.modules.values()) if str(getattr(m, "__file__", "")).endswith(f"/{name}.py")), None
    )
