"""A dataset's ``__getitem__`` in two: up to its first random draw, which is kept by index, and what is left.

In trials on a copy of the dataset, in a patch in the source of its class: the same statements in both.
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

from autoopt_strategies.compute.rewriting.source import (
    LIBRARIES,
    Edits,
    Refused,
    body_of,
    compiled,
    edited,
    function_of,
    text_of,
    with_method,
)
from autoopt_strategies.input.batches import Wrapper, is_subset, kept_by_index, read_by_threads, read_many

READ, READ_BATCH, HEAD = "__getitem__", "__getitems__", "unaugmented"
CHUNK = 64
"""Samples that are read at once where all are, whose other half is thrown away."""


def reader_of(dataset: Any) -> Any:
    """The function that reads a sample, as its author wrote it.

    Raises:
        Refused: no patch can split it.
    """
    kind = type(dataset)
    found = next((vars(each)[READ] for each in kind.__mro__ if READ in vars(each)), None)
    if not isinstance(found, types.FunctionType):
        raise Refused(f"{kind.__name__} has no {READ} of Python's")
    if found.__code__.co_filename.startswith(LIBRARIES):
        raise Refused(f"{kind.__name__} is a library's, whose source no patch edits")
    if found.__code__.co_freevars or hasattr(kind, HEAD) or "_kept" in vars(dataset):
        raise Refused(f"{kind.__name__} has variables of a function around it, or names that a patch would use")
    return found


def split(text: str, name: str, line: int) -> tuple[ast.FunctionDef, tuple[str, ...]]:
    """The function, and the names that its statements above a line make for the others.

    Args:
        text: of the file.
        name: of the function, qualified.
        line: where a statement of its body begins.

    Raises:
        Refused: the statements above do not stand alone.
    """
    function = function_of(ast.parse(text), name)
    begins = [node.lineno for node in function.body]
    head = [node for node in body_of(function) if node.lineno < line]
    rest = [node for node in function.body if node.lineno >= line]
    arguments = function.args
    if len(arguments.args) != 2 or arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
        raise Refused("it takes more than an index")
    if function.decorator_list or line not in begins or not head or (head[-1].end_lineno or line) >= line:
        raise Refused("no statements stand before its first random draw")
    inside = [node for statement in head for node in ast.walk(statement)]
    if any(isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)) for node in inside):
        raise Refused("what it does before its first random draw may end it")
    later = [node for statement in rest for node in ast.walk(statement)]
    if any(isinstance(node, ast.Name) and node.id in ("super", "__class__", "locals") for node in (*inside, *later)):
        raise Refused("it asks for the class above")
    if (_attributes(inside, ast.Store) | _attributes(inside, ast.Del)) & _attributes(later, ast.Load):
        raise Refused("what it does before its first random draw changes what it reads afterwards")
    made = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {(alias.asname or alias.name).split(".")[0] for node in inside for alias in getattr(node, "names", ())}
    if any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in inside):
        raise Refused("it defines functions before its first random draw")
    read = [node.id for node in later if isinstance(node, ast.Name)]
    return function, tuple(name for name in dict.fromkeys(read) if name in made)


def _attributes(nodes: Sequence[ast.AST], context: type) -> set[str]:
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, context)}


def statements(text: str, name: str, line: int, threads: int = 0) -> Edits:
    """The function as two: one whose results are kept by index, and one that goes on from there.

    Args:
        text: of the file.
        name: of the function, qualified.
        line: of the statement with its first random draw.
        threads: that make what is kept of a batch; 0: it is made one by one.

    Raises:
        Refused: the file is another one than that which was read before.
    """
    function, names = split(text, name, line)
    lines, body = text.splitlines(), body_of(function)
    above = max((node.end_lineno or 0) for node in body if node.lineno < line)
    named = range(function.lineno, function.body[0].lineno)
    opened = next((each for each in named if lines[each - 1].partition("#")[0].rstrip().endswith(":")), None)
    if opened is None:
        raise Refused("its header and its first statement share a line")
    begins = max([opened, *(node.end_lineno or 0 for node in function.body if node not in body)])
    header, document = lines[function.lineno - 1 : opened], lines[opened:begins]
    before, after = lines[begins:above], lines[above : function.end_lineno]
    blank, inner = " " * function.col_offset, " " * function.body[0].col_offset
    owner, index = (argument.arg for argument in function.args.args)
    values = ", ".join(names)
    made = [
        f"{blank}@kept_by_index",
        *(each.replace(function.name, HEAD, 1) for each in header),
        *before,
        *([f"{inner}return {values}"] if values else []),
        "",
        *header,
        *document,
        f"{inner}{values} = {owner}.{HEAD}({index})" if values else f"{inner}{owner}.{HEAD}({index})",
        *after,
    ]
    if threads:
        call = f"return {read_by_threads.__name__}({owner}, indices, threads={threads})"
        made += ["", f"{blank}def {READ_BATCH}({owner}, indices):", f"{inner}{call}"]
    return [(function.lineno, function.end_lineno or line, "\n".join(made).lstrip())]


def halves(function: Any, line: int) -> tuple[Any, Any]:
    """Both functions of a method, in the module that it was written in.

    Raises:
        Refused: its source is not as it was, or cannot be split.
    """
    text, name = text_of(function), function.__qualname__
    tree = ast.parse(edited(text, statements(text, name, line)))
    above = name.rpartition(".")[0]
    head, rest = (compiled(function_of(tree, f"{above}.{part}"), function) for part in (HEAD, READ))
    return head, rest


@dataclass(frozen=True)
class KeepUnaugmented:
    """``dataset -> dataset`` that keeps what it makes of each index before its first random draw.

    All samples are read once; what they draw is not used.

    Args:
        line: of the statement with the draw.
        threads: that read at the same time; 0: one sample after the other.
    """

    line: int
    threads: int = 0

    def __call__(self, dataset: Any) -> Any:
        made = with_halves(dataset, self.line, self.threads)
        for first in range(0, len(made), CHUNK):
            read_many(made, list(range(first, min(first + CHUNK, len(made)))))
        return made


def with_halves(dataset: Any, line: int, threads: int = 0) -> Any:
    """A copy of a dataset, or of the one below a subset or another wrapper, whose class is split."""
    other = copy.copy(dataset)
    if is_subset(dataset) or isinstance(dataset, Wrapper):
        other.dataset = with_halves(dataset.dataset, line, threads)
        return other
    head, rest = halves(reader_of(dataset), line)
    kind = with_method(with_method(type(dataset), READ, rest), HEAD, kept_by_index(head))
    if threads:
        kind = with_method(kind, READ_BATCH, partialmethod(read_by_threads, threads=threads))
    other.__class__ = kind
    return other
