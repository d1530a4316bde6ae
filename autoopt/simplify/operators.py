"""Operators of a step: FLOPs and bytes from their shapes, seconds from a short profile."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from autoopt.records import Operator

Kind = Literal["matmul", "elementwise", "memory", "other"]

_VIEWS = frozenset(
    """
    view _unsafe_view reshape _reshape_alias transpose t permute expand as_strided slice select squeeze unsqueeze
    detach alias split split_with_sizes unbind narrow diagonal view_as empty empty_like empty_strided new_empty
    new_empty_strided is_same_size lift_fresh chunk swapaxes movedim unfold
    """.split()  # noqa: SIM905
)
_MEMORY = frozenset(
    """
    copy_ clone _to_copy contiguous cat stack index index_select gather scatter scatter_ embedding fill_ zero_
    zeros zeros_like ones ones_like full full_like arange index_put_ index_put embedding_dense_backward
    constant_pad_nd repeat roll _pin_memory
    """.split()  # noqa: SIM905
)


_LIBRARY = (
    "rnn",
    "lstm",
    "gru",
    "fft",
    "linalg",
    "ctc_loss",
    "grid_sampler",
    "embedding_bag",
    "sort",
    "topk",
    "unique",
)
"""Parts of the names of operators that are one kernel of a library, which nothing fuses with what stands beside it."""

_STEPS, _WINDOW = 3, 0.5
"""Steps that are profiled; no further one is begun after so many seconds."""
"""Of a profile."""


@dataclass
class Count:
    """Sums over all calls of one operator in a step."""

    calls: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    kind: Kind = "elementwise"


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls, FLOPs (torch's own registry of formulas) and bytes (all inputs and outputs once) by operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, Count] = defaultdict(Count)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", func)
        name = str(packet).replace(".", "::", 1)
        base = name.split("::")[-1]
        if base in _VIEWS:
            return out
        count = self.counts[name]
        count.calls += 1
        moved = float(_tensor_bytes(args) + _tensor_bytes(kwargs or {}) + _tensor_bytes(out))
        count.bytes += moved
        formula = flop_registry.get(packet)
        if formula is not None:
            count.kind = "matmul"
            count.flops += float(formula(*args, **(kwargs or {}), out_val=out))
        elif base in _MEMORY:
            count.kind = "memory"
        elif any(part in base for part in _LIBRARY):
            count.kind = "other"
        return out

    @property
    def launches(self) -> int:
        return sum(count.calls for count in self.counts.values())


def _tensor_bytes(values: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def count_operators(run: Callable[[], Any]) -> Counter:
    """Runs once and counts."""
    counter = Counter()
    with counter:
        run()
    return counter


def profiled_seconds(run: Callable[[], Any], names: set[str], cuda: bool) -> dict[str, float]:
    """Seconds per run by operator, from a short window of the profiler.

    Time of a kernel below goes to the operator above it that ``names`` knows, since a convolution's
    time stands under the library's name.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    steps, began = 0, time.perf_counter()
    with profile(activities=activities) as profiler:
        while steps < _STEPS and (steps == 0 or time.perf_counter() - began < _WINDOW):
            run()
            steps += 1
        if cuda:
            torch.cuda.synchronize()
    found: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        seconds = event.self_device_time_total if cuda else event.self_cpu_time_total
        owner = _owner(event, names)
        if owner and seconds > 0:
            found[owner] += seconds / 1e6 / steps
    return dict(found)


def _owner(event: Any, names: set[str]) -> str | None:
    while event is not None:
        if event.name in names:
            return str(event.name)
        event = event.cpu_parent
    return None


def operators(run: Callable[[], Any], *, cuda: bool = False) -> tuple[tuple[Operator, ...], int]:
    """The step's operators, the costliest first, and how many are launched. Without ceilings yet."""
    counter = count_operators(run)
    seconds = profiled_seconds(run, set(counter.counts), cuda)
    found = [
        Operator(
            name=name,
            seconds=seconds.get(name, 0.0),
            flops=count.flops or None,
            bytes=count.bytes,
            calls=count.calls,
            kind=count.kind,
        )
        for name, count in counter.counts.items()
    ]
    return tuple(sorted(found, key=lambda operator: -operator.seconds)), counter.launches
