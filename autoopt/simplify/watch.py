"""Watching a training step operator by operator: counts and seconds by the user's line, unused outputs."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoopt.simplify.source import is_ours, is_users

Line = tuple[str, int]


_OF_ITS_OWN = tuple(str(Path(torch.__file__).parent / name) for name in ("optim", "nn", "amp", "distributed"))
"""Parts of torch that ask for values of their own accord: an optimizer's count of steps, the norm of gradients."""


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
    total: int = 0
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
        seen.total += 1
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
        return name in ("_to_copy", "copy_") and self._device != "cpu" and _to_host(out, args)


def _to_host(out: Any, args: Any) -> bool:
    return _crosses((out, *args)) and any(leaf.device.type == "cpu" for leaf in _tensors(out))


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
