"""The options of a run as its journal keeps them, and the fingerprint by which a resumed run is known."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from autoopt.options import Options
from autoopt.records import JsonDict
from autoopt.running.baseline_spec import cwd_on_path
from autoopt.script.command import command_of, script_file
from autoopt.storage.fingerprint import fingerprint

MEASURED_BY = (
    "target",
    "tolerance",
    "min_gain",
    "device",
    "memory_limit",
    "seed",
    "only",
    "skip",
    "strategies",
    "allow",
    "executor",
    "nproc",
    "parallel",
    "tune",
)
"""Options that change what is measured; a resumed run must have the same."""


def _module_file(name: str) -> Path | None:
    """The file of a module, or of a path, without importing it."""
    if name.endswith(".py"):
        return Path(name)
    with cwd_on_path(), contextlib.suppress(Exception):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin:
            return Path(found.origin)
    return None


def fingerprint_of(spec: str, options: Options) -> JsonDict:
    """The fingerprint of a workload: of a script the files that its command names count as well."""
    chosen = {name: _plain(value) for name, value in asdict(options).items() if name in MEASURED_BY}
    command = command_of(spec)
    if command is None:
        return fingerprint(spec, _module_file(spec.rpartition(":")[0]), options=chosen)
    file, root = script_file(command)
    named = (Path(word.rpartition("=")[2]) for word in command[1:])
    others = [path for path in dict.fromkeys(named) if path.is_file() and path != file]
    return fingerprint(spec, file, root=root, named=others, options=chosen)


def options_document(spec: str, options: Options) -> JsonDict:
    return {"spec": spec, "directory": os.getcwd(), **{name: _plain(value) for name, value in asdict(options).items()}}


def options_of(document: JsonDict) -> tuple[str, Options]:
    known = {field.name for field in dataclass_fields(Options)}
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in document.items() if n in known}
    if values.get("out"):
        values["out"] = Path(values["out"])
    return str(document["spec"]), Options(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
