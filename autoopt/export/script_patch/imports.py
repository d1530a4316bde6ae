"""The imports at the top of a file: the first, the last, and the one of a module."""

from __future__ import annotations

import libcst as cst

from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot


def first_import(source: Source) -> Spot:
    """The first import that is not ``from __future__``.

    Raises:
        NoHonestEditError: there is none at the file's top.
    """
    first = next((spot for spot in _top(source) if _imports(spot) and not _future(spot)), None)
    if first is None:
        raise NoHonestEditError(f"{source.name} imports nothing at its top")
    return first


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


def after_import_of(source: Source, module: str) -> Spot:
    """The import of a module that stands above the first import of torch.

    Raises:
        NoHonestEditError: torch is imported before it.
    """
    for spot in filter(_imports, _top(source)):
        names = {name.split(".")[0] for name in _modules(spot)}
        if "torch" in names:
            break
        if module in names:
            return spot
    raise NoHonestEditError(f"{source.name} imports torch before {module}: move the lines by hand", by_hand=True)


def _top(source: Source) -> list[Spot]:
    return [Spot(source.tree, index, statement) for index, statement in enumerate(source.tree.body)]


def _parts(spot: Spot) -> list[cst.BaseSmallStatement]:
    return [*spot.statement.body] if isinstance(spot.statement, cst.SimpleStatementLine) else []


def _imports(spot: Spot) -> bool:
    parts = _parts(spot)
    return bool(parts) and all(isinstance(part, (cst.Import, cst.ImportFrom)) for part in parts)


def _modules(spot: Spot) -> list[str]:
    names: list[str] = []
    for part in _parts(spot):
        if isinstance(part, cst.Import):
            names += [alias.evaluated_name for alias in part.names]
        elif isinstance(part, cst.ImportFrom) and part.module is not None:
            names.append(cst.Module([]).code_for_node(part.module))
    return names


def _future(spot: Spot) -> bool:
    return _modules(spot) == ["__future__"]
