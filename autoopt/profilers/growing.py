"""Containers and autograd graphs that the user's code keeps, and the lines that make them grow."""

from __future__ import annotations

import ast
import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.libraries import is_users
from autoopt.benchmark.losses import history
from autoopt.records import JsonDict
from autoopt.script.frames import shown

_MOST_NODES = 100_000
"""Objects that a search for what grows reads: a second or so."""
_GROWS = ("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put")
_Loops = (ast.For, ast.While, ast.AsyncFor)
_Functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Growing:
    """A container, or a tensor with its graph, as large as it is now.

    Attributes:
        name: as it is shown; ``word``: the variable, attribute or key that names it in the source.
        graphs: its size is that of a graph, or its tensors keep theirs.
    """

    name: str
    word: str
    file: str
    size: int
    unit: str
    graphs: bool

    def place(self) -> tuple[JsonDict, bool]:
        """``file``, ``line`` and ``means`` of what lets it grow, and whether each step goes through all of it."""
        loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())} - {self.file}
        files = [self.file, *sorted(file for file in loaded if isinstance(file, str) and is_users(file))]
        grown = next(((file, line) for file in files for line in _lines(file, self.word, grown=True)), None)
        near = files if grown is None else [grown[0]]  # in other files the name may be another thing's
        read = next(((file, line) for file in near for line in _lines(file, self.word, grown=False)), None)
        means = []
        if self.unit == "nodes":
            means.append("its graph is kept from step to step: add loss.item() or loss.detach()")
        elif self.graphs:
            means.append("its tensors keep their graphs: keep loss.item() or loss.detach()")
        if read is not None:
            means.append(f"all of it is read again at {shown(read[0])}:{read[1]}")
        file, line = grown if grown is not None else (self.file, None)
        found: JsonDict = {"file": shown(file), "line": line, "means": ", ".join(means) or "nothing takes from it"}
        return found, read is not None


def growing_in(roots: Iterable[tuple[str, str, Any]]) -> dict[tuple[str, str], Growing]:
    """All that may grow, by file and name.

    Args:
        roots: file, name and value of what the user's code holds.
    """
    found: dict[tuple[str, str], Growing] = {}
    seen: set[int] = set()
    for file, name, value in roots:
        if not name.startswith("__"):
            for each in _within(file, name, name, value, seen, 0):
                found.setdefault((shown(each.file), each.name), each)
    return found


def _within(file: str, name: str, word: str, value: Any, seen: set[int], depth: int) -> Iterator[Growing]:
    if depth > 4 or id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        if value.grad_fn is not None:
            nodes = sum(1 for _ in islice(history(value), _MOST_NODES))
            yield Growing(f"the graph of {name}", word, file, nodes, "nodes", True)
        return
    if isinstance(value, list | dict | set | deque):
        seen.add(id(value))
        ordered = value.values() if isinstance(value, dict) else () if isinstance(value, set) else value
        last = next(reversed(ordered), None)
        graphs = isinstance(last, torch.Tensor) and last.grad_fn is not None
        yield Growing(f"the length of {name} ({type(value).__name__})", word, file, len(value), "", graphs)
        if isinstance(value, dict) and len(value) <= 64:  # those of larger ones are not looked into
            for key, held in list(value.items()):
                if isinstance(key, str):
                    yield from _within(file, f"{name}[{key!r}]", key, held, seen, depth + 1)
        return
    own = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    users = isinstance(own, str) and is_users(own)
    if not users and not isinstance(value, nn.Module):
        return
    seen.add(id(value))
    module = isinstance(value, nn.Module)
    held = dict(getattr(value, "__dict__", {}))
    if users:
        for attribute, inner in held.items():
            if not (module and attribute in _OF_MODULES):
                yield from _within(str(own), f"{name}.{attribute}", attribute, inner, seen, depth + 1)
    if module:
        for attribute, inner in value.named_children():
            yield from _within(file, f"{name}.{attribute}", attribute, inner, seen, depth + 1)


_OF_MODULES = frozenset(vars(nn.Module()))


@functools.cache
def _lines(file: str, word: str, *, grown: bool) -> tuple[int, ...]:
    """Lines of loops and functions at which a name grows, or is read whole."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    again = {id(node) for each in ast.walk(tree) if isinstance(each, (*_Loops, *_Functions)) for node in ast.walk(each)}
    asked = _grows if grown else _reads
    return tuple(sorted({node.lineno for node in ast.walk(tree) if id(node) in again and asked(node, word)}))  # type: ignore[attr-defined]


def _grows(node: ast.AST, word: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=method, value=owner)):
            return method in _GROWS and _named(owner, word)
        case ast.AugAssign(target=target):
            return _named(target, word)
        case ast.Assign(targets=targets, value=value):
            into = any(isinstance(target, ast.Subscript) and _named(target.value, word) for target in targets)
            onto = any(_named(target, word) for target in targets)
            return into or (
                onto and isinstance(value, ast.BinOp) and any(_named(each, word) for each in ast.walk(value))
            )
    return False


def _reads(node: ast.AST, word: str) -> bool:
    match node:
        case ast.Call(func=function, args=arguments):
            called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            return called not in (*_GROWS, "len", "id", "print") and any(_whole(each, word) for each in arguments)
        case ast.For(iter=over) | ast.comprehension(iter=over):
            return isinstance(node, ast.For) and _named(over, word)
    return False


def _whole(argument: ast.AST, word: str) -> bool:
    match argument:
        case ast.Starred(value=value):
            return _named(value, word)
        case ast.ListComp(generators=[first, *_]) | ast.GeneratorExp(generators=[first, *_]):
            return _named(first.iter, word)
    return _named(argument, word)


def _named(node: ast.AST, word: str) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == word
        case ast.Subscript(slice=ast.Constant(value=key)):
            return key == word
    return False
