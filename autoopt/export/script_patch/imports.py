"""The file that a command begins with, and the imports at the top of a file."""

from __future__ import annotations

from pathlib import Path

import libcst as cst

from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot
from autoopt.records import Sites


def entry_of(sites: Sites) -> str | None:
    """The script itself, or the module that ``-m`` names, as the sites name files; None where it is not there."""
    words, cwd = sites.command, Path(sites.cwd)
    if "-m" in words[:-1]:
        base = Path(*words[words.index("-m") + 1].split("."))
        found = [path for path in (base.parent / f"{base.name}.py", base / "__main__.py") if (cwd / path).is_file()]
        if found:
            return found[0].as_posix()
    for word in words[1:]:
        path = Path(word)
        if word.endswith(".py") and (cwd / path).is_file():
            return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)
    return None


def last_import(source: Source) -> Spot:
    """The last import of those that stand together at the top.

    Raises:
        NoHonestEditError: the file begins otherwise.
    """
    last = None
    for spot in _top(source):
        if _imports(spot):
            last = spot
        elif not isinstance(spot.statement, (cst.SimpleStatementLine, cst.Try, cst.If)):
            break
    if last is None:
        raise NoHonestEditError(f"{source.name} has no imports at its top")
    return last


def imports(source: Source, module: str, name: str) -> bool:
    """Whether a file has a name from a module, under that name."""
    for statement in source.all_of(cst.ImportFrom):
        if statement.module is None or source.code(statement.module) != module:
            continue
        if not isinstance(statement.names, cst.ImportStar):
            for alias in statement.names:
                if alias.evaluated_name == name and alias.evaluated_alias is None:
                    return True
    return False


def _top(source: Source) -> list[Spot]:
    return [Spot(source.tree, index, statement) for index, statement in enumerate(source.tree.body)]


def _parts(spot: Spot) -> list[cst.BaseSmallStatement]:
    return [*spot.statement.body] if isinstance(spot.statement, cst.SimpleStatementLine) else []


def _imports(spot: Spot) -> bool:
    parts = _parts(spot)
    return bool(parts) and all(isinstance(part, (cst.Import, cst.ImportFrom)) for part in parts)
