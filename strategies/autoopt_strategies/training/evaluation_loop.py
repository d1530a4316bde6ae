"""The loop of an evaluation in a script's source, which gets larger batches: in trials, and in a patch."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from autoopt_strategies.compute.rewriting.source import Edits, Refused, function_of, rewritten

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
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    found: list[Loop] = [
        {"function": name, "line": node.lineno}
        for name, function in _functions(tree.body)
        for node in ast.walk(function)
        if isinstance(node, ast.For) and node.lineno < line <= (node.end_lineno or 0) and _loader_of(node) is not None
    ]
    return max(found, key=lambda loop: loop["line"], default=None)


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


def statements(text: str, name: str, line: int, size: int) -> Edits:
    """The loop over ``in_batches_of(loader, size)``.

    Args:
        text: of the file.
        name: of the function, qualified.
        line: of the loop.

    Raises:
        Refused: the file is another one than that which was read before.
    """
    function = function_of(ast.parse(text), name)
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and node.lineno == line]
    loader = _loader_of(loops[0]) if loops else None
    if loader is None:
        raise Refused(f"no loop over a loader stands on line {line}")
    lines = text.splitlines()
    row, begin, end = loader.lineno - 1, loader.col_offset, loader.end_col_offset
    known = lines[row].encode()
    given = known[begin:end].decode()
    lines[row] = f"{known[:begin].decode()}in_batches_of({given}, {size}){known[end or begin :].decode()}"
    last = loops[0].end_lineno or line
    return [(line, last, "\n".join(lines[line - 1 : last]).lstrip())]


@dataclass(frozen=True)
class LargerBatches:
    """``model -> model``, which stays as it is: the loop of the script's evaluation gets larger batches.

    Args:
        file, function, line: of the loop.
        size: samples of a batch.
    """

    file: str
    function: str
    line: int
    size: int

    def __call__(self, model: Any) -> Any:
        found = self._function()
        if "in_batches_of" not in found.__code__.co_names:  # a model that is wrapped is found again
            found.__code__ = rewritten(found, {"line": self.line, "size": self.size}, statements).__code__
            found.__globals__["in_batches_of"] = in_batches_of
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
