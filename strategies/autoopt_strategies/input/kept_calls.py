"""Functions of the user's that make the same of the same arguments while a batch is made: computed once for each.

In trials in place, since other modules and closures hold the functions themselves; in a patch by a decorator.
"""

from __future__ import annotations

import ast
import copy
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from autoopt_strategies.compute.rewriting.source import LIBRARIES, Edits, Refused, function_of, text_of, users_path
from autoopt_strategies.input.batches import equal, kept_by_arguments, read_many
from autoopt_strategies.input.probes import item_bytes, random_state, seed_everything
from autoopt_strategies.predictions import LEAST_SAVING
from autoopt_strategies.trying import Setting, ratio_in_turns

SIMPLE = (str, bytes, int, float, bool, type(None), os.PathLike)
"""Types of arguments that say by their value what a function makes of them."""
GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
GATHERS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


@dataclass(frozen=True)
class KeepCalls:
    """``dataset -> dataset``, the same one: functions that it or its loader calls keep what they make.

    Args:
        functions: module and name of each.
    """

    functions: tuple[tuple[str, str], ...]

    def __call__(self, dataset: Any) -> Any:
        for module, name in self.functions:
            keep, _ = switch(vars(sys.modules[module])[name])
            keep()
        return dataset


def switch(function: types.FunctionType) -> tuple[Callable[[], None], Callable[[], None]]:
    """What has a function take from memory what it has made of the same arguments, and what undoes that."""
    before = function.__code__, function.__defaults__, function.__kwdefaults__
    plain = types.FunctionType(before[0], function.__globals__, function.__name__, before[1])
    plain.__kwdefaults__ = before[2]
    kept_by = kept_by_arguments(plain)

    def call(*arguments: Any, kept: Any, **named: Any) -> Any:
        return kept(*arguments, **named)

    def become(code: types.CodeType, defaults: Any, named: Any) -> None:
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, named

    return partial(become, call.__code__, None, {"kept": kept_by}), partial(become, *before)


def decorated(text: str, name: str) -> Edits:
    """A function that keeps what it makes.

    Args:
        text: of the file.
        name: of the function.

    Raises:
        Refused: the file is another one than that which was read before.
    """
    function = function_of(ast.parse(text), name)
    last = function.end_lineno or function.lineno
    lines = text.splitlines()[function.lineno - 1 : last]
    return [(function.lineno, last, "\n".join([f"@{kept_by_arguments.__name__}", *lines]))]


@dataclass
class Watched:
    """A function of the user's as it was called. ``within``: functions that were open at every call of it.

    ``made``: by arguments, the result and a copy of it at once.
    """

    function: types.FunctionType
    seconds: float = 0.0
    within: frozenset[str] | None = None
    made: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    refused: bool = False


def repeated_calls(dataset: Any, collate: Callable[[list[Any]], Any], indices: list[int]) -> Setting:
    """Functions that make the same of the same arguments, with what keeping it leaves of the seconds of a batch.

    ``{"functions", "ratio", "sample_seconds", "sample_bytes"}``, the last two of what differs from sample to sample;
    where some make the same for every sample and some do not, with ``shared``, the ``functions`` and ``ratio`` of the
    former alone. ``{"reason": why there are none}``.

    Args:
        indices: of the samples that it is tried on.
    """

    def batch(seed: int | None = None) -> Any:
        if seed is not None:
            seed_everything(seed)
        return collate(read_many(dataset, indices))

    began = perf_counter()
    with watched() as found:
        batch()
    whole = perf_counter() - began
    chosen = {name: Watched(one.function) for name, one in found.items() if one.seconds >= LEAST_SAVING * whole}
    if not chosen:
        return {"reason": "no function of the user's files takes part in making a batch by simple arguments"}
    for seed in range(2):  # under other random numbers
        with watched(chosen):
            batch(seed)
    same = {name: one for name, one in chosen.items() if _same_again(one)}
    outer = [one for name, one in same.items() if not (found[name].within or frozenset()) & (same.keys() - {name})]
    if not outer:
        return {"reason": f"functions draw random numbers, or make other results: {', '.join(sorted(chosen))}"}

    switches = [switch(one.function) for one in outer]

    def from_memory(seed: int | None = None) -> Any:
        for keep, _ in switches:
            keep()
        try:
            return batch(seed)
        finally:
            for _, undo in switches:
                undo()

    from_memory()
    began = perf_counter()
    batch()
    seconds = perf_counter() - began
    if not all(equal(batch(seed), from_memory(seed)) for seed in range(2)):
        return {"reason": "with functions that keep what they made, batches are others"}
    ratio = min(1.0, ratio_in_turns(batch, from_memory))
    if ratio > 1.0 - LEAST_SAVING:
        return {"reason": f"batches take {ratio:.2f} times as long with what functions have made before"}
    varied = [one for one in outer if len(one.made) > 1]
    share = sum(one.seconds for one in varied) / sum(one.seconds for one in outer)
    answer: Setting = {
        "functions": _named(outer),
        "ratio": ratio,
        "sample_seconds": share * (1.0 - ratio) * seconds / len(indices),
        "sample_bytes": sum(item_bytes(made) for one in varied for made, _ in one.made.values()) / len(indices),
    }
    if 0 < len(varied) < len(outer):
        shared = _named(one for one in outer if one not in varied)
        answer["shared"] = {"functions": shared, "ratio": 1.0 - (1.0 - share) * (1.0 - ratio)}
    return answer


