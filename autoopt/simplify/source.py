"""The user's own functions as syntax trees with their true lines."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from autoopt.simplify.lines import is_users

LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


@dataclass(frozen=True)
class Function:
    """A function of the user's: its tree, with line numbers of the file."""

    name: str
    file: str
    line: int
    tree: ast.AST

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call with its dotted name as written; a method of an expression begins with a dot."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield dotted(node.func), node

    def loops(self) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, LOOPS))

    def in_loop(self, line: int) -> bool:
        """Whether a line lies in a loop's body or in a comprehension."""
        return any(
            node.lineno <= line <= (node.end_lineno or node.lineno)  # type: ignore[attr-defined]
            for node in self.loops()
        )


def dotted(node: ast.AST) -> str:
    """``torch.zeros`` of such an expression; ``.item`` of a method of anything that is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    head = node.id if isinstance(node, ast.Name) else ""
    return ".".join([head, *reversed(parts)]) if parts else head


def function_of(thing: Any) -> Function | None:
    """The source of a callable, if it is the user's own and can be found."""
    thing = inspect.unwrap(thing.func if isinstance(thing, functools.partial) else thing)
    if not (inspect.isfunction(thing) or inspect.ismethod(thing)):
        thing = getattr(type(thing), "__call__", None)  # noqa: B004 - the function behind an object that can be called
    try:
        file = inspect.getsourcefile(thing)
        lines, first = inspect.getsourcelines(thing)
    except (TypeError, OSError):
        return None
    if file is None or not is_users(file):
        return None
    tree = _parse("".join(lines))
    if tree is None:
        return None
    ast.increment_lineno(tree, first - 1)
    return Function(getattr(thing, "__qualname__", repr(thing)), file, first, tree)


def _parse(text: str) -> ast.AST | None:
    """The tree of a function's source; a lambda's line may begin or end anywhere."""
    text = textwrap.dedent(text)
    for attempt in (text, f"({text.strip().rstrip(',')})", _lambda(text)):
        try:
            return ast.parse(attempt)
        except SyntaxError:
            continue
    return None


def _lambda(text: str) -> str:
    """Source that follows ``lambda`` in a line of an argument list, up to the last point at which it can be read."""
    begin = text.find("lambda")
    if begin < 0:
        return "!"
    piece = text[begin:].rstrip()
    while piece:
        try:
            ast.parse(f"({piece})")
        except SyntaxError:
            piece = piece[:-1]
        else:
            return f"({piece})"
    return "!"


def step_functions(loss: Any, model: nn.Module | None) -> list[Function]:
    """Functions that run in every step: the loss, and the forward of each kind of the user's modules."""
    found = [function_of(loss)] if loss is not None else []
    if isinstance(loss, nn.Module):
        found.append(function_of(loss.forward))
    kinds = {type(module): module for module in model.modules()} if model is not None else {}
    found += [function_of(module.forward) for module in kinds.values()]
    return [function for function in found if function is not None]


def dataset_functions(dataset: Any) -> list[Function]:
    """How samples are made, however the dataset is wrapped."""
    found: list[Function] = []
    pending, seen = [dataset], set()
    while pending:
        holder = pending.pop()
        if id(holder) in seen or holder is None:
            continue
        seen.add(id(holder))
        for name in ("__getitem__", "__getitems__", "__iter__", "transform", "augment"):
            method = getattr(holder, name, None)
            function = function_of(method) if callable(method) else None
            if function:
                found.append(function)
        pending += [getattr(holder, "dataset", None), *(getattr(holder, "datasets", None) or [])]
    return found
