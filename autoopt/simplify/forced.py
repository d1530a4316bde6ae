"""Calls that hold a step up and are no part of training: garbage collected by force, caches emptied, waits, prints.

torch is not imported here.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from autoopt.records import Advice

Line = tuple[str, int]

CALLS = (
    ("gc", "collect", "gc.collect"),
    ("torch.cuda", "empty_cache", "torch.cuda.empty_cache"),
    ("torch.cuda", "synchronize", "torch.cuda.synchronize"),
    ("builtins", "print", "print"),
)
"""Module, attribute and name of each."""
LEAST = 0.01
"""Of a step: what takes less is not worth a person's time."""
_TOLD = {
    "gc.collect": (
        "Garbage is collected by force in every step",
        "take the line out, or `if step % 100 == 0: gc.collect(1)`; `gc.freeze()` before the loop makes each one short",
    ),
    "torch.cuda.empty_cache": (
        "The allocator's cache is emptied in every step",
        "take the line out: what it gives back is asked for again in the next step, and each time the device waits",
    ),
    "torch.cuda.synchronize": (
        "The host waits for the device in every step",
        "take the line out, or do it where something is timed alone: work is issued while the device computes",
    ),
    "print": (
        "Something is printed in every step",
        "print every so many steps, `if step % 100 == 0:`, or keep the values and print them at each evaluation",
    ),
}

Found = dict[tuple[str, Line], list[float]]
"""Seconds of each call, by its name and the user's line that makes it."""


@contextmanager
def watched_calls() -> Iterator[Found]:
    """Seconds of such calls by the user's own lines, while it lasts; a library's own are none of them."""
    from autoopt.simplify.source import is_users  # local: it imports torch, which who words the advice alone does not

    found: Found = {}
    plain = [
        (owner := import_module(module), attribute, getattr(owner, attribute), name)
        for module, attribute, name in CALLS
    ]
    for owner, attribute, call, name in plain:
        setattr(owner, attribute, _timed(call, name, found, is_users))
    try:
        yield found
    finally:
        for owner, attribute, call, _ in plain:
            setattr(owner, attribute, call)


def _timed(call: Callable[..., Any], name: str, found: Found, is_users: Callable[[str], bool]) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*args: Any, **kwargs: Any) -> Any:
        frame, began = sys._getframe(1), time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            if is_users(frame.f_code.co_filename):
                line = (frame.f_code.co_filename, frame.f_lineno)
                found.setdefault((name, line), []).append(time.perf_counter() - began)

    return timed


def forced_advice(name: str, line: Line, count: float, seconds: float, step: float) -> Advice | None:
    """Advice on a call that is made in every step; None where it takes next to nothing of one.

    Args:
        count, seconds: in a step.
        step: its seconds.
    """
    share = min(1.0, seconds / step) if step > 0 else None
    if share is None or share < LEAST:
        return None
    title, suggestion = _TOLD[name]
    evidence = f"{name}() {count:.3g} times in a step, {seconds * 1e3:.3g} ms, {share:.0%} of it, measured"
    return Advice(title=title, evidence=evidence, share=share, file=line[0], line=line[1], suggestion=suggestion)


def advice_of_calls(found: Found, step: float, batches: int = 1) -> list[Advice]:
    """Advice on the calls that were seen in one step.

    Args:
        batches: micro-batches of a step for each of what was watched.
    """
    told = [
        forced_advice(name, line, len(times) * batches, sum(times) * batches, step)
        for (name, line), times in sorted(found.items())
    ]
    return [item for item in told if item is not None]
