"""How many training steps a script's own loops make: read from the lines around a step, without running any of them."""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Callable, Iterator
from traceback import walk_stack
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from autoopt.benchmark.libraries import is_users
from autoopt.loading.validation import length_of
from autoopt.script.frames import last_name, tree_of, users_frames

_Rest = Literal["stepped", "dropped"]
_Loop = ast.For | ast.While | ast.AsyncFor
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}


class _Loader:
    """A loader that a loop's own header makes, by its batches."""

    def __init__(self, samples: int, batch_size: int, drop_last: bool) -> None:
        self.batches = samples // batch_size if drop_last else -(-samples // batch_size)

    def __len__(self) -> int:
        return self.batches


_SIZED: tuple[Any, ...] = (range, list, tuple, dict, torch.Tensor, np.ndarray, Dataset, DataLoader, _Loader)
_ROUNDS: dict[str, Callable[[float], int]] = {"int": int, "ceil": math.ceil, "floor": math.floor}
_COUNTED = frozenset(("arange", "randperm", "permutation"))
_TRAINERS = ("transformers.trainer", "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
"""Modules of libraries whose class ``Trainer`` knows the length of its training."""


def planned_steps(batches_per_step: int) -> int | None:
    """Training steps of the run; called from within a step, in the thread that trains.

    Args:
        batches_per_step: batches of a loader that one training step takes.

    Returns:
        What a library's trainer reports, else the product of the loops' lengths, or what a counter ends them at where
        that is less; None where neither is known. Of a pass over a loader whose batches are added up, its last ones
        count as the loop's own lines treat them.
    """
    total: int | None = 1  # of the loops within; None once the length of one is not known
    most: int | None = None  # of all, where a counter ends them
    batches = 1  # a step's, where no line says how the last of a pass count
    for frame, _ in walk_stack(sys._getframe(1)):
        reported = _of_trainer(frame)
        if reported is not None:
            return reported
        loops = _loops(frame) if is_users(frame.f_code.co_filename) else []
        for loop in reversed(loops):
            if total is not None:
                for ends in _ends(loop, loops[0], frame, max(batches_per_step, 1)):
                    most = min(most or total * ends, total * ends)
            length = _length(loop, frame)
            if length is None or total is None:
                total = None
                continue
            count, loaded = length
            rest = _remainder(loop, frame.f_lineno) if loaded and batches_per_step > 1 else None
            total *= count if rest is None else _steps(count, batches_per_step, rest)
            batches = max(batches_per_step, 1) if loaded and rest is None else batches
    known = [each for each in (total, most) if each is not None]
    return max(min(known) // batches, 1) if known and min(known) > 1 else None


def _ends(loop: _Loop, outermost: _Loop, frame: FrameType, batches_per_step: int) -> Iterator[int]:
    """How often a loop's body has run, with the step in it, once a counter of it ends this loop or one around it.

    A counter begins as a number and has the same number added each time; what ends the loops is a condition on it.
    """
    nested = _nested(loop)
    for counted in ast.walk(loop):
        if not isinstance(counted, ast.AugAssign) or not isinstance(counted.op, ast.Add):
            continue
        by, name = _value(counted.value, frame), ast.unparse(counted.target)
        made = [node for node in ast.walk(tree_of(frame.f_code.co_filename)) if isinstance(node, ast.Assign)]
        given = [_value(node.value, frame) for node in made if name in map(ast.unparse, node.targets)]
        begins = {each for each in given if isinstance(each, int)}
        if not isinstance(by, int) or by < 1 or len(begins) != 1 or any(_holds(n, counted.lineno) for n in nested):
            continue
        for test, line in _conditions(outermost):
            bound = _bound(test, name, frame, stays=line is None)
            if bound is None:
                continue
            runs = -(-(bound - min(begins)) // by)
            if line is not None:  # seen in the run that counts, or the next; its step may come before or after
                runs += (counted.lineno > line) - (line < frame.f_lineno)
            if runs > 0:  # where one condition guards the counter and the step, it counts steps, not batches
                guards = (node for node in ast.walk(loop) if isinstance(node, ast.If))
                both = any(_holds(guard, counted.lineno) and _holds(guard, frame.f_lineno) for guard in guards)
                yield runs * (batches_per_step if both else 1)


def ends_by_result() -> bool:
    """Whether a loop around the step may end before its length, by a comparison of something that is no counter, such
    as a metric with its target; called as :func:`planned_steps` is.
    """
    for frame in users_frames(sys._getframe(1)):
        for test, _ in (found for loop in _loops(frame)[:1] for found in _conditions(loop)):
            compared = (part for part in ast.walk(test) if isinstance(part, ast.Compare))
            ordered = (part for part in compared if isinstance(part.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE))
            if any(not isinstance(_value(part.left, frame), int) for part in ordered):
                return True
    return False


def _nested(loop: _Loop) -> list[_Loop]:
    return [node for node in ast.walk(loop) if isinstance(node, ast.For | ast.While) and node is not loop]


def _conditions(loop: _Loop) -> Iterator[tuple[ast.expr, int | None]]:
    """Each test that ends a loop, and its line within the body; None of what a loop goes on with while it holds."""
    if isinstance(loop, ast.While):
        yield loop.test, None
    inner = _nested(loop)
    for node in (each for part in loop.body for each in ast.walk(part)):
        if not isinstance(node, ast.If):
            continue
        last = node.body[-1]
        leaves = isinstance(last, ast.Return) or (
            isinstance(last, ast.Break) and not any(_holds(each, node.lineno) for each in inner)
        )
        ends = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and last_name(last.value) == "exit"
        if leaves or ends:
            yield node.test, node.lineno


def _bound(test: ast.expr, counter: str, frame: FrameType, stays: bool) -> int | None:
    """The value of a counter from which on a test ends its loop, where other parts of it are no counters."""
    if isinstance(test, ast.BoolOp):
        found = [_bound(part, counter, frame, stays) for part in test.values]
        return min((each for each in found if each is not None), default=None)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, compared, right = test.left, test.ops[0], test.comparators[0]
    if ast.unparse(left) != counter:
        return None
    value = _value(right, frame)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    at = (ast.Lt, ast.NotEq) if stays else (ast.GtE, ast.Eq)
    after = ast.LtE if stays else ast.Gt
    return value if isinstance(compared, at) else value + 1 if isinstance(compared, after) else None


def steps_per_epoch(batches: int, batches_per_step: int) -> int:
    """Training steps of a pass over a loader; called as :func:`planned_steps` is.

    Args:
        batches_per_step: that one training step takes.
    """
    frames = users_frames(sys._getframe(1))
    rests = (_remainder(loop, frame.f_lineno) for frame in frames for loop in _loops(frame))
    rest: _Rest = next((each for each in rests if each is not None), "dropped")
    return _steps(batches, batches_per_step, rest)


def _steps(batches: int, batches_per_step: int, rest: _Rest) -> int:
    more = batches_per_step - 1 if rest == "stepped" else 0
    return max((batches + more) // max(batches_per_step, 1), 1)


def _remainder(loop: ast.AST, line: int) -> _Rest | None:
    """The way of a loop with batches that are left where their number is no multiple of a step's.

    Args:
        loop: over batches.
        line: in its body, at which it steps.

    Returns:
        ``stepped``: with those that there are, as the condition on its length reports, or accelerate does; ``dropped``:
        its counter begins anew with each pass; None where neither is seen: the next pass goes on counting.
    """
    if not isinstance(loop, ast.For):
        return None
    for node in ast.walk(loop):
        if isinstance(node, ast.With) and _holds(node, line):
            entered = (item.context_expr for item in node.items)
            if any(isinstance(each, ast.Call) and last_name(each) == "accumulate" for each in entered):
                return "stepped"
        skips = isinstance(node, ast.If) and node.lineno < line and isinstance(node.body[-1], ast.Continue)
        if isinstance(node, ast.If) and (_holds(node, line) or skips):
            parts = list(ast.walk(node.test))
            counted = [part.left for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)]
            if counted and any(isinstance(part, ast.Call) and last_name(part) == "len" for part in parts):
                return "stepped"
            if counted and not isinstance(node.test, ast.BoolOp):
                return "dropped" if set().union(*map(_names, counted)) & _names(loop.target) else None
    return None


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _holds(node: ast.If | ast.With | _Loop, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)


def _of_trainer(frame: FrameType) -> int | None:
    """Training steps of the whole run, where a library's trainer is what runs in a frame."""
    for name in ("self", "trainer"):
        owner: Any = frame.f_locals.get(name)
        if any(kind.__qualname__ == "Trainer" and kind.__module__ in _TRAINERS for kind in type(owner).__mro__):
            state = getattr(owner, "state", None)
            reported = getattr(state, "max_steps", None) or getattr(owner, "estimated_stepping_batches", None)
            return reported if isinstance(reported, int) and reported > 0 else None
    return None


def _loops(frame: FrameType) -> list[_Loop]:
    """The loops around the line that a frame is at, within its own function, the outermost first."""
    begins = frame.f_code.co_firstlineno
    loops = (node for node in ast.walk(tree_of(frame.f_code.co_filename)) if isinstance(node, ast.For | ast.While))
    return [loop for loop in loops if loop.lineno >= begins and _holds(loop, frame.f_lineno)]


def _length(loop: ast.AST, frame: FrameType) -> tuple[int, bool] | None:
    """How often a loop's body runs, and whether a loader feeds it; None where that is not known."""
    if not isinstance(loop, ast.For):
        return None
    expression = loop.iter
    while isinstance(expression, ast.Call) and last_name(expression) in ("enumerate", "tqdm", "trange", "track"):
        if last_name(expression) == "trange":
            expression.func = ast.Name("range", ast.Load())
            break
        expression = expression.args[0] if expression.args else ast.Constant(None)
    value = _value(expression, frame)
    size: int | None = _size(value)
    if type(value).__module__.partition(".")[0] == "tqdm":  # a bar that has a name of its own
        size, value = getattr(value, "total", None), getattr(value, "iterable", None)
    if size is None:
        return None
    # where the loop's own variable decides which rounds come to the line: ``if phase == "train"``
    for guard in ast.walk(loop) if isinstance(loop.target, ast.Name) and isinstance(value, list | tuple) else ():
        test = guard.test if isinstance(guard, ast.If) and _holds(guard, frame.f_lineno) else None
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
            continue
        if ast.unparse(test.left) == ast.unparse(loop.target):
            wanted = _value(test.comparators[0], frame)
            return sum(1 for each in value if isinstance(each, str | int) and each == wanted), False
    counts = isinstance(loop.iter, ast.Call) and last_name(loop.iter) == "enumerate"
    if counts and isinstance(loop.target, ast.Tuple):
        for test, line in _conditions(loop):  # with the step in it, until one on the loop's own number ends it
            bound = _bound(test, ast.unparse(loop.target.elts[0]), frame, stays=False)
            if bound is not None:
                size = min(size, bound + (frame.f_lineno <= (line or 0)))
    return size, isinstance(value, DataLoader | _Loader)


def _size(value: Any) -> int | None:
    """The length of a range, a loader, a dataset, rows or a collection of Python's; None where nobody knows it."""
    return length_of(value) if isinstance(value, _SIZED) else None


def _value(node: ast.AST, frame: FrameType) -> Any:
    """The value of an expression of names, attributes, numbers, sizes and ranges; None for any other: none runs code
    of the user's."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        if isinstance(owner, torch.Tensor | np.ndarray):
            return owner.shape if node.attr == "shape" else None
        return getattr(owner, "__dict__", {}).get(node.attr)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each, frame) for each in node.elts]
    if isinstance(node, ast.Subscript):
        shape, index = _value(node.value, frame), _value(node.slice, frame)
        if isinstance(shape, dict):
            return shape.get(index) if isinstance(index, str | int) else None
        known = isinstance(shape, tuple) and isinstance(index, int) and -len(shape) <= index < len(shape)
        return shape[index] if known else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, frame), _value(node.right, frame)
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        divides = isinstance(node.op, ast.FloorDiv | ast.Div)
        return _OPERATORS[type(node.op)](left, right) if numbers and (right or not divides) else None
    if isinstance(node, ast.Call):
        return _called_value(node, [_value(argument, frame) for argument in node.args], frame)
    return None


def _called_value(call: ast.Call, values: list[Any], frame: FrameType) -> Any:
    """The value of a call that gives a number, a size or as many parts: by its name, as everybody's scripts use it."""
    name, owner = last_name(call), _value(call.func.value, frame) if isinstance(call.func, ast.Attribute) else None
    first: Any = values[0] if values else None
    whole = all(isinstance(value, int) for value in values)
    if name == "range":
        return range(*values) if values and whole else None
    if name in _COUNTED:  # numbers from 0 in some order
        return range(first) if len(values) == 1 and whole else None
    if name == "size" and isinstance(owner, torch.Tensor):
        return owner.shape[first] if values and whole else owner.shape
    if name == "split" and isinstance(owner, torch.Tensor | range):
        return range(-(-len(owner) // first)) if len(values) == 1 and whole and first > 0 else None
    if name == "split" and isinstance(folds := getattr(owner, "__dict__", {}).get("n_splits"), int):
        return range(folds)  # of scikit-learn's cross-validation
    if name == "DataLoader" and (samples := _size(first)):
        given = {keyword.arg: _value(keyword.value, frame) for keyword in call.keywords}
        size = given.get("batch_size", values[1] if len(values) > 1 else 1)
        others = given.keys() & {None, "sampler", "batch_sampler"} or len(values) > 3
        return None if others or not isinstance(size, int) else _Loader(samples, size, bool(given.get("drop_last")))
    if name in _ROUNDS and len(values) == 1 and isinstance(first, int | float):
        return _ROUNDS[name](first)
    sizes = [size for value in values if (size := _size(value)) is not None]
    if name not in ("len", "zip") or not sizes or len(sizes) < len(values):
        return None
    return min(sizes) if name == "len" else range(min(sizes))
