"""Shared memory that a killed trial has left in /dev/shm, where nobody would ever remove it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

ROOT = Path("/dev/shm")

_MADE_BY_LIBRARIES = re.compile(r"(psm_|sem\.mp-|sem\.loky-|torch_\d|__KMP_REGISTERED_LIB_)")
"""Names that multiprocessing, torch and OpenMP make up. A file of another name may be meant to stay: people
keep data sets in /dev/shm."""


COPIES = "prepared-files-"
"""Prefix of folders of copied files; the number of the process that made them follows."""


def names(root: Path = ROOT) -> set[str]:
    """Shared-memory files that there are now, of the kinds that libraries make."""
    try:
        return {name for name in os.listdir(root) if _MADE_BY_LIBRARIES.match(name)}
    except OSError:
        return set()


def sweep(before: set[str], root: Path = ROOT) -> list[str]:
    """Removes what appeared since ``before``, is ours, and no living process maps or holds open.

    Returns:
        the names that were removed.
    """
    new = set()
    for name in names(root) - before:
        with contextlib.suppress(OSError):
            if (root / name).lstat().st_uid == os.getuid():
                new.add(name)
    if not new:
        return []
    used, prefix = set[str](), str(root).rstrip("/") + "/"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:
            used.update(line.split(prefix, 1)[1].split()[0] for line in file if prefix in line)
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{number}")
                    if target.startswith(prefix):
                        used.add(target.removeprefix(prefix).split(" ")[0])
    removed = sorted(new - used)
    for name in removed:
        with contextlib.suppress(OSError):
            (root / name).unlink()
    return removed


def remove_copies(pid: int, root: Path = ROOT) -> None:
    """Removes the copies of files that a process, which has ended, made for itself (strategy ``prepared_samples``)."""
    for folder in root.glob(f"{COPIES}{pid}-*"):
        shutil.rmtree(folder, ignore_errors=True)
