"""The user's own source: which files are theirs, their functions as syntax trees, and the seconds of their lines."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import sysconfig
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

from torch import nn

from autoopt.records import Deeper

LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
Place = tuple[CodeType, int]
Kind = Literal["wall", "cpu", "wait"]

_OURS = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
)
_WORTH = 0.3
_DEEPEST = 6
_FEWEST_RUNS = 2


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a file is neither a library's nor autoopt's own."""
    if filename.startswith("<") or "site-packages" in filename:
        return False
    path = str(Path(filename).resolve())
    return not path.startswith((_OURS, *_LIBRARIES))


def is_ours(filename: str) -> bool:
    """Whether a file is autoopt's own."""
    return filename.startswith(_OURS)


@dataclass(frozen=True)
class Function:
    """A function of the user's: its tree, with line numbers of the file."""

    name: str
    file: str
    line: int
    tree: ast.AST

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call with its dotted name as written; a method of an expression begins with a dot."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield dotted(node.func), node

    def loops(self) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, LOOPS))

    def in_loop(self, line: int) -> bool:
        """Whether a line lies in a loop's body or in a comprehension."""
        return any(
            node.lineno <= line <= (node.end_lineno or node.lineno)  # type: ignore[attr-defined]
            for node in self.loops()
        )


def dotted(node: ast.AST) -> str:
    """``torch.zeros`` of such an expression; ``.item`` of a method of anything that is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    head = node.id if isinstance(node, ast.Name) else ""
    return ".".join([head, *reversed(parts)]) if parts else head


def function_of(thing: Any) -> Function | None:
    """The source of a callable, if it is the user's own and can be found."""
    thing = inspect.unwrap(thing.func if isinstance(thing, functools.partial) else thing)
    if not (inspect.isfunction(thing) or inspect.ismethod(thing)):
        thing = getattr(type(thing), "__call__", None)  # noqa: B004 - the function behind an object that can be called
    try:
        file = inspect.getsourcefile(thing)
        lines, first = inspect.getsourcelines(thing)
    except (TypeError, OSError):
        return None
    if file is None or not is_users(file):
        return None
    tree = _parse("".join(lines))
    if tree is None:
        return None
    ast.increment_lineno(tree, first - 1)
    return Function(getattr(thing, "__qualname__", repr(thing)), file, first, tree)


def _parse(text: str) -> ast.AST | None:
    """The tree of a function's source; a lambda's line may begin or end anywhere."""
    text = textwrap.dedent(text)
    for attempt in (text, f"({text.strip().rstrip(',')})", _lambda(text)):
        try:
            return ast.parse(attempt)
        except SyntaxError:
            continue
    return None


def _lambda(text: str) -> str:
    """Source that follows ``lambda`` in a line of an argument list, up to the last point at which it can be read."""
    begin = text.find("lambda")
    if begin < 0:
        return "!"
    piece = text[begin:].rstrip()
    while piece:
        try:
            ast.parse(f"({piece})")
        except SyntaxError:
            piece = piece[:-1]
        else:
            return f"({piece})"
    return "!"


def step_functions(loss: Any, model: nn.Module | None) -> list[Function]:
    """Functions that run in every step: the loss, and the forward of each kind of the user's modules."""
    found = [function_of(loss)] if loss is not None else []
    if isinstance(loss, nn.Module):
        found.append(function_of(loss.forward))
    kinds = {type(module): module for module in model.modules()} if model is not None else {}
    found += [function_of(module.forward) for module in kinds.values()]
    return [function for function in found if function is not None]


def dataset_functions(dataset: Any) -> list[Function]:
    """How samples are made, however the dataset is wrapped."""
    found: list[Function] = []
    pending, seen = [dataset], set()
    while pending:
        holder = pending.pop()
        if id(holder) in seen or holder is None:
            continue
        seen.add(id(holder))
        for name in ("__getitem__", "__getitems__", "__iter__", "transform", "augment"):
            method = getattr(holder, name, None)
            function = function_of(method) if callable(method) else None
            if function:
                found.append(function)
        pending += [getattr(holder, "dataset", None), *(getattr(holder, "datasets", None) or [])]
    return found


@dataclass
class LineSeconds:
    """Seconds of a line with all that it calls: by the clock, and on a core."""

    wall: float = 0.0
    cpu: float = 0.0

    def of(self, kind: Kind) -> float:
        return {"wall": self.wall, "cpu": self.cpu, "wait": max(0.0, self.wall - self.cpu)}[kind]


