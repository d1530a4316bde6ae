"""Where the batches of a script without a DataLoader come from: what makes the arguments of its model.

It is read from the source. A function that was handed its batch is passed over for the one that handed it over.
"""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator

from autoopt.records import JsonDict, Place
from autoopt.script.frames import folder

_LONGEST = 60
"""Characters of an expression that are shown."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_Parents = dict[ast.AST, ast.AST]


def origin_of(places: tuple[Place, ...]) -> JsonDict:
    """Makers of the arguments of these calls.

    Args:
        places: lines of the user's that led to the model's call, from the innermost to the outermost.

    Returns:
        ``made_by``: an expression, shortened; ``file`` and ``line`` of it. Empty where none shows.
    """
    for place in places:
        found = _made_at(place)
        if found is not None:
            text = " ".join(ast.unparse(found).split())
            text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
            return {"made_by": text, "file": place.file, "line": found.lineno}
    return {}


def _made_at(place: Place) -> ast.expr | None:
    """The expression that the arguments of the calls on these lines got their values from."""
    try:
        tree = ast.parse("".join(linecache.getlines(os.path.join(folder(), place.file))))
    except (SyntaxError, ValueError, RecursionError):
        return None
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [node for node in calls if place.line <= node.lineno and (node.end_lineno or 0) <= place.end_line]
    if not calls:
        return None
    given = [argument for call in calls for argument in (*call.args, *call.keywords)]
    names = {name for argument in given for name in _names(argument)}
    names -= {name for call in calls for name in _names(call.func)}
    for scope in _around(calls[0], parents, _SCOPES):
        made = [(node, value) for node, value in _assigned(scope, names) if not names & _names(value)]
        if made:
            loop = next(_around(calls[0], parents, _LOOPS), None)
            return min(made, key=lambda each: _distance(each[0], calls[0], loop, parents))[1]
    return next((each for each in reversed(calls) if each in given), None)


def _assigned(scope: ast.AST, names: set[str]) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Statements of a scope that give one of these names its value, and the value."""
    for node in ast.walk(scope):
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        match node:
            case ast.Assign():
                targets, value = node.targets, node.value
            case ast.AnnAssign():
                targets, value = [node.target], node.value
            case ast.For() | ast.AsyncFor():
                targets, value = [node.target], node.iter
        if value is not None and any(names & _names(target) for target in targets):
            assert isinstance(node, ast.stmt)
            yield node, value


def _distance(node: ast.stmt, call: ast.expr, loop: ast.AST | None, parents: _Parents) -> tuple[bool, bool, int]:
    """How near a statement is to a call: in its loop first, then before it, then by lines."""
    within = node is loop or any(each is loop for each in _around(node, parents, _LOOPS))
    return not within, node.lineno > call.lineno, abs(node.lineno - call.lineno)


def _around(node: ast.AST, parents: _Parents, kinds: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Nodes that a node stands in, from the innermost outwards."""
    while node in parents:
        node = parents[node]
        if isinstance(node, kinds):
            yield node


def _names(node: ast.AST) -> set[str]:
    """Variables, and attributes of ``self``, that stand in an expression."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id != "self"}
    return found | {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute) and _is_own(each)}


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"
