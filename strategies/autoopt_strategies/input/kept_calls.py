"""Functions of the user's that make the same of the same arguments while a batch is made: computed once for each.

In trials in place, since other modules and closures hold the functions themselves; in a patch by a decorator.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from time import perf_counter
from typing import Any

from autoopt_strategies.compute.rewriting.source import LIBRARIES, Edits, Refused, function_of, text_of, users_path
from autoopt_strategies.input.batches import SIMPLE, equal, kept_by_arguments, key_of, read_many
from autoopt_strategies.input.probes import item_bytes, random_state, seed_everything
from autoopt_strategies.predictions import LEAST_SAVING
from autoopt_strategies.trying import Setting, ratio_in_turns

TRIED = 8
"""Calls of a function that are made again, under other random numbers and after other steps."""
STEPS = 2
"""Of a training that are watched at a time."""
GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
NO_USERS = (*LIBRARIES, "<")
"""What names of files that are no user's begin with."""
GATHERS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


@dataclass(frozen=True)
class KeepCalls:
    """``dataset -> dataset``, the same one, or a model: functions of the user's keep what they make.

    Args:
        functions: module and qualified name of each.
    """

    functions: tuple[tuple[str, str], ...]

    def __call__(self, dataset: Any) -> Any:
        for module, name in self.functions:
            function: Any = reduce(lambda held, part: vars(held)[part], name.split("."), sys.modules[module])
            keep, _ = switch(function)
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

    ``made``: by arguments, the result, a copy of it at once, and the arguments.
    """

    function: types.FunctionType
    seconds: float = 0.0
    calls: int = 0
    within: frozenset[str] | None = None
    made: dict[Any, tuple[Any, Any, list[Any]]] = field(default_factory=dict)
    refused: bool = False

    def again(self, values: list[Any]) -> Any:
        """What it makes of arguments now."""
        code = self.function.__code__
        names = code.co_varnames[code.co_argcount : len(values)]
        return self.function(*values[: code.co_argcount], **dict(zip(names, values[code.co_argcount :], strict=True)))


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
        "sample_bytes": sum(item_bytes(made) for one in varied for made, *_ in one.made.values()) / len(indices),
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
            "function": one.function.__qualname__,
        }
        for one in functions
    ]


@contextmanager
def watched(
    only: dict[str, Watched] | None = None, training: Callable[[Callable[[], None]], Any] | None = None
) -> Iterator[dict[str, Watched]]:
    """Calls of the user's functions, while it lasts.

    Args:
        only: functions of which random states and results are compared, which takes time; None: all that stand by
            themselves in a module and take simple arguments are timed.
        training: does something in the thread of a training that runs on; methods, and functions of any arguments,
            are watched there, but for those in which a model is called. None: this thread.
    """
    found, opened = {} if only is None else only, list[tuple[types.FrameType, types.FunctionType, Any, Any, float]]()

    def seen(frame: types.FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if event == "call":
            if opened and code.co_name == "_call_impl":  # of a module: what it makes changes with its weights
                for _, under_way, *_ in opened:
                    found.setdefault(under_way.__qualname__, Watched(under_way)).refused = True
            if code.co_flags & (GENERATES | GATHERS) or code.co_filename.startswith(NO_USERS):
                return
            function = _function_at(frame, methods=training is not None)
            if function is None or (only is not None and function.__qualname__ not in only):
                return
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            values = [frame.f_locals[name] for name in names]
            if training is None and not all(isinstance(value, SIMPLE) for value in values):
                found.setdefault(function.__qualname__, Watched(function)).refused = True
                return
            state = random_state() if only is not None else None
            opened.append((frame, function, values, state, perf_counter()))
        elif event == "return" and opened and opened[-1][0] is frame:
            _, ended, values, state, began = opened.pop()
            one = found.setdefault(ended.__qualname__, Watched(ended))
            one.seconds += perf_counter() - began
            one.calls += 1
            above = frozenset(other.__qualname__ for _, other, *_ in opened)
            one.within = above if one.within is None else one.within & above
            if one.refused or only is None:
                return
            key = key_of(tuple(values))
            if not _plain(result) or random_state() != state:
                one.refused = True
            elif key in one.made:
                one.refused = not equal(one.made[key][1], result)
            elif training is None or len(one.made) < TRIED:
                one.made[key] = result, copy.deepcopy(result), values

    there = training or (lambda work: work())
    before: list[Any] = []
    there(lambda: before.append(sys.getprofile()))
    there(partial(sys.setprofile, seen))
    try:
        yield found
    finally:
        there(partial(sys.setprofile, before[0]))


def _function_at(frame: types.FrameType, *, methods: bool) -> types.FunctionType | None:
    """The user's function that a frame runs: one of a module, in one definition, or a method of a class."""
    code = frame.f_code
    found = [frame.f_globals.get(code.co_name)]
    if methods and code.co_argcount:
        kinds = type(frame.f_locals[code.co_varnames[0]]).__mro__
        found += [vars(kind).get(code.co_name) for kind in kinds]
    return next((each for each in found if isinstance(each, types.FunctionType) and each.__code__ is code), None)


