"""Writes a file whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from autoopt.errors import EnvironmentLacks


@contextlib.contextmanager
def writing(path: Path, what: str = "") -> Iterator[None]:
    """Around what writes a file; ``what``: its name in the error, such as ``the ledger``.

    Raises:
        EnvironmentLacks: it cannot be written there.
    """
    try:
        yield
    except OSError as error:
        why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or error
        raise EnvironmentLacks(f"cannot write {f'{what} {path}' if what else path}: {why}") from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which takes the place of another once it is on disk: a reader never sees a part of it.

    Folders that are missing are made; where anything fails, the old file stays and the new one is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0o022)  # it can be read only by setting another
        os.umask(mask)
        os.chmod(name, 0o644 & ~mask)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def sync_folder(folder: Path) -> None:
    """Puts a folder on disk: a new file in it survives a power loss only then."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache() -> Path:
    """The user's folder for what may be made again; autoopt has a folder of its own in it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def write_whole(path: Path, text: str) -> None:
    """Writes a text so; see :func:`replacing`."""
    with replacing(path) as file:
        file.write(text.encode())
