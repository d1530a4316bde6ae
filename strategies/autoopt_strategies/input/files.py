"""Files that a dataset reads: which they are, how large, and whether copies of them give the same samples."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from autoopt_strategies.common import Setting
from autoopt_strategies.input.batches import equal
from autoopt_strategies.input.probes import sample_of, spread

FOLDER = "/dev/shm"


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Regular files that are opened for reading by Python's ``open`` or ``os.open`` in this process, while it lasts."""
    found: list[str] = []

    def seen(plain: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, (str, os.PathLike)) and os.path.isfile(file):
                found.append(os.path.abspath(file))
            return plain(file, *args, **kwargs)

        return opening

    with patch("builtins.open", seen(open)), patch("io.open", seen(io.open)), patch("os.open", seen(os.open)):
        yield found


def paths_in(value: Any) -> set[str]:
    """Absolute paths of files and folders among what an object holds: strings with a separator, and paths."""
    from autoopt_strategies.input.prepared import with_paths

    found: set[str] = set()
    with_paths(value, found.add)
    return found


def root_of(dataset: Any, opened: list[str]) -> str | None:
    """The folder that the dataset names and that holds all opened files; the one that all of its paths share, else."""
    named = paths_in(dataset)
    folders = [path for path in named if os.path.isdir(path) and all(_within(file, path) for file in opened)]
    if folders:
        return max(folders, key=len)
    suffixes = {os.path.splitext(file)[1] for file in opened}
    files = [path for path in named if os.path.splitext(path)[1] in suffixes]
    if not opened or not set(opened) <= set(files):
        return None
    common = os.path.commonpath(files)
    return common if os.path.isdir(common) else os.path.dirname(common)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def files_below(root: str) -> tuple[int, int] | None:
    """``(files, bytes)`` below a folder; None where there are half a million files and more."""
    count = size = 0
    for folder, _, names in os.walk(root):
        count += len(names)
        if count > 500_000:
            return None
        size += sum(os.path.getsize(path) for name in names if os.path.isfile(path := os.path.join(folder, name)))
    return count, size


def probe(dataset: Any, folder: str = FOLDER) -> Setting:
    """``{"root", "bytes", "room": free in memory's file system}``, or ``{"reason": why not}``."""
    import shutil
    import tempfile

    from autoopt_strategies.input.prepared import moved

    indices = spread(dataset)
    if not indices or not os.path.isdir(folder):
        return {"reason": "samples cannot be read one by one" if not indices else f"there is no {folder}"}
    with opened_files() as opened:
        samples = [sample_of(dataset, index) for index in indices]
    if not opened:
        return {"reason": "samples are not read from files, or by a library that opens them without Python"}
    root = root_of(dataset, opened)
    if root is None or root in ("/", os.path.expanduser("~")):
        return {"reason": "the dataset names no folder that holds all of its files"}
    if root.startswith(folder):
        return {"reason": "the files are in memory already"}
    below = files_below(root)
    if below is None:
        return {"reason": f"{root} holds too many files to be copied"}
    with tempfile.TemporaryDirectory(dir=folder) as target:
        for file in set(opened):
            os.makedirs(os.path.dirname(target + file[len(root) :]), exist_ok=True)
            shutil.copyfile(file, target + file[len(root) :])
        other = moved(dataset, root, target)
        with opened_files() as again:
            try:
                same = all(equal(sample_of(other, i), sample) for i, sample in zip(indices, samples, strict=True))
            except OSError as error:
                return {"reason": f"samples cannot be read from copies: {type(error).__name__}: {error}"}
        if not same or not again or not all(file.startswith(target) for file in again):
            return {"reason": "with paths that point to copies, samples are others, or not read from these"}
    return {"root": root, "bytes": below[1], "room": shutil.disk_usage(folder).free}
