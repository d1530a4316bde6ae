"""Keeps a measured script from writing where its view does not reach: it is stopped at the line that would."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset({"open", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "os.link"})

_FIRST = {"os.rename": slice(2), "os.link": slice(1, 2), "os.symlink": slice(1, 2)}
"""Which arguments of an event name what is changed; the first one of all others."""


def guard(writable: Iterable[str]) -> None:
    """From now on this process and those that it forks change files in these folders only.

    Caches and settings in folders of the home whose names begin with a dot are nobody's data and stay writable.

    Args:
        writable: absolute paths of folders.

    Raises:
        OSError: later, in the call that would write elsewhere.
    """
    # what is written is looked up behind its links, so that a folder reached over one is taken the same way
    folders = tuple(os.path.realpath(folder).rstrip("/") for folder in writable)
    hidden = os.path.realpath(os.path.expanduser("~")).rstrip("/") + "/."

    def allowed(path: str) -> bool:
        return path.startswith(hidden) or any(path == f or path.startswith(f + "/") for f in folders)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES):
            return
        for name in arguments[_FIRST.get(event, slice(1))]:
            if isinstance(name, str | bytes | os.PathLike):
                path = os.path.realpath(os.fsdecode(name))
                if not allowed(path):
                    raise PermissionError(
                        f"autoopt does not let a measured script change {path}, which lies outside of its folder: "
                        "give it a path below the folder it runs in"
                    )

    sys.addaudithook(look)
