"""Libraries that the user's code imports, imported once in the fork server instead of in every trial.

Only what comes from ``site-packages``: the user's own code runs in trials alone. What importing changes beside the
modules must be what it changed in the trial, or the server goes on without them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from autoopt.benchmark import affinity
from autoopt.records import Record

NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Lets NVML answer whether there is a device, without touching it: a process that has cannot be forked."""

FORKABLE = {"jemalloc_bg_thd"}
"""Threads that may be missing in a trial: jemalloc (in pyarrow, and so below transformers' Trainer) holds its locks
while it is forked, and a child's allocator does without its background thread."""
UNIFIED_MEMORY = "/dev/nvidia-uvm"
_LIBRARIES = {"site-packages", "dist-packages"}


class Imports(Record):
    """Imports of a trial whose workload has been built.

    ``modules``: the file of each module by name, in the order of import. ``own``: top-level names of the workload and
    of custom strategies, wherever they are installed. ``variables``: environment variables that were set on the way;
    None: removed. ``environment``: as it was before.
    """

    modules: dict[str, str] = Field(default_factory=dict)
    own: tuple[str, ...] = ()
    variables: dict[str, str | None] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)


def imports(specs: Iterable[str], environment: dict[str, str]) -> Imports:
    """Imports of this process up to now.

    Args:
        specs: import strings of the workload and of custom strategies.
        environment: as it was when the process started.
    """
    return Imports(
        modules=dict(_files()),
        own=tuple(sorted({_top(spec.rpartition(":")[0]) for spec in specs})),
        variables=_changes(environment),
        environment=environment,
    )


def import_libraries(seen: Imports) -> None:
    """Imports the libraries among them; a module that cannot be imported is left out."""
    asks = os.environ.get(NVML)
    os.environ[NVML] = "1"
    for name, file in seen.modules.items():
        if name not in sys.modules and _from_library(file) and _top(name) not in seen.own:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)
    _set(NVML, asks)


def preload(seen: Imports) -> str:
    """Imports the libraries among them into this process, which is about to be forked.

    Returns:
        why this process must not be forked now, as a sentence; empty where it may.
    """
    before = _state()
    known = set(sys.modules)
    import_libraries(seen)
    after = _state()
    for what in before:
        if before[what] != after[what]:
            return f"importing its libraries changes {what}"
    if (changed := _changes(seen.environment)) != seen.variables:
        names = sorted(dict(changed.items() ^ seen.variables.items()))
        return f"the workload's own code sets environment variables ({', '.join(names)})"
    return next(_misplaced(seen, known), "")


def _misplaced(seen: Imports, known: set[str]) -> Iterator[str]:
    """Modules that are not what a trial would import, or that are the user's own."""
    for name, file in _files():
        expected = seen.modules.get(name)
        if expected is not None and expected != file:
            yield f"the module {name} is {expected} in a trial and {file} here"
        elif name not in known and (_top(name) in seen.own or not (_from_library(file) or _standard(name))):
            yield f"importing libraries imports {name} from {file}, which is no library"


def _files() -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        with contextlib.suppress(Exception):  # modules that answer to every name, or to none
            spec: Any = module.__spec__
            if spec.name == name and isinstance(spec.origin, str) and os.path.isabs(spec.origin):
                yield name, spec.origin


def _top(name: str) -> str:
    return name.partition(".")[0]


def _from_library(file: str) -> bool:
    return not _LIBRARIES.isdisjoint(Path(file).parts)


def _standard(name: str) -> bool:
    return _top(name) in sys.stdlib_module_names


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _changes(environment: dict[str, str]) -> dict[str, str | None]:
    """Environment variables that are not as they were: their values now, None where they are gone."""
    names = {name for name, _ in environment.items() ^ os.environ.items()} - {"TMPDIR"}  # each trial has its own
    return {name: os.environ.get(name) for name in sorted(names)}


def _state() -> dict[str, Any]:
    """The state of a process that a fork copies wrongly, or that a trial is to find as it was."""
    import numpy as np
    import torch

    numbers: Any = np.random.get_state()
    return {
        "threads": _threads(),
        "processes": _children(),
        "the device": (torch.cuda.is_initialized(), device_opened()),  # type: ignore[no-untyped-call]
        "affinity": affinity.cores(),
        "random numbers": (
            random.getstate(),
            numbers[1].tobytes(),
            numbers[2:],
            torch.get_rng_state().numpy().tobytes(),
        ),
        "torch's defaults": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "the working directory": os.getcwd(),
    }


def _threads() -> int:
    """Threads that are left after a fork: a library that can be forked (OpenBLAS) ends its own for it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return sum(_name(task) not in FORKABLE for task in os.listdir("/proc/self/task"))


def _name(task: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
        return file.read().strip()
    return ""


def _children() -> set[str]:
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())
    return set()


def device_opened(folder: str = "/proc/self/fd") -> bool:
    """Whether CUDA was begun in this process, by whomever: no child of it can use the device then.

    Unified memory is CUDA's alone. NVML, which torch asks how many devices there are, holds other files of the driver
    open ever after, and may be forked.
    """
    for number in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{number}").startswith(UNIFIED_MEMORY):
                return True
    return False
