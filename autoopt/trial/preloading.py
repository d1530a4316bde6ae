"""Libraries that the user's code imports, imported once in the fork server instead of in every trial.

Only what comes from ``site-packages``: the user's own code runs in trials alone. What importing changes next to the
modules must be what it changed in the trial, or the server goes on without them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from types import FrameType
from typing import Any

from autoopt.benchmark import affinity
from autoopt.benchmark.cputime import children
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
    None: removed. ``assigned``: those that no library's import has set, in their order: the module that was imported
    next ("" for none), name, and value. ``environment``: as it was before.
    """

    modules: dict[str, str] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    variables: dict[str, str | None] = field(default_factory=dict)
    assigned: tuple[tuple[str, str, str | None], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def of_libraries(self) -> dict[str, str | None]:
        """Variables that importing libraries has set."""
        own = {name for _, name, _ in self.assigned}
        return {name: value for name, value in self.variables.items() if name not in own}


class EnvironmentLog:
    """Environment variables as they are set from now on, but by the import of a library; see ``Imports.assigned``."""

    def __init__(self) -> None:
        self.before = dict(os.environ)
        self._assigned: list[tuple[set[str], str, str | None]] = []
        self._plain = putenv, unsetenv = os.putenv, os.unsetenv

        def put(name: Any, value: Any) -> None:
            putenv(name, value)
            self._note(name, os.fsdecode(value))

        def unset(name: Any) -> None:
            unsetenv(name)
            self._note(name, None)

        os.putenv, os.unsetenv = put, unset

    def _note(self, name: Any, value: str | None) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
            if caller.startswith("<frozen importlib") and from_library(frame.f_code.co_filename):
                return  # a library's module is being run, for the first time
            frame = frame.f_back
        self._assigned.append((set(sys.modules), os.fsdecode(name), value))

    def end(self) -> tuple[tuple[str, str, str | None], ...]:
        """Listens no more; what was set, each before the module imported next."""
        os.putenv, os.unsetenv = self._plain
        modules = [name for name, _ in _files()]
        return tuple(
            (next((each for each in modules if each not in by_then), ""), name, value)
            for by_then, name, value in self._assigned
        )


def imports(specs: Iterable[str], log: EnvironmentLog) -> Imports:
    """Imports of this process up to now.

    Args:
        specs: import strings of the workload and of custom strategies.
        log: of the environment since the process started; it ends here.
    """
    return Imports(
        modules=dict(_files()),
        own=tuple(sorted({_top(spec.rpartition(":")[0]) for spec in specs})),
        variables=_changes(log.before),
        assigned=log.end(),
        environment=log.before,
    )


def import_libraries(seen: Imports) -> None:
    """Imports the libraries among them; a module that cannot be imported is left out.

    What other code had set when each was imported is set then, too, for it may read that, and is as before afterwards.
    So are random numbers: some libraries draw one as they are imported.
    """
    from autoopt.benchmark.seeding import kept_random_state  # imports torch, which a script's process must not yet

    before = {name: os.environ.get(name) for name in (NVML, *(name for _, name, _ in seen.assigned))}
    set_variable(NVML, "1")
    with kept_random_state():
        for name, file in seen.modules.items():
            for _, variable, value in (each for each in seen.assigned if each[0] == name):
                set_variable(variable, value)
            if name not in sys.modules and from_library(file) and _top(name) not in seen.own:
                with contextlib.suppress(BaseException):
                    importlib.import_module(name)
    for variable, value in (before | {NVML: seen.of_libraries.get(NVML, before[NVML])}).items():
        set_variable(variable, value)


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
    if (changed := _changes(seen.environment)) != seen.of_libraries:
        names = sorted(dict(changed.items() ^ seen.of_libraries.items()))
        return f"importing its libraries sets other environment variables here ({', '.join(names)})"
    for name, file in _files():
        expected = seen.modules.get(name)
        if expected is not None and expected != file:
            return f"the module {name} is {expected} in a trial and {file} here"
        library = from_library(file) or _top(name) in sys.stdlib_module_names
        if name not in known and (_top(name) in seen.own or not library):
            return f"importing libraries imports {name} from {file}, which is no library"
    return ""


def _files() -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        with contextlib.suppress(Exception):  # modules that answer to every name, or to none
            spec: Any = module.__spec__
            if spec.name == name and isinstance(spec.origin, str) and os.path.isabs(spec.origin):
                yield name, spec.origin


def _top(name: str) -> str:
    return name.partition(".")[0]


def from_library(file: str | Path) -> bool:
    """Whether a file is of an installed package."""
    return not _LIBRARIES.isdisjoint(Path(file).parts)


def set_variable(name: str, value: str | None) -> None:
    """Sets an environment variable; None removes it."""
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
    import torch

    # threads that are left after a fork: a library that can be forked (OpenBLAS) ends its own for it
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    threads = 0
    for task in os.listdir("/proc/self/task"):
        name = ""
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            name = file.read().strip()
        threads += name not in FORKABLE
    return {
        "threads": threads,
        "processes": set(children(os.getpid())),
        "the device": (torch.cuda.is_initialized(), device_opened()),  # type: ignore[no-untyped-call]
        "affinity": affinity.cores(),
        "torch's defaults": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "the working directory": os.getcwd(),
    }


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
