"""Margin in the device's memory: a plan that only just fits ends in the middle of a real run."""

from __future__ import annotations

from collections.abc import Iterable

from autoopt.records import Environment
from autoopt.records.messages import TrainingRun
from autoopt.search.compare.comparison import Side

MARGIN = 0.05
"""Share of the device's memory that must stay free: longer batches, fragmentation and evaluation want it."""


def near_limit(peak: int | None, limit: int | None, retries: int = 0, allocated: int | None = None) -> str:
    """Why a plan leaves too little margin, as a sentence; empty where it does, or where it is not known.

    What an allocator keeps beyond what tensors hold it gives back before it fails: that counts once it had to.

    Args:
        peak: most bytes that were taken from the device.
        limit: bytes that there are.
        retries: how often the allocator had to free its cache and try again.
        allocated: of the peak, what tensors held at once; None where only the peak is known.
    """
    kept = "" if allocated is None or peak is None else f" (tensors held {allocated / 2**20:,.0f} MiB at once)"
    if retries:
        return f"the device's memory ran out {retries} times, and the allocator freed its cache to go on{kept}"
    used = peak if allocated is None else allocated
    if used is None or not limit or used <= (1 - MARGIN) * limit:
        return ""
    return f"{used / 2**20:,.0f} MiB are {used / limit:.0%} of the memory there is; {MARGIN:.0%} must stay free"


def memory_limit(environment: Environment) -> int | None:
    """Bytes that a training may take; None on a CPU that nobody limited, where the peak is that of the process."""
    free = environment.device == "cpu" and environment.device_memory_bytes == environment.ram_bytes
    return None if free else environment.device_memory_bytes


def lost_margin(before: Side, after: Side, limit: int | None, trained: tuple[TrainingRun, ...] = ()) -> str:
    """Why a candidate leaves too little memory where the incumbent does not do so already; empty where it does not.

    Args:
        before, after: incumbent and candidate in their comparison.
        limit: bytes that there are; None where it is not known.
        trained: trainings of the candidate.
    """
    retries = after.allocation_retries if not before.allocation_retries else 0
    peak = _most([after.peak_memory_bytes, *(run.peak_memory_bytes for run in trained)])
    held = _most([after.allocated_memory_bytes, *(run.allocated_memory_bytes for run in trained)])
    one, other = (peak, before.peak_memory_bytes) if held is None else (held, before.allocated_memory_bytes)
    if one is not None and other is not None and one <= other:
        peak = held = None  # no worse than it was
    return near_limit(peak, limit, retries, held)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
