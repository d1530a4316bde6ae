"""The user's own source: seconds of their lines, operators of a step by their lines, and where a thread is, sampled."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import threading
import time
import warnings
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoopt.benchmark.contents import tensor_leaves
from autoopt.benchmark.libraries import OWN, TORCH, is_users
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.losses import history
from autoopt.records import Deeper
from autoopt.simplify.costly import Line

LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
Place = tuple[CodeType, int]
Kind = Literal["wall", "cpu", "wait"]

WORTH = 0.3
"""Of what is above it: a part that explains less ends the chain."""
_OF_ITS_OWN = tuple(str(Path(torch.__file__).parent / name) for name in ("optim", "nn", "amp", "distributed"))
"""Parts of torch that ask for values of their own accord: an optimizer's count of steps, the norm of gradients."""
OTHERS = ("nn/modules/module.py", "utils/data/", "optim/", "autograd/")
"""Parts of torch whose callees belong to another stage than the user's own line: model, loader, optimizer, backward."""
AROUND = OTHERS[:2]
"""Of these, those that call the user's functions: what is within a model or a dataset is theirs."""


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

    def loops(self) -> Iterator[ast.stmt | ast.expr]:
        return (node for node in ast.walk(self.tree) if isinstance(node, LOOPS))


def dotted(node: ast.AST) -> str:
    """``torch.zeros`` of such an expression; ``.item`` of a method of anything that is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    head = node.id if isinstance(node, ast.Name) else ""
    return ".".join([head, *reversed(parts)]) if parts else head


def tree_of(file: str) -> ast.Module:
    """The source of a file; empty where the file was changed since, and is none."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def function_of(thing: Any) -> Function | None:
    """The source of a callable, if it is the user's own and can be found."""
    thing = inspect.unwrap(thing.func if isinstance(thing, functools.partial) else thing)
    if not (inspect.isfunction(thing) or inspect.ismethod(thing)):
        thing = getattr(type(thing), "__call__", None)  # noqa: B004 - the function behind an object that can be called
    try:
        file, code = inspect.getsourcefile(thing), thing.__code__
    except (AttributeError, TypeError):
        return None
    if file is None or not is_users(file):
        return None
    for node in ast.walk(tree_of(file)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            names = tuple(each.arg for each in (*node.args.posonlyargs, *node.args.args))
            # lambdas may share a line
            if (first, names) == (code.co_firstlineno, code.co_varnames[: code.co_argcount]):
                return Function(thing.__qualname__, file, first, node)
    return None


def step_functions(loss: Any, model: nn.Module | None) -> list[Function]:
    """Functions that run in every step: the loss, and the forward of each kind of the user's modules."""
    found = [function_of(loss)] if loss is not None else []
    if isinstance(loss, nn.Module):
        found.append(function_of(loss.forward))
    kinds = {type(module): module for module in model.modules()} if model is not None else {}
    found += [function_of(module.forward) for module in kinds.values()]
    return [function for function in found if function is not None]


def parts_of(dataset: Any) -> Iterator[Any]:
    """A dataset, the datasets that it wraps, and the transforms of all of them, however they are wrapped."""
    seen: set[int] = set()
    pending = [dataset]
    # a guard against attributes that make a new object each time
    while pending and len(seen) < 200:
        part = pending.pop()
        if id(part) in seen or isinstance(part, (str, bytes, int, float)):
            continue
        seen.add(id(part))
        yield part
        for name in ("dataset", "datasets", "transform", "transforms", "target_transform", "augment", "preprocess"):
            inner = getattr(part, name, None)
            pending += inner if isinstance(inner, (list, tuple)) else [inner] if inner is not None else []


def dataset_functions(dataset: Any) -> list[Function]:
    methods = ("__getitem__", "__getitems__", "__iter__")
    found = [
        function_of(each)
        for part in parts_of(dataset)
        for each in (part, *(getattr(part, name, None) for name in methods))
        if callable(each)
    ]
    return [function for function in found if function is not None]


@dataclass
class LineProfile:
    """Lines of the user's source, and which line each function was called from: a tracer that adds them up.

    It leaves out what tracing itself took: lines that *call* a traced function would be charged for all of its lines.
    """

    wall: dict[Place, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[Place, float] = field(default_factory=lambda: defaultdict(float))
    callers: dict[CodeType, set[Place | None]] = field(default_factory=lambda: defaultdict(set))
    runs: int = 0
    _open: dict[FrameType, tuple[int, float, float]] = field(default_factory=dict)
    _wall: float = 0.0
    _cpu: float = 0.0

    def chain(self, kind: Kind = "wall", total: float | None = None) -> tuple[Deeper, ...]:
        """From the costliest line of the outermost user function down, while a line explains much of the one above.

        Args:
            total: seconds of one run without tracing, to which the traced ones are scaled.
        """
        found: list[Deeper] = []
        above: Place | None = None
        wait = {place: max(0.0, wall - self.cpu[place]) for place, wall in self.wall.items()}
        spent = {"wall": self.wall, "cpu": self.cpu, "wait": wait}[kind]
        # tracing slows Python down
        roots = {code for code, callers in self.callers.items() if None in callers}
        traced = sum(seconds for (code, _), seconds in spent.items() if code in roots)
        traced /= max(self.runs, 1)
        scale = (1.0 if total is None or traced <= 0 else min(1.0, total / traced)) / max(self.runs, 1)
        while len(found) < 6:
            codes = {code for code, callers in self.callers.items() if above in callers}
            place = max((place for place in spent if place[0] in codes), key=lambda place: spent[place], default=None)
            if place is None:
                break
            seconds = spent[place] * scale
            if seconds <= 0 or (found and seconds < WORTH * found[-1].seconds) or place == above:
                break
            found.append(link(place[0].co_filename, place[1], seconds))
            above = place
        return tuple(found)

    def hottest(self, of: Callable[[CodeType], bool], seconds: float, least: float = 0.0) -> tuple[Deeper, ...]:
        """The costliest line of some functions, as a chain of one; empty where they have none.

        Args:
            seconds: of what the lines belong to; none takes longer.
            least: share of them below which it is left out.
        """
        lines = [(place, wall / self.runs) for place, wall in self.wall.items() if of(place[0])]
        (code, line), cost = max(lines, key=lambda item: item[1], default=((None, 0), 0.0))
        if code is None or cost < least * seconds:
            return ()
        return (link(code.co_filename, line, min(cost, seconds)),)

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "call" or not is_users(frame.f_code.co_filename):
            return None
        wall, cpu = time.perf_counter(), time.thread_time()
        caller = frame.f_back
        while caller is not None and caller not in self._open:
            caller = caller.f_back
        place = (caller.f_code, self._open[caller][0]) if caller is not None else None
        self.callers[frame.f_code].add(place)
        return self._goes_on(frame, wall, cpu)

    def step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event in ("line", "return") and frame in self._open:
            wall, cpu = time.perf_counter(), time.thread_time()
            line, since, used = self._open[frame]
            self.wall[frame.f_code, line] += wall - self._wall - since
            self.cpu[frame.f_code, line] += cpu - self._cpu - used
            self._goes_on(frame, wall, cpu)
            if event == "return":
                del self._open[frame]
        return self.step

    def _goes_on(self, frame: FrameType, wall: float, cpu: float) -> Any:
        """The frame's line begins; what has passed since these readings is the tracer's own."""
        self._open[frame] = (frame.f_lineno, wall - self._wall, cpu - self._cpu)
        self._wall += time.perf_counter() - wall
        self._cpu += time.thread_time() - cpu
        return self.step


def link(file: str, line: int, seconds: float) -> Deeper:
    """A line of source as a link of the chain."""
    text = linecache.getline(file, line).strip()
    return Deeper(name=text[:100] or f"line {line}", kind="line", seconds=seconds, file=file, line=line)


def profile_lines(run: Callable[[], Any], time_limit: float, *, most: int = 50) -> LineProfile:
    """Runs again and again under a tracer that reads the user's own files alone.

    Whatever was traced before (a debugger, coverage) goes on afterwards.
    """
    profile = LineProfile()
    before = sys.gettrace()
    start = time.perf_counter()
    try:
        while profile.runs < 2 or (profile.runs < most and time.perf_counter() - start < time_limit):
            sys.settrace(profile.enter)
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
        return seconds / self.total_seconds if self.total_seconds > 0 else None


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Attributes every operator to the innermost line of the user's own that caused it.

    ``device``: values of its tensors are waited for; those of others are there.
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
        frame, seen, made = sys._getframe(1), self.seen, tensor_leaves(out)
        line = users_line(frame)
        double = any(leaf.dtype == torch.float64 and leaf.dim() for leaf in made)
        seen.double_total += double
        seen.double_seconds += passed * double
        if line is None:
            return out
        seen.operators[line] += 1
        seen.seconds[line] += passed
        taken, copies = {leaf.device.type for leaf in tensor_leaves(args)}, name in ("_to_copy", "copy_")
        to_host = copies and self._device != "cpu" and any(leaf.device.type == "cpu" for leaf in made)
        fetches = self._device in taken and (to_host or name in ("_local_scalar_dense", "nonzero", "item"))
        if fetches and users_line(frame, itself=True) is not None:  # the host waits for values of the device
            seen.syncs[line] += 1
            seen.waited[line] += passed
        if double:
            seen.doubles[line] += 1
        if name == "_to_copy" or (copies and len(taken) > 1):
            seen.copies[line] += 1
            seen.copied[line] += passed
            seen.copied_bytes[line] += sum(leaf.numel() * leaf.element_size() for leaf in made)
        return out


def users_line(frame: FrameType | None, *, itself: bool = False) -> Line | None:
    """The innermost frame in a file of the user's own; None where autoopt called the library itself.

    ``itself``: None also where a part of torch on the way, such as an optimizer, does it of its own accord.
    """
    others = (OWN, *_OF_ITS_OWN) if itself else (OWN,)
    while frame is not None and not frame.f_code.co_filename.startswith(others):
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
    if device.type != "cuda":
        return mode.seen
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for item in caught:
        if "synchroniz" in str(item.message) and is_users(item.filename):
            line = (item.filename, item.lineno)
            mode.seen.syncs[line] = max(mode.seen.syncs[line], 1)
    return mode.seen


def unused_outputs(model: nn.Module, forward: Callable[[], torch.Tensor]) -> list[tuple[str, Line | None, float]]:
    """Submodules that are computed for nothing, since their outputs are not in the loss's graph.

    Of each its name, the line that calls it, and the seconds of its forward.
    """
    tensors: dict[str, list[torch.Tensor]] = defaultdict(list)
    lines: dict[str, Line | None] = {}
    seconds: dict[str, float] = defaultdict(float)
    began: dict[str, float] = {}
    handles: list[Any] = []

    def watch(name: str, module: nn.Module) -> None:
        def begin(module: nn.Module, inputs: Any) -> None:
            began[name] = time.perf_counter()

        def end(module: nn.Module, inputs: Any, made: Any) -> None:
            seconds[name] += time.perf_counter() - began[name]
            lines[name] = lines.get(name) or users_line(sys._getframe(1))
            tensors[name] += tensor_leaves(made)

        handles.extend([module.register_forward_pre_hook(begin), module.register_forward_hook(end)])

    for name, module in model.named_modules():
        if name:
            watch(name, module)
    try:
        loss = forward()
    finally:
        for handle in handles:
            handle.remove()
    reached = set(history(loss))
    graphs = {name: {tensor.grad_fn for tensor in made} - {None} for name, made in tensors.items()}
    names = {name for name, nodes in graphs.items() if nodes and nodes.isdisjoint(reached)}
    outer = [name for name in lines if name in names and not any(name.startswith(f"{o}.") for o in names)]
    return [(name, lines[name], seconds[name]) for name in outer]


# where a thread is, sampled


@dataclass
class Samples:
    """Samples of one thread.

    Attributes:
        own: those in the user's own Python, by its code and line.
        loops: codes and lines that begin a backward pass, or step an optimizer: the training loop's.
    """

    total: int = 0
    own: Counts[tuple[CodeType, int]] = field(default_factory=Counts)
    loops: set[tuple[CodeType, int]] = field(default_factory=set)

    def see(self, frame: FrameType | None) -> None:
        """One sample: the innermost frame of the thread."""
        self.total += 1
        inner: str | None = None
        while frame is not None and not is_users(frame.f_code.co_filename):
            inner = inner or _part(frame.f_code.co_filename)
            frame = frame.f_back
        if frame is None:
            return
        line = frame.f_lineno
        own = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # functions to Python alone
        while frame.f_code.co_name in own and frame.f_back is not None:
            frame = frame.f_back
        place = frame.f_code, line
        if inner is not None:
            if inner not in AROUND:
                self.loops.add(place)
            return
        while (frame := frame.f_back) is not None:
            if _part(frame.f_code.co_filename) in AROUND:
                return
        self.own[place] += 1

    def functions(self) -> Iterator[tuple[str, str, int, float]]:
        """Name, file, hottest line and share of a step of the user's functions, the largest share first.

        Of the function that holds the training loop only loops within it count: its other lines are single operations.
        """
        training: dict[CodeType, set[int]] = {}
        for code, line in self.loops:
            training.setdefault(code, set()).add(line)
        inner = dict[CodeType, list[range]]()
        for code, trained in training.items():
            loops = (node for node in ast.walk(tree_of(code.co_filename)) if isinstance(node, (ast.For, ast.While)))
            spans = (range(node.body[0].lineno, (node.end_lineno or 0) + 1) for node in loops)
            inner[code] = [span for span in spans if trained.isdisjoint(span)]  # without the training loop's own lines
        found: dict[CodeType, Counts[int]] = {}
        for (code, line), count in self.own.items():
            if code not in inner or any(line in loop for loop in inner[code]):
                found.setdefault(code, Counts())[line] += count
        for code, lines in sorted(found.items(), key=lambda item: -item[1].total()):
            name = f"a loop in {code.co_name}" if code in training else code.co_name
            yield name, code.co_filename, lines.most_common(1)[0][0], lines.total() / max(self.total, 1)


def _part(file: str) -> str | None:
    """The part of torch that a file belongs to; None of another one."""
    at = next((len(folder) for folder in TORCH if file.startswith(folder)), None)
    return None if at is None else next((part for part in OTHERS if file.startswith(part, at)), None)


class Sampler:
    """Samples the thread that trains from another one, as long as it is open; not while the training evaluates."""

    def __init__(self, training: LiveTraining) -> None:
        self.samples = Samples()
        self._training, self._over = training, threading.Event()
        self._number = training.do(threading.get_ident)
        self._thread = threading.Thread(target=self._sample, name="samples", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(0.004):  # some hundred samples a second tell a share of a step within some percent
            if not self._training.evaluates:
                self.samples.see(sys._current_frames().get(self._number))