def repeated_in_steps(live: Any) -> Setting:
    """Functions that a script's own lines call in its steps, and that make the same of the same arguments.

    These are values, or objects that somebody holds beyond the step. Some are called again after further steps, and
    make the same.

    Returns:
        ``{"functions", "seconds", "bytes"}``, the last two of a step's calls that need not be made again;
        ``{"reason": why there are none}``.
    """

    def followed() -> None:
        live.follow(lambda steps, _: steps >= STEPS)

    whole = perf_counter()
    with watched(training=live.do) as timed:
        followed()
    whole = perf_counter() - whole
    chosen = {
        name: Watched(one.function)
        for name, one in timed.items()
        if one.seconds >= LEAST_SAVING * whole and not one.refused and not one.function.__code__.co_freevars
    }
    if not chosen:
        return {"reason": "no function of the user's files takes a part of a step without calling a model"}
    with watched(chosen, live.do):
        followed()
    followed()  # arguments that nobody holds are gone, and weights are others
    holders = Counter(id(value) for one in chosen.values() for *_, values in one.made.values() for value in values)
    same = dict[str, float]()

    def again() -> None:
        for name, one in chosen.items():
            kept_alive = all(_held(values, holders) for *_, values in one.made.values())
            if kept_alive and _same_again(one) and (seconds := _seconds_again(one)) is not None:
                same[name] = seconds

    live.do(again)
    outer = [name for name in same if not (timed[name].within or frozenset()) & (same.keys() - {name})]
    if not outer:
        return {"reason": f"functions make other results, or of what lasts for a step: {', '.join(sorted(chosen))}"}
    sizes = {name: sum(item_bytes(made) for made, *_ in chosen[name].made.values()) for name in outer}
    return {
        "functions": _named(chosen[name] for name in outer),
        "seconds": sum(same[name] * timed[name].calls for name in outer) / STEPS,
        "bytes": sum(sizes[name] / len(chosen[name].made) * timed[name].calls for name in outer) / STEPS,
    }


def _held(values: list[Any], holders: Mapping[int, int]) -> bool:
    """Whether somebody else holds what may change among the arguments: what is made for a call never comes again."""
    held_by_one = [object()]
    fresh = sys.getrefcount(held_by_one[0])
    objects = [index for index, value in enumerate(values) if not _by_value(value)]
    return all(sys.getrefcount(values[index]) - holders[id(values[index])] >= fresh for index in objects)


def _by_value(value: Any) -> bool:
    return isinstance(value, SIMPLE) or (type(value) is tuple and all(map(_by_value, value)))


def _seconds_again(one: Watched) -> float | None:
    """Seconds of a call; None where another one makes something else."""
    seconds = 0.0
    for number, (_, then, values) in enumerate(one.made.values()):
        seed_everything(number)
        began = perf_counter()
        try:
            made = one.again(values)
        except Exception:
            return None
        seconds += perf_counter() - began
        if not equal(made, then):
            return None
    return seconds / len(one.made)


def _same_again(one: Watched) -> bool:
    """Whether a function made the same of the same arguments, nobody changed it since, and its source can be edited."""
    if one.refused or not one.made or not all(equal(made, then) for made, then, _ in one.made.values()):
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
