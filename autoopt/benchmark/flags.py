"""Switches of the process that a setup sets: threads, cores, cuDNN, matmul precision, memory that a step frees."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from autoopt.benchmark.affinity import bind
from autoopt.setup import Setup

M_MMAP_MAX, M_TRIM_THRESHOLD = -4, -1
"""Parameters of glibc's ``mallopt`` (malloc.h)."""
_KNOWN = {
    "threads",
    "interop_threads",
    "cudnn_benchmark",
    "attention_off",
    "affinity",
    "multiprocessing_sharing_strategy",
    "keep_freed_memory",
    "env",
    "leave_out",
    "save_in_background",
    "kept_outputs",
}


def keep_freed_memory() -> bool:
    """Has glibc take large blocks from the heap and never give the heap's end back (mallopt(3)).

    Else a step's large tensors are given back to the system as they are freed, and their pages are asked for, and
    zeroed, one by one in the next step.

    Returns:
        Whether it does: other C libraries have no ``mallopt``.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def apply_flags(setup: Setup) -> None:
    """Sets what ``Setup.with_flags`` and ``with_precision(matmul=)`` name. ``env`` is set by who starts the process,
    ``leave_out``, ``save_in_background`` and ``kept_outputs`` where a script runs: its lines are meant.

    Raises:
        ValueError: a flag that does not exist.
        RuntimeError: freed memory is to be kept, and cannot.
    """
    flags = setup.flags
    unknown = set(flags) - _KNOWN
    if unknown:
        raise ValueError(f"there is no flag {sorted(unknown)[0]!r}; there are: {', '.join(sorted(_KNOWN))}")
    for name, value in flags.get("env", {}).items():
        if os.environ.get(name) != str(value):
            warnings.warn(f"{name}={value} must be set before torch is imported; it is not", stacklevel=2)
    if flags.get("affinity") is not None:
        bind(flags["affinity"])
    if flags.get("threads") is not None:
        torch.set_num_threads(int(flags["threads"]))
    if flags.get("interop_threads") is not None and torch.get_num_interop_threads() != flags["interop_threads"]:
        try:
            torch.set_num_interop_threads(int(flags["interop_threads"]))
        except RuntimeError:  # only once, before any parallel work
            warnings.warn("interop_threads can only be set before torch runs anything in parallel", stacklevel=2)
    if flags.get("cudnn_benchmark") is not None:
        torch.backends.cudnn.benchmark = bool(flags["cudnn_benchmark"])
    for name in flags.get("attention_off", ()):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)
    if flags.get("keep_freed_memory") and not keep_freed_memory():
        raise RuntimeError("freed memory can be kept with glibc's malloc alone")
    if flags.get("multiprocessing_sharing_strategy"):
        torch.multiprocessing.set_sharing_strategy(flags["multiprocessing_sharing_strategy"])  # type: ignore[no-untyped-call]
    if setup.precision.matmul is not None:
        torch.set_float32_matmul_precision(setup.precision.matmul)


@contextmanager
def matmul_precision(precision: str | None) -> Iterator[None]:
    """float32 products at this precision, or as they are where None; then as they were.

    Where the user has set ``fp32_precision``, torch refuses to tell the older setting, and this one is kept.
    """
    if precision is None:
        yield
        return
    with ExitStack() as stack:
        try:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision(precision)
        except RuntimeError:
            places: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
            for place in places:
                stack.callback(setattr, place, "fp32_precision", place.fp32_precision)
                place.fp32_precision = "ieee" if precision == "highest" else "tf32"  # the newer words for the same
        yield
