"""Margin in the device's memory: a plan that only just fits ends in the middle of a real run."""

from __future__ import annotations

from autoopt.records import Environment
from autoopt.records.messages import TrainingRun
from autoopt.search.compare.comparison import Side

MARGIN = 0.05
"""Share of the device's memory that must stay free: longer batches, fragmentation and evaluation want it."""


def near_limit(peak: int | None, limit: int | None, retries: int = 0) -> str:
    """Why a plan leaves too little margin, as a sentence; empty where it does, or where it is not known.

    Args:
        peak: most bytes that were in use.
        limit: bytes that there are.
        retries: how often the allocator had to free its cache and try again.
    """
    if retries:
        return f"the device's memory ran out {retries} times, and the allocator freed its cache to go on"
    if peak is None or not limit or peak <= (1 - MARGIN) * limit:
        return ""
    return f"{peak / 2**20:,.0f} MiB are {peak / limit:.0%} of the memory there is; {MARGIN:.0%} must stay free"


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
    peaks = [after.peak_memory_bytes, *(run.peak_memory_bytes for run in trained)]
    peak = max((p for p in peaks if p is not None), default=None)
    if before.peak_memory_bytes is not None and peak is not None and peak <= before.peak_memory_bytes:
        peak = None  # no worse than it was
    return near_limit(peak, limit, retries)
