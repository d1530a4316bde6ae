"""Cores that this process may run on, as they were before anything was imported and as they are now.

Some libraries bind the process to one core when they are imported (OpenMP with ``OMP_PROC_BIND``, some builds of BLAS);
every loader worker and every compute thread made afterwards shares that core. This module imports no torch, so that
whoever imports it first knows the cores as they were.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def cores() -> tuple[int, ...]:
    """Numbers of the cores that this thread may use, ascending; where the system does not tell, all there are."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


AT_START = cores()
"""The cores when this module was imported."""


def bind(numbers: Iterable[int]) -> None:
    """Lets every thread of this process, not only the calling one, use just these cores."""
    if not hasattr(os, "sched_setaffinity"):
        return
    wanted = set(numbers)
    os.sched_setaffinity(0, wanted)
    with suppress(OSError):
        for task in list(Path("/proc/self/task").iterdir()):
            with suppress(OSError, ValueError):  # a thread that ended in the meantime
                os.sched_setaffinity(int(task.name), wanted)


def lost_affinity_warning(before: Iterable[int], cause: str) -> str:
    """A sentence on cores that were lost, with the cause; empty where none was."""
    left = cores()
    missing = set(before) - set(left)
    if not missing:
        return ""
    return (
        f"{cause} bound the process to {len(left)} of {len(left) + len(missing)} cores: compute threads and loader "
        "workers share them. Unset OMP_PROC_BIND and GOMP_CPU_AFFINITY, or call os.sched_setaffinity(0, "
        f"{set(before)}) after the imports"
    )
