"""In place of psutil on a machine that lacks it: the little of it that trials ask for, from /proc (Linux)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class Error(Exception):
    """The process is gone."""


class Memory(NamedTuple):
    """Bytes of the machine."""

    total: int
    available: int


class Resident(NamedTuple):
    """Bytes of a process."""

    rss: int


def virtual_memory() -> Memory:
    """The machine's memory."""
    lines = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    known = {name: 1024 * int(value.split()[0]) for name, value in lines if value.split()[0].isdigit()}
    return Memory(known["MemTotal"], known["MemAvailable"])


class Process:
    """A process by its number; this one's without."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = os.getpid() if pid is None else pid
        if not Path(f"/proc/{self.pid}").exists():
            raise Error(f"there is no process {self.pid}")

    def _stat(self) -> list[str]:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            raise Error(f"the process {self.pid} is gone") from None

    def parents(self) -> list[Process]:
        found, parent = [], int(self._stat()[1])
        while parent:
            found.append(Process(parent))
            parent = int(found[-1]._stat()[1])
        return found

    def children(self, recursive: bool = False) -> list[Process]:
        parent_of: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(Error):
                    parent_of[int(entry.name)] = int(Process(int(entry.name))._stat()[1])
        found: list[Process] = []
        waiting = [self.pid]
        while waiting:
            parent = waiting.pop()
            for pid in (pid for pid, theirs in parent_of.items() if theirs == parent):
                with contextlib.suppress(Error):
                    found.append(Process(pid))
                waiting += [pid] if recursive else []
        return found

    def memory_info(self) -> Resident:
        return Resident(int(self._stat()[21]) * os.sysconf("SC_PAGE_SIZE"))

    def send_signal(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except OSError as error:
            raise Error(str(error)) from None
