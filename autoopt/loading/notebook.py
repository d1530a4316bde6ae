"""A function defined in a notebook as a module: its cells' definitions, so that trials can import it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autoopt.errors import WorkloadError

_HEAD = '"""Written by autoopt from the cells of a notebook: {name} and the definitions that it needs."""\n\n'
_ELSEWHERE = "define it inside {name}(), or write {name} to a file and name that: optimize('my_module.py:{name}')"

_IN_THE_NOTEBOOK = tuple(f"get_ipython().run_cell_magic('{name}'," for name in ("time", "capture"))
"""Magics that run their cell in the notebook itself, so that what it defines is there."""


def cells_of(namespace: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Cells that were executed, in their order, as IPython keeps them; None outside IPython."""
    cells = namespace.get("In")
    if not isinstance(cells, list) or "get_ipython" not in namespace:
        return None
    return tuple(str(cell) for cell in cells)


def module_source(name: str, cells: Iterable[str], namespace: Mapping[str, Any]) -> str:
    """Source of a module that defines a function of a notebook, and all that it needs of the cells.

    Imports, functions, classes and assignments at the top level of cells are taken, in the order in which they were
    executed; of a name that was defined several times, the last definition. Nothing else is: no expression, no
    loop, no training that the notebook went through.

    Args:
        namespace: of the notebook, to tell a name that is defined from one that is not.

    Raises:
        WorkloadError: a name that it needs is in the notebook but defined in none of these ways.
    """
    statements = list(_statements(cells))
    last = {defined: index for index, statement in enumerate(statements) for defined in _defines(statement)}
    touching = _touching(statements)
    wanted: set[int] = set()
    waiting, seen = [name], set[str]()
    while waiting:
        needed = waiting.pop()
        if needed in seen:
            continue
        seen.add(needed)
        if needed not in last:
            if needed in namespace:
                raise WorkloadError(
                    f"{name} needs {needed!r}, which no cell of the notebook defines by itself",
                    hint=_ELSEWHERE.format(name=name),
                )
            continue
        for index in (last[needed], *(i for i in touching.get(needed, ()) if i > last[needed])):
            if index not in wanted:
                wanted.add(index)
                waiting += _names(statements[index])
    for index in wanted:
        if "get_ipython" in _names(statements[index]):
            raise WorkloadError(
                f"{name} needs {ast.unparse(statements[index])[:80]!r}, which works in a notebook alone",
                hint=_ELSEWHERE.format(name=name),
            )
    body = "\n\n".join(ast.unparse(statements[index]) for index in sorted(wanted))
    return f"{_HEAD.format(name=name)}{body}\n"


def _statements(cells: Iterable[str]) -> Iterator[ast.stmt]:
    for cell in cells:
        try:
            statements = ast.parse(cell).body
        except SyntaxError:  # a cell that failed: it defined nothing
            continue
        for statement in statements:
            below = _below_magic(statement)
            yield from (statement,) if below is None else _statements([below])


def _below_magic(statement: ast.stmt) -> str | None:
    """The code below ``%%time`` in a cell, which IPython keeps as a text that the magic runs in the notebook."""
    if not ast.unparse(statement).startswith(_IN_THE_NOTEBOOK):
        return None
    call = statement.value if isinstance(statement, ast.Expr) else None
    last = call.args[-1] if isinstance(call, ast.Call) else None
    return last.value if isinstance(last, ast.Constant) and isinstance(last.value, str) else None


def _defines(statement: ast.stmt) -> list[str]:
    """Names that a statement binds at the top level; none of one that does more than to define."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        if statement.value is None:
            return []
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [
            node.id
            for target in targets
            for node in ast.walk(target)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
    return []


def _touching(statements: list[ast.stmt]) -> dict[str, list[int]]:
    """Statements that change a thing in place, by its name: ``cfg["lr"] = 3``, ``model.head = Head()``, ``n += 1``."""
    found: dict[str, list[int]] = {}
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AugAssign):
            targets = [statement.target]
        else:
            continue
        for target in targets:
            root: ast.expr = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name) and (root is not target or isinstance(statement, ast.AugAssign)):
                found.setdefault(root.id, []).append(index)
    return found


def _names(statement: ast.stmt) -> list[str]:
    return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