def _named(functions: Iterable[Watched]) -> list[Setting]:
    return [
        {
            "file": users_path(one.function.__code__.co_filename),
            "module": one.function.__module__,
            "function": one.function.__name__,
        }
        for one in functions
    ]


@contextmanager
def watched(only: dict[str, Watched] | None = None) -> Iterator[dict[str, Watched]]:
    """Calls of the user's functions in this thread, while it lasts.

    Args:
        only: functions of which random states and results are compared, which takes time; None: all that stand by
            themselves in a module and take simple arguments are timed.
    """
    found, opened = only or {}, list[tuple[types.FrameType, types.FunctionType, Any, Any, float]]()

    def seen(frame: types.FrameType, event: str, result: Any) -> None:
        if event == "call":
            code = frame.f_code  # of one of the user's functions that stands by itself in a module, in one definition
            function = frame.f_globals.get(code.co_name)
            if not isinstance(function, types.FunctionType) or function.__code__ is not code:
                return
            if code.co_flags & (GENERATES | GATHERS) or code.co_filename.startswith(LIBRARIES):
                return
            if only and function.__name__ not in only:
                return
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            values = [frame.f_locals[name] for name in names]
            if not all(isinstance(value, SIMPLE) for value in values):
                found.setdefault(function.__name__, Watched(function)).refused = True
                return
            state = random_state() if only else None
            opened.append((frame, function, (*values, *map(type, values)), state, perf_counter()))
        elif event == "return" and opened and opened[-1][0] is frame:
            _, function, key, state, began = opened.pop()
            one = found.setdefault(function.__name__, Watched(function))
            one.seconds += perf_counter() - began
            above = frozenset(other.__name__ for _, other, *_ in opened)
            one.within = above if one.within is None else one.within & above
            if only and (one.refused or not _plain(result) or random_state() != state):
                one.refused = True
            elif only and key in one.made:
                one.refused = not equal(one.made[key][1], result)
            elif only:
                one.made[key] = result, copy.deepcopy(result)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _same_again(one: Watched) -> bool:
    """Whether a function made the same of the same arguments, nobody changed it since, and its source can be edited."""
    if one.refused or not one.made or not all(equal(made, then) for made, then in one.made.values()):
        return False
    try:
        return not function_of(ast.parse(text_of(one.function)), one.function.__qualname__).decorator_list
    except Refused:
        return False


def _plain(result: Any) -> bool:
    """Whether a result is a value: of numbers, texts, tensors without a graph, arrays or decoded images."""
    import numpy as np
    import torch

    if isinstance(result, dict):
        return all(map(_plain, result.values()))
    if type(result) in (list, tuple):
        return all(map(_plain, result))
    if isinstance(result, torch.Tensor):
        return not result.requires_grad
    if hasattr(result, "tobytes") and hasattr(result, "mode"):  # a PIL image, whose file is closed
        return getattr(result, "fp", None) is None
    return isinstance(result, (str, bytes, int, float, np.ndarray, np.generic))
