"""Files that a dataset reads: which they are, and the dataset with its paths pointing to copies of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DEPTH = 5
"""So many objects within one another are looked through for paths."""


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Regular files that are opened for reading by Python's ``open`` or ``os.open`` in this process, while it lasts."""
    import builtins
    import io

    found: list[str] = []
    plain, plain_io, plain_os = builtins.open, io.open, os.open

    def noted(file: Any) -> None:
        if isinstance(file, (str, os.PathLike)) and os.path.isfile(file):
            found.append(os.path.abspath(file))

    def open_seen(file: Any, *args: Any, **kwargs: Any) -> Any:
        noted(file)
        return plain(file, *args, **kwargs)

    def os_open_seen(file: Any, *args: Any, **kwargs: Any) -> Any:
        noted(file)
        return plain_os(file, *args, **kwargs)

    builtins.open, io.open, os.open = open_seen, open_seen, os_open_seen  # type: ignore[assignment]
    try:
        yield found
    finally:
        builtins.open, io.open, os.open = plain, plain_io, plain_os


def paths_in(value: Any, depth: int = DEPTH) -> Iterator[str]:
    """Paths of files and folders among what an object holds: strings with a separator, and paths."""
    if isinstance(value, os.PathLike) or (isinstance(value, str) and os.sep in value):
        yield os.fspath(value)
    elif depth and not isinstance(value, (str, bytes)):
        for part in _parts(value):
            yield from paths_in(part, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    elif _opened_up(value):
        yield from vars(value).values()
    elif type(value).__name__ == "ndarray" and value.dtype.kind in "UO":
        yield from value.tolist()


def _opened_up(value: Any) -> bool:
    """Whether an object's own attributes are looked at: those of datasets."""
    from torch.utils.data import Dataset

    return isinstance(value, Dataset) or (hasattr(value, "__dict__") and hasattr(type(value), "__getitem__"))


def root_of(dataset: Any, opened: list[str]) -> str | None:
    """The folder that the dataset names and that holds all opened files; the one that all of its paths share, else."""
    named = {os.path.abspath(path) for path in paths_in(dataset)}
    folders = [path for path in named if os.path.isdir(path) and all(_within(file, path) for file in opened)]
    if folders:
        return max(folders, key=len)
    files = [path for path in named if _suffix(path) in {_suffix(file) for file in opened}]
    if not opened or not set(opened) <= set(files):
        return None
    common = os.path.commonpath(files)
    return common if os.path.isdir(common) else os.path.dirname(common)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def moved(value: Any, root: str, target: str, depth: int = DEPTH) -> Any:
    """The same object with paths below ``root`` pointing below ``target``; what holds none is given back as it is."""
    import copy

    if isinstance(value, os.PathLike) or (isinstance(value, str) and os.sep in value):
        path = os.path.abspath(value)
        if not _within(path, root):
            return value
        other = target + path[len(root.rstrip(os.sep)) :]
        return other if isinstance(value, str) else type(value)(other)  # type: ignore[call-arg]
    if not depth or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, dict):
        made: Any = {key: moved(part, root, target, depth - 1) for key, part in value.items()}
        return made if any(made[key] is not value[key] for key in value) else value
    if type(value) in (list, tuple):
        parts = [moved(part, root, target, depth - 1) for part in value]
        changed = any(one is not other for one, other in zip(parts, value, strict=True))
        return type(value)(parts) if changed else value
    if type(value).__name__ == "ndarray" and value.dtype.kind in "UO":
        import numpy as np

        before = value.tolist()
        after = moved(before, root, target, depth)
        return value if after is before else np.array(after, dtype=None if value.dtype.kind == "U" else object)
    if not _opened_up(value):
        return value
    held = {name: moved(part, root, target, depth - 1) for name, part in vars(value).items()}
    if all(held[name] is part for name, part in vars(value).items()):
        return value
    other = copy.copy(value)
    other.__dict__.update(held)
    return other


def files_below(root: str, most: int = 500_000) -> tuple[int, int] | None:
    """``(files, bytes)`` below a folder; None where there are more files than ``most``."""
    count = size = 0
    for folder, _, names in os.walk(root):
        count += len(names)
        if count > most:
            return None
        size += sum(os.path.getsize(path) for name in names if os.path.isfile(path := os.path.join(folder, name)))
    return count, size
