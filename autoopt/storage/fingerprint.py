"""Fingerprint of a run, the same for measurements that belong together: code, environment, device, options."""

from __future__ import annotations

import ast
import hashlib
import platform
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import autoopt
from autoopt.benchmark.environment import usable_cores
from autoopt.records import JsonDict

MOST_FILES, LARGEST_NAMED = 500, 2**20
"""Files of code that are read, and bytes of one: what is more is data, and a start does not wait for it."""


def fingerprint(
    spec: str,
    file: Path | str | None,
    *,
    root: Path | None = None,
    named: Iterable[Path] = (),
    options: JsonDict | None = None,
) -> JsonDict:
    """The fingerprint of a run.

    Args:
        spec: the workload's import string, or a script's command.
        file: the module's or the script's file; None where it is not known.
        root: the folder that its imports are looked for in; that of the file where None.
        named: further files that count, such as a configuration that the command names.
        options: those that change what is measured.
    """
    sources = None
    if file is not None:
        small = (each for each in named if each.stat().st_size <= LARGEST_NAMED)  # large ones are data
        sources = source_hashes(Path(file), root) | {str(each): _hash(each.read_bytes()) for each in small}
    return {
        "code": {"workload": spec, "sources": sources},
        "environment": {
            "autoopt": autoopt.__version__,
            "python": platform.python_version(),
            "torch": _version("torch"),
            "numpy": _version("numpy"),
            "machine": platform.machine(),
            "cores": usable_cores(),
        },
        "device": {},
        "options": options or {},
    }


def differences(old: JsonDict, new: JsonDict, prefix: str = "") -> list[str]:
    """One line for each leaf that is not the same: ``environment torch: 2.12.0, now 2.13.0``."""
    lines: list[str] = []
    for name in sorted({*old, *new}):
        before, now = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            lines += differences(before, now, f"{prefix}{name} ")
        elif before != now:
            lines.append(f"{prefix}{name}: {_shown(before)}, now {_shown(now)}")
    return lines


def source_hashes(file: Path, root: Path | None = None) -> dict[str, str]:
    """Hashes of a module and of the modules next to it that it imports, one after the other, without running any of
    them.

    Args:
        file: the module.
        root: the folder that imports are looked for in; that of the module where None.

    Returns:
        path relative to the root to the first 16 digits of its SHA-256.
    """
    root = root or file.parent
    return {path.relative_to(root).as_posix(): _hash(source) for path, source in imported_files([file], [root])}


def imported_files(first: Sequence[Path], roots: Sequence[Path]) -> Iterator[tuple[Path, bytes]]:
    """Modules and those that they import, one after the other, each with its source; none of them is run.

    Args:
        first: the modules.
        roots: folders that imports are looked for in; what lies outside them is left out.
    """
    waiting, seen = list(first), set[Path]()
    while waiting and len(seen) < MOST_FILES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            source = path.read_bytes()
        except OSError:
            continue
        yield path, source
        waiting += _imported(source, path, roots)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _imported(source: bytes, path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for root in roots:
                for alias in node.names:
                    yield from _files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            relative = 0 < node.level <= len(path.parents)
            for base in (path.parents[node.level - 1],) if relative else roots:
                if any(base == root or root in base.parents for root in roots):
                    parts = (node.module or "").split(".") if node.module else []
                    yield from _files(base, parts)
                    for alias in node.names:
                        yield from _files(base, [*parts, alias.name])


def _files(base: Path, parts: list[str]) -> Iterable[Path]:
    """The files that importing a dotted name runs, where they lie below ``base``."""
    if not all(part.isidentifier() for part in parts):
        return
    for count in range(1, len(parts) + 1):
        stem = base.joinpath(*parts[:count])
        for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
            if candidate.is_file():
                yield candidate


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)
