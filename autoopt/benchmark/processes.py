"""The processes below a process. Needs no torch: servers and trials' parents ask as well."""

from __future__ import annotations

import contextlib
import os

import psutil

_LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether the kernel lists the children of a process; looking through all processes takes far longer."""


def children(pid: int) -> list[int]:
    """The direct children of a process; empty when it is gone."""
    if not _LISTED:
        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    return found


def descendants(pid: int | None = None) -> list[int]:
    """All live processes below one (this one by default), the nearest first."""
    found: list[int] = []
    layer = [pid or os.getpid()]
    while layer:
        layer = [child for parent in layer for child in children(parent)]
        found += layer
    return found
