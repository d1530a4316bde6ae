"""The imports at the top of a file."""

from __future__ import annotations

import libcst as cst

from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot


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
