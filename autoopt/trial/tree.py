"""The process tree of a trial: found, stopped, continued and killed as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

from autoopt.benchmark.cputime import descendants, stat

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Of ``linux/prctl.h``."""
_PATIENCE = 10.0
"""Seconds in which what was killed has gone."""
_LINUX = sys.platform.startswith("linux")


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        if _LINUX:
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(wanted: bool = True) -> None:
    """Asks the kernel to kill this process when the thread that made it ends; or, not ``wanted``, no longer."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL) if wanted else 0)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies, so that none gets away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def freeze(supervisor: int, group: int) -> None:
    """Stops everything below ``supervisor``, whose trial leads the process group ``group``.

    The group is stopped in one call, which no fork slips through; processes that have left it are
    looked for until no new one appears.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGSTOP)
    seen: set[int] = set()
    while stragglers := [pid for pid in descendants(supervisor) if pid not in seen]:
        send([pid for pid in stragglers if _group(pid) != group], signal.SIGSTOP)
        seen.update(stragglers)


def thaw(supervisor: int, group: int) -> None:
    """Lets everything below ``supervisor`` go on."""
    send([pid for pid in descendants(supervisor) if _group(pid) != group], signal.SIGCONT)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGCONT)


Standing = dict[int, tuple[int, int, frozenset[int]]]
"""Of each process or thread: priority, scheduling policy, and the cores that it may use."""


def standing(supervisor: int) -> Standing:
    """How the system schedules every thread below ``supervisor``; empty where it does not tell."""
    found: Standing = {}
    if not _LINUX:
        return found
    for pid in descendants(supervisor):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/task"):
                thread = int(name)
                with contextlib.suppress(OSError):
                    cores = frozenset(os.sched_getaffinity(thread))
                    found[thread] = os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread), cores
    return found


Ended = dict[int, tuple[int, int]]
"""Processes that have ended: pid to wait status and peak resident bytes."""


def kill_below(on_end: Callable[[Ended], None]) -> list[int]:
    """Kills everything below this process, which must have adopted orphans, until nothing is left.

    Args:
        on_end: is notified of each process that was reaped.

    Returns:
        what did not go within ten seconds: processes in a wait that cannot be interrupted.
    """
    deadline, pid = time.monotonic() + _PATIENCE, os.getpid()
    left = descendants(pid)
    while left and time.monotonic() < deadline:
        send(left, signal.SIGSTOP)  # so that none makes another while the rest is being killed
        send(left, signal.SIGKILL)
        on_end(reap())
        left = [child for child in descendants(pid) if stat(child)[:1] not in (["Z"], ["X"], [])]
        if left:
            time.sleep(0.002)
    on_end(reap())
    return left


def reap() -> Ended:
    """Collects children of this process that have ended: pid to wait status and peak resident bytes."""
    ended: Ended = {}
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = (status, usage.ru_maxrss * (1024 if _LINUX else 1))


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def oom_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory since boot; None where it does not say."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except OSError:
        return None
