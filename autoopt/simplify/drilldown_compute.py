"""Drill-down of the compute side: per submodule forward and backward, per line of the user's source."""

from __future__ import annotations

import inspect
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from autoopt.benchmark.training import Training
from autoopt.records import Deeper
from autoopt.simplify.lines import LineProfile, is_users, link, profile_lines
from autoopt.simplify.stage_timings import Timing

_WORTH = 0.3


def open_compute(
    training: Training, batch: Any, timings: dict[str, Any], time_limit: float
) -> dict[str, tuple[Deeper, ...]]:
    """Chains below forward, backward, optimizer, host and evaluation; seconds of one call of each."""
    forward, backward = timings["forward"], timings["backward"].seconds
    modules = module_seconds(training, batch, time_limit * 0.3)
    loss: list[torch.Tensor] = []

    def run_forward() -> None:
        loss[:] = [training.forward(batch)]

    ahead = profile_lines(run_forward, time_limit * 0.2)
    back = profile_lines(lambda: training.backward(training.forward(batch)), time_limit * 0.3)
    training.optimizer.zero_grad(set_to_none=True)
    return {
        "forward": (*_path(training.model, modules.forward, forward.seconds), *ahead.chain("wall", forward.seconds)),
        "backward": (*_path(training.model, modules.backward, backward), *_only_backward(back, backward)),
        "optimizer": _optimizer(training, batch, timings["optimizer"], time_limit * 0.1),
    }


def _only_backward(profile: LineProfile, seconds: float) -> tuple[Deeper, ...]:
    """Lines of the user's own that run in the backward pass: those of an ``autograd.Function``."""
    hot = [
        (code, line, spent.wall / profile.runs)
        for (code, line), spent in profile.spent.items()
        if code.co_name == "backward"
    ]
    if not hot:
        return ()
    code, line, cost = max(hot, key=lambda item: item[2])
    if cost < _WORTH * seconds:
        return ()
    return (link(code.co_filename, line, min(cost, seconds)),)


def _optimizer(training: Training, batch: Any, timing: Timing, time_limit: float) -> tuple[Deeper, ...]:
    """Lines of an optimizer of the user's own."""
    if not is_users(inspect.getsourcefile(type(training.optimizer)) or "<"):
        return ()

    def run() -> None:
        training.backward(training.forward(batch))
        training.update()

    profile = profile_lines(run, time_limit)
    file = inspect.getsourcefile(type(training.optimizer))
    lines = [item for item in profile.hot() if item[0] == file]
    if not lines:
        return ()
    _, line, seconds = lines[0]
    return (link(str(file), line, min(seconds, timing.seconds)),)


@dataclass
class ModuleSeconds:
    """Seconds of each submodule by its dotted name, with all below it."""

    forward: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    backward: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    runs: int = 0


def module_seconds(training: Training, batch: Any, time_limit: float) -> ModuleSeconds:
    """Times every submodule of an eager model forward, and backward between the gradients of its output and input."""
    found = ModuleSeconds()
    start = time.perf_counter()
    with _hooked(training, found):
        while found.runs < 2 or (time.perf_counter() - start < time_limit and found.runs < 30):
            training.optimizer.zero_grad(set_to_none=True)
            training.backward(training.forward(batch))
            training.device.synchronize()
            found.runs += 1
            if time.perf_counter() - start > 3 * time_limit:
                break
    for table in (found.forward, found.backward):
        for name in table:
            table[name] /= found.runs
    return found


@contextmanager
def _hooked(training: Training, found: ModuleSeconds) -> Iterator[None]:
    handles: list[Any] = []
    begun: dict[str, list[float]] = defaultdict(list)
    for name, module in training.model.named_modules():
        if not name:
            continue
        handles.append(module.register_forward_pre_hook(_starter(training, name, begun)))
        handles.append(module.register_forward_hook(_stopper(training, name, begun, found)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _starter(training: Training, name: str, begun: dict[str, list[float]]) -> Callable[..., None]:
    def start(module: nn.Module, inputs: Any) -> None:
        training.device.synchronize()
        begun[name].append(time.perf_counter())

    return start


def _stopper(training: Training, name: str, begun: dict[str, list[float]], found: ModuleSeconds) -> Callable[..., None]:
    def stop(module: nn.Module, inputs: Any, output: Any) -> None:
        training.device.synchronize()
        if begun[name]:
            found.forward[name] += time.perf_counter() - begun[name].pop()
        _time_backward(training, name, inputs, output, found)

    return stop


def _time_backward(training: Training, name: str, inputs: Any, output: Any, found: ModuleSeconds) -> None:
    """From the gradient of the output to that of the input; hooks on tensors leave in-place code alone."""
    mark: list[float] = []

    def began(gradient: Any) -> None:
        training.device.synchronize()
        if not mark:
            mark.append(time.perf_counter())

    def ended(gradient: Any) -> None:
        training.device.synchronize()
        if mark:
            found.backward[name] += time.perf_counter() - mark[0]
            mark.clear()

    outputs, before = _differentiable(output), _differentiable(inputs)
    if outputs and before and outputs[0] is not before[0]:
        outputs[0].register_hook(began)  # type: ignore[no-untyped-call]
        before[0].register_hook(ended)  # type: ignore[no-untyped-call]


def _differentiable(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _path(model: nn.Module, seconds: dict[str, float], whole: float) -> tuple[Deeper, ...]:
    """From the model down to the costliest submodule, as long as one explains enough of what is above it."""
    found: list[Deeper] = []
    above, prefix = whole, ""
    modules = dict(model.named_modules())
    while True:
        children = {
            name: value for name, value in seconds.items() if name.startswith(prefix) and "." not in name[len(prefix) :]
        }
        # a container that is only iterated has no seconds of its own: look one level below it
        silent = [name for name in modules if name.startswith(prefix) and name and name not in seconds]
        for name in silent:
            if "." not in name[len(prefix) :]:
                children |= {
                    deep: value
                    for deep, value in seconds.items()
                    if deep.startswith(f"{name}.") and "." not in deep[len(name) + 1 :]
                }
        if not children:
            return tuple(found)
        name = max(children, key=lambda child: children[child])
        if children[name] < _WORTH * above:
            return tuple(found)
        file, line = _source(modules.get(name))
        found.append(
            Deeper(
                name=f"{name} ({type(modules[name]).__name__})",
                kind="module",
                seconds=min(children[name], above),
                file=file,
                line=line,
            )
        )
        above, prefix = children[name], f"{name}."


def _source(module: nn.Module | None) -> tuple[str | None, int | None]:
    """Where a module's forward is written, if that is the user's own."""
    forward = getattr(type(module), "forward", None)
    try:
        file = inspect.getsourcefile(forward)  # type: ignore[arg-type]
        line = inspect.getsourcelines(forward)[1]  # type: ignore[arg-type]
    except (TypeError, OSError):
        return None, None
    return (file, line) if file and is_users(file) else (None, None)


def open_evaluation(training: Training, seconds: float, time_limit: float) -> tuple[Deeper, ...]:
    """Lines of the user's evaluation on a few batches, scaled to the whole."""
    if training.evaluation is None:
        return ()
    batches = list(itertools.islice(iter(training.evaluation.batches), 2))
    return profile_lines(lambda: training.evaluate_on(batches), time_limit, most=5).chain("wall", seconds)
