"""How long the whole run of a script is, read from the loops that its training step stands in."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Sized
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from torch.utils.data import DataLoader

from autoopt.script.frames import is_users

_Rest = Literal["stepped", "dropped"]
_TRAINERS = frozenset(
    (
        "transformers.trainer.Trainer",
        "lightning.pytorch.trainer.trainer.Trainer",
        "pytorch_lightning.trainer.trainer.Trainer",
    )
)


def planned_steps(batches_per_step: int) -> int | None:
    """Training steps of the run; called from within a step, in the thread that trains.

    Args:
        batches_per_step: batches of a loader that one training step takes.

    Returns:
        What a library's trainer tells, else the product of the loops' lengths; None where a loop does not tell its own.
        Of a pass over a loader whose batches are added up, its last ones count as the loop's own lines treat them.
    """
    total, loads = 1, False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        told = _of_trainer(frame)
        if told is not None:
            return told
        if is_users(frame.f_code.co_filename):
            for loop in _loops(frame):
                length = _length(loop, frame)
                if length is None:
                    return None
                count, loaded = length
                rest = _remainder(loop, frame.f_lineno) if loaded and batches_per_step > 1 else None
                total *= count if rest is None else _steps(count, batches_per_step, rest)
                loads = loads or (loaded and rest is None)
        frame = frame.f_back
    if total == 1:
        return None
    return max(total // max(batches_per_step, 1), 1) if loads else total


def steps_per_epoch(batches: int, batches_per_step: int) -> int:
    """Training steps of a pass over a loader; called as :func:`planned_steps` is.

    Args:
        batches: that the loader gives.
        batches_per_step: that one training step takes.
    """
    frame: FrameType | None = sys._getframe(1)
    rest: _Rest | None = None
    while frame is not None and rest is None:
        if is_users(frame.f_code.co_filename):
            rests = (_remainder(loop, frame.f_lineno) for loop in _loops(frame))
            rest = next((each for each in rests if each is not None), None)
        frame = frame.f_back
    return _steps(batches, batches_per_step, rest or "dropped")


def _steps(batches: int, batches_per_step: int, rest: _Rest) -> int:
    more = batches_per_step - 1 if rest == "stepped" else 0
    return max((batches + more) // max(batches_per_step, 1), 1)


def _remainder(loop: ast.AST, line: int) -> _Rest | None:
    """The way of a loop with batches that are left where their number is no multiple of a step's.

    Args:
        loop: over batches.
        line: in its body, at which it steps.

    Returns:
        ``stepped``: with those that there are, as the condition on its length tells, or accelerate does; ``dropped``:
        its counter begins anew with each pass; None where neither is seen: the next pass goes on counting.
    """
    if not isinstance(loop, ast.For):
        return None
    for node in ast.walk(loop):
        if isinstance(node, ast.With) and _holds(node, line) and "accumulate" in _entered(node):
            return "stepped"
        if isinstance(node, ast.If) and (_holds(node, line) or (node.lineno < line and _skips(node))):
            parts = list(ast.walk(node.test))
            counted = [part.left for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)]
            if counted and any(isinstance(part, ast.Call) and _called(part) == "len" for part in parts):
                return "stepped"
            if counted and not isinstance(node.test, ast.BoolOp):
                return "dropped" if set().union(*map(_names, counted)) & _names(loop.target) else None
    return None


def _entered(node: ast.With) -> set[str]:
    """Names of the functions whose contexts a block is under."""
    return {_called(item.context_expr) for item in node.items if isinstance(item.context_expr, ast.Call)}


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _holds(node: ast.If | ast.With, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)


def _skips(node: ast.If) -> bool:
    return isinstance(node.body[-1], ast.Continue)


def _of_trainer(frame: FrameType) -> int | None:
    """Training steps of the whole run, where a library's trainer is what runs in a frame."""
    for name in ("self", "trainer"):
        owner: Any = frame.f_locals.get(name)
        if any(f"{kind.__module__}.{kind.__qualname__}" in _TRAINERS for kind in type(owner).__mro__):
            state = getattr(owner, "state", None)
            told = getattr(state, "max_steps", None) or getattr(owner, "estimated_stepping_batches", None)
            return told if isinstance(told, int) and told > 0 else None
    return None


def _loops(frame: FrameType) -> list[ast.For | ast.While | ast.AsyncFor]:
    """The loops around the line that a frame is at, within its own function."""
    tree = _tree(frame.f_code.co_filename)
    if tree is None:
        return []
    line = frame.f_lineno
    body: ast.AST = tree
    if frame.f_code.co_name != "<module>":
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == frame.f_code.co_name
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        if not functions:
            return []
        body = functions[-1]
    return [
        node
        for node in ast.walk(body)
        if isinstance(node, ast.For | ast.While) and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
    ]


@functools.cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _length(loop: ast.AST, frame: FrameType) -> tuple[int, bool] | None:
    """How often a loop's body runs, and whether a loader feeds it; None where that is not known."""
    if not isinstance(loop, ast.For):
        return None
    expression = loop.iter
    while isinstance(expression, ast.Call) and _called(expression) in ("enumerate", "tqdm", "trange", "track"):
        if _called(expression) == "trange":
            expression.func = ast.Name("range", ast.Load())
            break
        expression = expression.args[0] if expression.args else ast.Constant(None)
    value = _value(expression, frame)
    if type(value).__module__.partition(".")[0] == "tqdm":  # a bar that has a name of its own
        value = getattr(value, "iterable", None)
    if isinstance(value, DataLoader):
        try:
            return len(value), True
        except (TypeError, NotImplementedError):
            return None
    return (len(value), False) if isinstance(value, range | list | tuple | dict) and isinstance(value, Sized) else None


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _value(node: ast.AST, frame: FrameType) -> Any:
    """The value of an expression of names, attributes, numbers and ranges; None for any other: no user code runs."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        return getattr(owner, "__dict__", {}).get(node.attr)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv):
        left, right = _value(node.left, frame), _value(node.right, frame)
        if not isinstance(left, int) or not isinstance(right, int) or (isinstance(node.op, ast.FloorDiv) and not right):
            return None
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
        return left // right
    if isinstance(node, ast.Call) and _called(node) in ("range", "int", "len") and isinstance(node.func, ast.Name):
        values = [_value(argument, frame) for argument in node.args]
        if _called(node) == "range":
            return range(*values) if values and all(isinstance(value, int) for value in values) else None
        if len(values) == 1 and isinstance(values[0], int | float) and _called(node) == "int":
            return int(values[0])
        sized = isinstance(values[0], list | tuple | dict | DataLoader) if len(values) == 1 else False
        return len(values[0]) if sized and _called(node) == "len" else None
    return None
