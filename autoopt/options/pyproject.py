"""``[tool.autoopt]`` of the user's pyproject.toml: the same keys as the command line's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tomllib

from autoopt.errors import UsageError
from autoopt.options.options import parse

CEILING = "AUTOOPT_CEILING"
"""The environment variable that names a folder above which no pyproject.toml is looked for."""


def find_config(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest pyproject.toml with a ``[tool.autoopt]``, in ``start`` or a folder above it, and that table.

    Raises:
        UsageError: a file on the way that is not TOML, or whose ``tool.autoopt`` is not a table.
    """
    ceiling = os.environ.get(CEILING)
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        table = _table(path)
        if table is not None:
            return path, table
        if ceiling and folder == Path(ceiling):
            break
    return None


def read_config(start: Path) -> dict[str, Any]:
    """Fields of ``Options`` from the nearest ``[tool.autoopt]``; empty where there is none.

    A relative ``out`` is taken from the folder of the file that says so.

    Raises:
        UsageError: a file that cannot be read, an unknown key (with the nearest name), a bad value.
    """
    found = find_config(start)
    if found is None:
        return {}
    path, table = found
    config = parse(table, lambda key, value: f"[tool.autoopt] {key} = {_shown(value)} in {path}")
    if "out" in config:
        config["out"] = path.parent / config["out"]
    return config


def _table(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_bytes().decode("utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError) as error:  # ValueError: bad TOML, and integers of too many digits
        raise UsageError(f"{path} is not valid TOML: {error or 'nested too deeply'}") from None
    table = tool.get("autoopt") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"tool.autoopt in {path} must be a table", hint='such as [tool.autoopt] and budget = "2h"')
    return table


def _shown(value: object) -> str:
    """A value as it may stand in a message: in TOML's spelling where that is simple, and never long."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "..."
    return text if len(text) <= 60 else text[:57] + "..."
