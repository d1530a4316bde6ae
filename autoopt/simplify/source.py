"""The user's own source: which files are theirs, seconds of their lines, operators of a step by their lines."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import sysconfig
import textwrap
import time
import warnings
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
WORTH = 0.3
"""Of what is above it: a part that explains less ends the chain."""
Line = tuple[str, int]
_OF_ITS_OWN = tuple(str(Path(torch.__file__).parent / name) for name in ("optim", "nn", "amp", "distributed"))
"""Parts of torch that ask for values of their own accord: an optimizer's count of steps, the norm of gradients."""


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
        while len(found) < 6:
            codes = {code for code, callers in self.callers.items() if above in callers}
            lines = [(place, spent) for place, spent in self.spent.items() if place[0] in codes]
            if not lines:
                break
            place, spent = max(lines, key=lambda item: item[1].of(kind))
            seconds = spent.of(kind) * scale
            if seconds <= 0 or (found and seconds < WORTH * found[-1].seconds) or place == above:
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
    """Runs again and again under a tracer that reads the user's own files alone.

    Whatever was traced before (a debugger, coverage) goes on afterwards.
    """
    profile = LineProfile()
    tracer = _Tracer(profile)
    before = sys.gettrace()
    start = time.perf_counter()
    try:
        while profile.runs < 2 or (profile.runs < most and time.perf_counter() - start < time_limit):
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


@dataclass
class WatchedStep:
    """Counts, seconds and bytes of one step by line of the user's source; ``seconds``: of its operators by line.

    ``waited``: seconds in which values of a device were fetched. ``total_seconds``: of the whole step, watched.
    """

    syncs: Counts[Line] = field(default_factory=Counts)
    waited: dict[Line, float] = field(default_factory=lambda: defaultdict(float))
    operators: Counts[Line] = field(default_factory=Counts)
    seconds: dict[Line, float] = field(default_factory=lambda: defaultdict(float))
    doubles: Counts[Line] = field(default_factory=Counts)
    copies: Counts[Line] = field(default_factory=Counts)
    copied_bytes: Counts[Line] = field(default_factory=Counts)
    copied: dict[Line, float] = field(default_factory=lambda: defaultdict(float))
    total_seconds: float = 0.0
    double_total: int = 0
    double_seconds: float = 0.0

    def share(self, seconds: float) -> float | None:
        """Of the watched step; None where it was not watched."""
        return seconds / self.total_seconds if self.total_seconds > 0 else None


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Attributes every operator to the innermost line of the user's own that caused it.

    Args:
        device: values of its tensors are waited for; those of others are there.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = WatchedStep()
        self._device = device.type

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        began = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        passed = time.perf_counter() - began
        name = str(getattr(func, "_overloadpacket", func)).removeprefix("aten.")
        frame, seen = sys._getframe(1), self.seen
        line = users_line(frame)
        double = any(leaf.dtype == torch.float64 and leaf.dim() for leaf in _tensors(out))
        seen.double_total += double
        seen.double_seconds += passed * double
        if line is None:
            return out
        seen.operators[line] += 1
        seen.seconds[line] += passed
        if self._fetches(name, out, args) and asks_itself(frame):
            seen.syncs[line] += 1
            seen.waited[line] += passed
        if double:
            seen.doubles[line] += 1
        if name == "_to_copy" or (name == "copy_" and _crosses(args)):
            seen.copies[line] += 1
            seen.copied[line] += passed
            seen.copied_bytes[line] += sum(leaf.numel() * leaf.element_size() for leaf in _tensors(out))
        return out

    def _fetches(self, name: str, out: Any, args: Any) -> bool:
        """Whether the host waits for values of the device."""
        if not any(leaf.device.type == self._device for leaf in _tensors(args)):
            return False
        if name in ("_local_scalar_dense", "nonzero", "item"):
            return True
        return (
            name in ("_to_copy", "copy_")
            and self._device != "cpu"
            and (_crosses((out, *args)) and any(leaf.device.type == "cpu" for leaf in _tensors(out)))
        )


def asks_itself(frame: FrameType | None) -> bool:
    """Whether the user's line asks for the value, and not a part of torch on its way, such as an optimizer."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_OF_ITS_OWN):
            return False
        frame = frame.f_back
    return frame is not None


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _crosses(values: Any) -> bool:
    return len({leaf.device.type for leaf in _tensors(values)}) > 1


def users_line(frame: FrameType | None) -> Line | None:
    """The innermost frame in a file of the user's own; None where autoopt called the library itself."""
    while frame is not None:
        if is_ours(frame.f_code.co_filename):
            return None
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def watch(run: Callable[[], Any], device: torch.device) -> WatchedStep:
    """Runs one step and says what it did; on CUDA also what torch's own debug mode calls a synchronization."""
    mode = Watch(device)
    began = time.perf_counter()
    with mode:
        run()
    mode.seen.total_seconds = time.perf_counter() - began
    if device.type == "cuda":
        for line in _cuda_syncs(run):
            mode.seen.syncs[line] = max(mode.seen.syncs[line], 1)
    return mode.seen


def _cuda_syncs(run: Callable[[], Any]) -> list[Line]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return [
        (item.filename, item.lineno) for item in caught if "synchroniz" in str(item.message) and is_users(item.filename)
    ]


@dataclass
class Unused:
    """A submodule whose output does not reach the loss, the line that calls it, and the seconds of its forward."""

    module: str
    line: Line | None
    seconds: float = 0.0


@dataclass
class _Output:
    """Outputs of a submodule in one forward pass."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    line: Line | None = None
    began: float = 0.0
    seconds: float = 0.0


def unused_outputs(model: nn.Module, forward: Callable[[], torch.Tensor]) -> list[Unused]:
    """Submodules that are computed for nothing: their outputs are not in the loss's graph."""
    outputs: dict[str, _Output] = {}
    with _outputs_of(model, outputs):
        loss = forward()
    reached = _graph(loss)
    found = []
    for name, output in outputs.items():
        nodes = [tensor.grad_fn for tensor in output.tensors if tensor.grad_fn is not None]
        if nodes and not any(node in reached for node in nodes):
            found.append(Unused(name, output.line, output.seconds))
    names = {item.module for item in found}
    return [item for item in found if not any(item.module.startswith(f"{other}.") for other in names)]


@contextmanager
def _outputs_of(model: nn.Module, outputs: dict[str, _Output]) -> Iterator[None]:
    handles = []

    def begin(name: str) -> None:
        outputs.setdefault(name, _Output()).began = time.perf_counter()

    def keep(name: str, made: Any, line: Line | None) -> None:
        output = outputs[name]
        output.seconds += time.perf_counter() - output.began
        output.tensors += _tensors(made)
        output.line = output.line or line

    for name, module in model.named_modules():
        if name:
            handles += [
                module.register_forward_pre_hook(lambda module, inputs, name=name: begin(name)),
                module.register_forward_hook(
                    lambda module, inputs, made, name=name: keep(name, made, users_line(sys._getframe(1)))
                ),
            ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _graph(loss: torch.Tensor) -> set[Any]:
    """Every node of the backward graph."""
    seen: set[Any] = set()
    pending = [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [following for following, _ in node.next_functions]
    return seen
