"""Drill-down of the input side: per transform of a Compose-like pipeline, and per line of the dataset's own source."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from autoopt.records import Deeper
from autoopt.simplify.lines import LineProfile, is_users, profile_lines


@dataclass(frozen=True)
class Opened:
    """Chains below one sample: where a core works, and where it waits; seconds per sample."""

    working: tuple[Deeper, ...] = ()
    waiting: tuple[Deeper, ...] = ()
    notes: tuple[str, ...] = ()


def open_dataset(dataset: Any, read: Callable[[], int], cpu: float, wait: float, time_limit: float) -> Opened:
    """Chains below one sample. Meant for a forked child: it changes the dataset's transforms in place.

    Args:
        read: reads some samples and says how many.
        cpu, wait: seconds per sample as measured without looking inside.
        time_limit: seconds for all of it.
    """
    count = 0

    def run() -> None:
        nonlocal count
        count += read()

    profile = profile_lines(run, time_limit / 2)
    each = count / max(profile.runs, 1)
    if not each:
        return Opened(notes=("the dataset was not opened: it gave no sample",))
    lines = _per_sample(profile, "cpu", cpu, each), _per_sample(profile, "wait", wait, each)
    working, waiting = _transforms(dataset, read, time_limit / 2)
    notes = () if any(lines) or working else ("the dataset was not opened: all of its source is a library's",)
    return Opened(working=_joined(working, lines[0], cpu), waiting=_joined(waiting, lines[1], wait), notes=notes)


def _per_sample(profile: LineProfile, kind: Any, seconds: float, each: float) -> tuple[Deeper, ...]:
    """The chain of lines, scaled to one sample."""
    chain = profile.chain(kind, seconds * each if seconds else None)
    return tuple(item.model_copy(update={"seconds": item.seconds / each}) for item in chain)


def _joined(transforms: tuple[Deeper, ...], lines: tuple[Deeper, ...], seconds: float) -> tuple[Deeper, ...]:
    """The costliest transform, if it is worth it, between the line that calls it and the lines within it."""
    if not transforms or not transforms[0].seconds or transforms[0].seconds < 0.3 * seconds:
        return lines
    top = transforms[0]
    above = tuple(item for item in lines if item.seconds >= top.seconds and item.line != top.line)[:1]
    inside = tuple(item for item in lines if item not in above and _within(top, item))
    return (*above, top, *inside)


def _within(transform: Deeper, line: Deeper) -> bool:
    return transform.file is not None and transform.file == line.file and (line.line or 0) >= (transform.line or 0)


def _transforms(
    dataset: Any, read: Callable[[], int], time_limit: float
) -> tuple[tuple[Deeper, ...], tuple[Deeper, ...]]:
    """Seconds per sample of each transform, by work and by waiting, the costliest first.

    Empty where there is no Compose-like pipeline.
    """
    timers = [timer for compose in composes(dataset) for timer in _wrap(compose)]
    if not timers:
        return (), ()
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < time_limit:
        got = read()
        if not got:
            break
        count += got
    working, waiting = [], []
    for timer in timers:
        file, line = source_of(timer.inner)
        link = Deeper(
            name=name_of(timer.inner), kind="transform", seconds=timer.cpu / max(count, 1), file=file, line=line
        )
        working.append(link)
        waiting.append(link.model_copy(update={"seconds": max(0.0, timer.wall - timer.cpu) / max(count, 1)}))
    working.sort(key=lambda item: -item.seconds)
    waiting.sort(key=lambda item: -item.seconds)
    return tuple(working), tuple(waiting)


def composes(dataset: Any) -> Iterator[Any]:
    """Objects with a list of ``transforms``, however the dataset is wrapped."""
    seen: set[int] = set()
    pending = [dataset]
    while pending and len(seen) < 200:
        holder = pending.pop()
        if id(holder) in seen or isinstance(holder, (str, bytes, int, float)):
            continue
        seen.add(id(holder))
        if isinstance(getattr(holder, "transforms", None), list):
            yield holder
        for name in ("dataset", "datasets", "transform", "transforms", "target_transform", "augment", "preprocess"):
            inner = getattr(holder, name, None)
            pending += inner if isinstance(inner, (list, tuple)) else [inner] if inner is not None else []


class Timer:
    """A transform that is timed, by the thread's CPU clock and the wall's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.wall = self.cpu = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start, used = time.perf_counter(), time.thread_time()
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.wall += time.perf_counter() - start
            self.cpu += time.thread_time() - used

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _wrap(compose: Any) -> list[Timer]:
    timers = [Timer(transform) for transform in compose.transforms]
    compose.transforms[:] = timers
    return timers


def name_of(thing: Any) -> str:
    """A short name: a function's own, else the class."""
    return str(getattr(thing, "__name__", None) or type(thing).__name__)


def source_of(thing: Any) -> tuple[str | None, int | None]:
    """File and first line of what a callable runs, if that is the user's own."""
    kind: Any = type(thing)
    candidates: tuple[Any, ...] = (thing, getattr(kind, "forward", None), kind.__dict__.get("__call__"), kind)
    for candidate in candidates:
        try:
            file = inspect.getsourcefile(candidate)
            line = inspect.getsourcelines(candidate)[1]
        except (TypeError, OSError):
            continue
        if file and is_users(file):
            return file, line
    return None, None
