"""What a training step does that its source does not show: watched operator by operator, with the user's line."""

from __future__ import annotations

import sys
import warnings
from collections import Counter as Counts
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoopt.simplify.lines import is_ours, is_users

Line = tuple[str, int]


@dataclass
class Seen:
    """Counts by line of the user's source: of one step."""

    syncs: Counts[Line] = field(default_factory=Counts)
    operators: Counts[Line] = field(default_factory=Counts)
    doubles: Counts[Line] = field(default_factory=Counts)
    copies: Counts[Line] = field(default_factory=Counts)
    copied_bytes: Counts[Line] = field(default_factory=Counts)
    total: int = 0
    double_total: int = 0


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Attributes every operator to the innermost line of the user's own that caused it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = Seen()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(getattr(func, "_overloadpacket", func)).removeprefix("aten.")
        line, seen = users_line(sys._getframe(1)), self.seen
        seen.total += 1
        double = any(leaf.dtype == torch.float64 and leaf.dim() for leaf in _tensors(out))
        seen.double_total += double
        if line is None:
            return out
        seen.operators[line] += 1
        if name in ("_local_scalar_dense", "nonzero", "item"):
            seen.syncs[line] += 1
        if double:
            seen.doubles[line] += 1
        if name == "_to_copy" or (name == "copy_" and _crosses(args)):
            seen.copies[line] += 1
            seen.copied_bytes[line] += sum(leaf.numel() * leaf.element_size() for leaf in _tensors(out))
            if _crosses((out, *args)) and any(leaf.device.type == "cpu" for leaf in _tensors(out)):
                seen.syncs[line] += 1
        return out


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


def watch(run: Callable[[], Any], device: torch.device) -> Seen:
    """Runs one step and says what it did; on CUDA also what torch's own debug mode calls a synchronization."""
    mode = Watch()
    with mode:
        run()
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
    """A submodule whose output does not reach the loss, and the line that calls it."""

    module: str
    line: Line | None
    seconds: float = 0.0


def unused_outputs(model: nn.Module, forward: Callable[[], torch.Tensor]) -> list[Unused]:
    """Submodules that are computed for nothing: their outputs are not in the loss's graph."""
    outputs: dict[str, tuple[list[torch.Tensor], Line | None]] = {}
    with _outputs_of(model, outputs):
        loss = forward()
    reached = _graph(loss)
    found = []
    for name, (tensors, line) in outputs.items():
        nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        if nodes and not any(node in reached for node in nodes):
            found.append(Unused(name, line))
    names = {item.module for item in found}
    return [item for item in found if not any(item.module.startswith(f"{other}.") for other in names)]


@contextmanager
def _outputs_of(model: nn.Module, outputs: dict[str, tuple[list[torch.Tensor], Line | None]]) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():
        if not name:
            continue

        def keep(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            known = outputs.get(name)
            line = known[1] if known else users_line(sys._getframe(1))
            outputs[name] = ([*(known[0] if known else []), *_tensors(output)], line)

        handles.append(module.register_forward_hook(keep))
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
