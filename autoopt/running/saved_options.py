"""The options of a run as its journal keeps them, and the fingerprint by which a resumed run is known."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from autoopt.options import Options
from autoopt.records import JsonDict
from autoopt.running.baseline_spec import cwd_on_path
from autoopt.script.command import Build, Script, parse
from autoopt.storage.fingerprint import fingerprint

_NOT_MEASURED_BY = {"budget_seconds", "accept_undecided", "price", "log", "metric", "out", "json", "quiet", "open"}
"""Options that change nothing that is measured; a resumed run must have the others as they were."""


def _module_file(name: str) -> Path | None:
    """The file of a module, or of a path, without importing it."""
    if name.endswith(".py"):
        return Path(name)
    with cwd_on_path(), contextlib.suppress(Exception):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin:
            return Path(found.origin)
    return None


def fingerprint_of(workload: Build | Script, options: Options) -> JsonDict:
    """The fingerprint of a workload: of a script the files that its command names count as well."""
    chosen = {name: value for name, value in _plain(options).items() if name not in _NOT_MEASURED_BY}
    if isinstance(workload, Build):
        return fingerprint(workload.spec, _module_file(workload.spec.rpartition(":")[0]), options=chosen)
    file, root, others = workload.files()
    return fingerprint(workload.spec, file, root=root, named=others, options=chosen)


def options_document(workload: Build | Script, options: Options) -> JsonDict:
    return {"spec": workload.spec, "directory": os.getcwd(), **_plain(options)}


def options_of(document: JsonDict) -> tuple[Build | Script, Options]:
    known = {field.name for field in dataclass_fields(Options)}
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in document.items() if n in known}
    if values.get("out"):
        values["out"] = Path(values["out"])
    return parse(str(document["spec"])), Options(**values)


def _plain(options: Options) -> JsonDict:
    """Options as JSON has them."""
    plain: JsonDict = json.loads(json.dumps(asdict(options), default=str))
    return plain