@dataclass
class LineProfile:
    """Lines of the user's source, and which line each function was called from."""

    spent: dict[Place, LineSeconds] = field(default_factory=lambda: defaultdict(LineSeconds))
    callers: dict[CodeType, set[Place | None]] = field(default_factory=lambda: defaultdict(set))
    runs: int = 0

    def chain(self, kind: Kind = "wall", total: float | None = None) -> tuple[Deeper, ...]:
        """From the costliest line of the outermost user function down, while a line explains much of the one above.

        Args:
            kind: which seconds decide.
            total: seconds of one run without tracing, to which the traced ones are scaled.
        """
        found: list[Deeper] = []
        above: Place | None = None
        scale = self._scale(kind, total)
        while len(found) < _DEEPEST:
            codes = {code for code, callers in self.callers.items() if above in callers}
            lines = [(place, spent) for place, spent in self.spent.items() if place[0] in codes]
            if not lines:
                break
            place, spent = max(lines, key=lambda item: item[1].of(kind))
            seconds = spent.of(kind) * scale
            if seconds <= 0 or (found and seconds < _WORTH * found[-1].seconds) or place == above:
                break
            found.append(link(place[0].co_filename, place[1], seconds))
            above = place
        return tuple(found)

    def hot(self) -> list[tuple[str, int, float]]:
        """All lines, the costliest first: file, line, seconds of one run."""
        lines = [(code.co_filename, line, spent.wall / self.runs) for (code, line), spent in self.spent.items()]
        return sorted(lines, key=lambda item: -item[2])

    def _scale(self, kind: Kind, total: float | None) -> float:
        """Tracing slows Python down, so traced seconds are scaled to those of a run that was not traced."""
        roots = {code for code, callers in self.callers.items() if None in callers}
        traced = sum(spent.of(kind) for (code, _), spent in self.spent.items() if code in roots) / max(self.runs, 1)
        if total is None or traced <= 0:
            return 1.0 / max(self.runs, 1)
        return min(1.0, total / traced) / self.runs


def link(file: str, line: int, seconds: float) -> Deeper:
    """A line of source as a link of the chain."""
    text = linecache.getline(file, line).strip()
    return Deeper(name=text[:100] or f"line {line}", kind="line", seconds=seconds, file=file, line=line)


def profile_lines(run: Callable[[], Any], time_limit: float, *, most: int = 50) -> LineProfile:
    """Runs again and again under a tracer that looks at the user's own files alone.

    Whatever was traced before (a debugger, coverage) goes on afterwards.
    """
    profile = LineProfile()
    tracer = _Tracer(profile)
    before = sys.gettrace()
    start = time.perf_counter()
    try:
        while profile.runs < _FEWEST_RUNS or (profile.runs < most and time.perf_counter() - start < time_limit):
            sys.settrace(tracer.enter)
            try:
                run()
            finally:
                sys.settrace(None)
            profile.runs += 1
            if time.perf_counter() - start > 4 * time_limit:
                break
    finally:
        sys.settrace(before)
    return profile


class _Clock:
    """Wall and core seconds less those that the tracer itself took.

    Without that the lines that *call* a traced function would be charged for the tracing of all its lines.
    """

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0
        self.entered = (0.0, 0.0)

    def enter(self) -> tuple[float, float]:
        """Seconds that the traced code has used so far; from here to ``leave`` it is the tracer's own time."""
        self.entered = (time.perf_counter(), time.thread_time())
        return self.entered[0] - self.wall, self.entered[1] - self.cpu

    def leave(self) -> None:
        """Goes back to the traced code."""
        self.wall += time.perf_counter() - self.entered[0]
        self.cpu += time.thread_time() - self.entered[1]


class _Tracer:
    def __init__(self, profile: LineProfile) -> None:
        self.profile = profile
        self.clock = _Clock()
        self.open: dict[FrameType, tuple[int, float, float]] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "call" or not is_users(frame.f_code.co_filename):
            return None
        now, cpu = self.clock.enter()
        caller = frame.f_back
        while caller is not None and caller not in self.open:
            caller = caller.f_back
        place = (caller.f_code, self.open[caller][0]) if caller is not None else None
        self.profile.callers[frame.f_code].add(place)
        self.open[frame] = (frame.f_lineno, now, cpu)
        self.clock.leave()
        return self.step

    def step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event in ("line", "return") and frame in self.open:
            now, cpu = self.clock.enter()
            line, since, used = self.open[frame]
            spent = self.profile.spent[(frame.f_code, line)]
            spent.wall += now - since
            spent.cpu += cpu - used
            if event == "return":
                del self.open[frame]
            else:
                self.open[frame] = (frame.f_lineno, now, cpu)
            self.clock.leave()
        return self.step
