"""The loop of an evaluation in a script's source: larger batches, no gradients; in trials, and in a patch."""

from __future__ import annotations

import ast
import inspect
import sys
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from autoopt_strategies.compute.rewriting.source import Edits, Refused, function_of, module_name, rewritten

BATCHES = f"{__name__}:in_batches_of"
Loop = dict[str, Any]


def loop_around(path: Path, line: int) -> Loop | None:
    """The innermost loop over a loader around a line: its function's qualified name, and its own line.

    Args:
        path: of the file.
        line: where the model is called.

    Returns:
        None where no function, or no loop over a name, stands there.
    """
    loops = [(name, loop) for name, loop in _loops(_text_of(path), line) if _loader_of(loop) is not None]
    return {"function": loops[-1][0], "line": loops[-1][1].lineno} if loops else None


def loop_without_gradients(path: Path, line: int) -> Loop | None:
    """The outermost loop around a line that needs no gradients: its function's qualified name, and its own line.

    Args:
        path: of the file.
        line: where the model is called with gradients on.

    Returns:
        None where each loop there trains as well, or cannot be edited.
    """
    text = _text_of(path)
    for name, loop in _loops(text, line):
        called = {getattr(node.func, "attr", None) for node in ast.walk(loop) if isinstance(node, ast.Call)}
        yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(loop))
        if yields or called & {"backward", "grad", "step"}:  # whoever is given a value would get no gradients, too
            continue
        try:
            statements(text, name, loop.lineno, no_grad=True)
        except Refused:
            continue
        return {"function": name, "line": loop.lineno}
    return None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _loops(text: str, line: int) -> list[tuple[str, ast.For]]:
    """The loops of functions around a line, the outermost first; none in a text that is no Python."""
    try:
        body = _parsed(text).body
    except SyntaxError:
        return []
    found = (
        (name, node)
        for name, function in _functions(body)
        for node in ast.walk(function)
        if isinstance(node, ast.For) and node.lineno < line <= (node.end_lineno or 0)
    )
    return sorted(found, key=lambda each: each[1].lineno)


@lru_cache(maxsize=8)
def _parsed(text: str) -> ast.Module:
    """A file's tree, which is asked for at each step of planning."""
    return ast.parse(text)


def _functions(body: list[ast.stmt], above: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield above + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{above}{node.name}.")


def _loader_of(loop: ast.For) -> ast.expr | None:
    """What a loop goes over, also within ``enumerate(...)`` or a progress bar; None where that is no name."""
    given = loop.iter
    if isinstance(given, ast.Call) and given.args:
        given = given.args[0]
    return given if isinstance(given, (ast.Name, ast.Attribute)) else None


def statements(text: str, name: str, line: int, size: int | None = None, no_grad: bool = False) -> Edits:
    """The loop over ``in_batches_of(loader, size)``, within ``torch.no_grad()``, or both.

    Args:
        text: of the file.
        name: of the function, qualified.
        line: of the loop.

    Raises:
        Refused: the file is another one than that which was read before, or it cannot be edited so.
    """
    tree = _parsed(text)
    loops = [each for each in ast.walk(function_of(tree, name)) if isinstance(each, ast.For) and each.lineno == line]
    loader = _loader_of(loops[0]) if loops else None
    if not loops or (size and loader is None):
        raise Refused(f"no loop over a loader stands on line {line}")
    (loop,) = loops
    lines, last = text.splitlines(), loop.end_lineno or line
    if size and loader is not None:
        row, begin, end = loader.lineno - 1, loader.col_offset, loader.end_col_offset
        known = lines[row].encode()
        given = known[begin:end].decode()
        lines[row] = f"{known[:begin].decode()}in_batches_of({given}, {size}){known[end or begin :].decode()}"
    body = lines[line - 1 : last]
    if no_grad:
        if any(
            isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno != node.lineno for node in ast.walk(loop)
        ):
            raise Refused("a text over several lines stands in the loop")
        outer, inner = (
            lines[row][: len(lines[row]) - len(lines[row].lstrip())] for row in (line - 1, loop.body[0].lineno - 1)
        )
        body = [
            f"with {module_name(tree, 'torch')}.no_grad():",
            *(f"{inner[len(outer) :]}{each}" if each else "" for each in body),
        ]
    return [(line, last, "\n".join(body).lstrip())]


@dataclass(frozen=True)
class EvaluationLoop:
    """``model -> model``, which stays as it is: the loop of the script's evaluation is edited.

    Args:
        file, function, line: of the loop.
        size: samples of a batch; as they are where None.
        no_grad: whether it keeps no gradients.
    """

    file: str
    function: str
    line: int
    size: int | None = None
    no_grad: bool = False

    def __call__(self, model: Any) -> Any:
        found = self._function()
        if found not in _edited:
            found.__globals__["in_batches_of"] = in_batches_of
            wanted = {"line": self.line, "size": self.size, "no_grad": self.no_grad}
            found.__code__ = rewritten(found, wanted, statements).__code__
            _edited.add(found)  # a model that is wrapped is found again
        return model

    def _function(self) -> Any:
        for module in list(sys.modules.values()):
            if str(getattr(module, "__file__", None) or "").endswith(self.file):
                try:
                    found = inspect.unwrap(reduce(getattr, self.function.split("."), module))  # type: ignore[arg-type]
                except AttributeError:
                    continue
                if isinstance(found, types.FunctionType):
                    return found
        raise Refused(f"no module has {self.function} of {self.file}")


_edited: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


def in_batches_of(loader: Any, size: int) -> Any:
    """The samples of a loader in the same order and with the same draws, so many a batch: nothing learns from them.

    A loader that makes its batches in its own way, or drops samples, stays as it is.
    """
    from torch.utils.data import DataLoader, IterableDataset

    own = "__iter__" in {name for kind in type(loader).__mro__ for name in vars(kind) if kind not in DataLoader.__mro__}
    if not isinstance(loader, DataLoader) or own or isinstance(loader.dataset, IterableDataset):
        return loader
    if loader.batch_size is None or loader.batch_size >= size:
        return loader
    if loader.drop_last and len(loader) * loader.batch_size < len(loader.sampler):  # type: ignore[arg-type]
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=size,
        sampler=loader.sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
    )
