"""Calls at lines of a script that do nothing: what a plan leaves out of a step."""

from __future__ import annotations

import functools
import linecache
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from autoopt.script.frames import shown
from autoopt.simplify.forced import CALLS

_ALONE = re.compile(r"\s*[\w.]+\(\s*\)\s*(#.*)?")


def stands_alone(file: str, line: int) -> bool:
    """Whether a line is a call without arguments and nothing else, so that nobody asks what it returns."""
    return _ALONE.fullmatch(linecache.getline(file, line).rstrip("\n")) is not None


def place_and_call(text: str) -> tuple[str, int, str]:
    """File, line and call of ``train.py:9 gc.collect``."""
    place, call = text.rsplit(" ", 1)
    file, line = place.rsplit(":", 1)
    return file, int(line), call


def leave_out(calls: Iterable[str]) -> None:
    """From here on these calls do nothing at their lines; everywhere else they do what they did.

    Args:
        calls: such as ``train.py:9 gc.collect``; files as the script's sites name them.

    Raises:
        ValueError: a call that is none of those that may be left out.
    """
    owners = {name: (module, attribute) for module, attribute, name in CALLS if name != "print"}
    places: dict[str, set[tuple[str, int]]] = {}
    for file, line, call in map(place_and_call, calls):
        if call not in owners:
            raise ValueError(f"{call} cannot be left out; {', '.join(sorted(owners))} can")
        places.setdefault(call, set()).add((file, line))
    for call, lines in places.items():
        module, attribute = owners[call]
        owner = import_module(module)
        setattr(owner, attribute, _without(getattr(owner, attribute), lines))


def _without(call: Callable[..., Any], places: set[tuple[str, int]]) -> Callable[..., Any]:
    numbers = {line for _, line in places}

    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_lineno in numbers and (shown(frame.f_code.co_filename), frame.f_lineno) in places:
            return None
        return call(*args, **kwargs)

    return called
