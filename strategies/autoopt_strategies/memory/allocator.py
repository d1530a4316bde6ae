"""Allocators: what a step frees is kept for the next one, and CUDA's segments grow instead of leaving gaps."""

from __future__ import annotations

import ctypes
import mmap
import os
from math import sqrt
from time import perf_counter
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import (
    COMPUTE,
    LEAST_SHARE,
    compute_threads,
    guessed,
    memory_used,
    seconds_of,
    tried_gain,
)
from autoopt_strategies.trying import TURNS, Setting

PAGES = 8192
LINES = (
    "ctypes.CDLL(None).mallopt(-4, 0)  # M_MMAP_MAX: large tensors come from the heap",
    "ctypes.CDLL(None).mallopt(-1, -1)  # M_TRIM_THRESHOLD: what a step frees is kept for the next",
)
REPLACED = ("jemalloc", "tcmalloc", "mimalloc")
CUDA_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The first is what torch 2.9 and later read first; the second is what all read."""
KEY, ON = "expandable_segments", "expandable_segments:True"
PRESSED = 0.7
FRAGMENTED = 0.05
"""Of the memory, what gaps between tensors take, about, where training runs out of it at its first steps."""


def configured() -> tuple[str, str]:
    """CUDA's variable with expandable segments turned on; whatever else the user has set in it stays."""
    variable = next((name for name in CUDA_VARIABLES if os.environ.get(name)), CUDA_VARIABLES[-1])
    rest = [part for part in os.environ.get(variable, "").split(",") if part and part.split(":")[0].strip() != KEY]
    return variable, ",".join([*rest, ON])


class Allocator(Strategy):
    """Keeps the memory that a step frees for the next step; on CUDA, lets the allocator extend its segments.

    What it does: on a CPU ``mallopt(M_MMAP_MAX, 0)`` and ``mallopt(M_TRIM_THRESHOLD, -1)``: glibc takes large tensors
        from the heap, and does not give its end back to the system. On CUDA
        ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, next to what you have set there yourself.
    When it helps: on a CPU, activations of megabytes. Freed, they go back to the system, and in the next step it has to
        give and zero each of their pages again: thousands of page faults a step, in some processes and not in others.
        On CUDA, sizes that change from step to step, so that the allocator frees and retries; a batch that almost fits.
    When it does not: small tensors; another allocator (jemalloc, tcmalloc); static shapes with memory to spare.
    What it costs: memory that was needed once stays with the process; expandable segments forbid some sharing of CUDA
        tensors between processes.
    Source: https://man7.org/linux/man-pages/man3/mallopt.3.html;
        https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (memory allocators);
        https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
    """

    name = "allocator"
    title = "freed memory kept"
    stages = frozenset({"forward", "backward", "optimizer"})
    risk = Risk.EXACT
    example = Example(inspected={"page_seconds": 1e-6, "allocator": ""})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if case.device == "cuda":
            variable, value = configured()
            if os.environ.get(variable) == value:
                return Applies.no(f"{variable} has it already")
            used = memory_used(case)
            if case.fits and used is not None and used < PRESSED and case.workload.static_shapes is not False:
                return Applies.no(f"{used:.0%} of the memory is used and shapes are static: nothing fragments")
            return Applies.yes()
        if case.device != "cpu":
            return Applies.no(f"tensors are in the memory of {case.environment.device}, which torch keeps by itself")
        if "page_seconds" not in found:
            return Applies.no("the C library is not glibc: it has no mallopt")
        if found.get("allocator"):
            return Applies.no(f"another allocator is loaded: {found['allocator']}")
        if case.setup.flags.get("keep_freed_memory"):
            return Applies.no("what a step frees is kept already")
        most = _share(case, _most_faults(case))
        if most is not None and most < LEAST_SHARE:
            return Applies.no(f"new pages take {most:.1%} of a step ({_most_faults(case):.0f} page faults, measured)")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Stages without their share of what the page faults of a step take: as many as were seen, up to the most that
        another process has; of CUDA's, no more than its retries."""
        if setting:
            return guessed(0.98, 1.1)
        seen, most = _share(case, case.page_faults), _share(case, _most_faults(case))
        if seen is None or most is None:
            return None
        found, other = (tried_gain(case, 1.0 - share, _stages(case)) for share in (seen, most))
        if found is None or other is None or most - seen < LEAST_SHARE:
            return found
        return guessed(found.low, other.high, sqrt(found.value * other.value))

    def settings(self, case: Case) -> list[Setting]:
        return [{KEY: True} if case.device == "cuda" else {}]

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """Less is lost to gaps, at no cost."""
        return [(0.0, {KEY: True})] if case.device == "cuda" else []

    def memory_saved(self, case: Case) -> float | None:
        return FRAGMENTED * (case.environment.device_memory_bytes or 0)

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        if setting:
            variable, value = configured()
            return setup.with_flags(env={variable: value})
        return setup.with_flags(keep_freed_memory=True)

    def recipe(self, setting: Setting) -> Recipe:
        if setting:
            variable, value = configured()
            line = f'os.environ["{variable}"] = "{value}"  # before torch is imported'
            return Recipe.noted(line, f"{variable}={value} in the environment")
        return Recipe.noted(
            "\n".join(LINES), "before training: " + "; ".join(line.partition("  #")[0] for line in LINES)
        )

    def inspect(self, live: Any) -> Setting:
        """Seconds that a new page takes here, and the allocator that is loaded in place of glibc's."""
        if not hasattr(ctypes.CDLL(None), "mallopt"):
            return {}
        preloaded, seconds = os.environ.get("LD_PRELOAD", ""), list[float]()
        for _ in range(TURNS):  # to be given new pages, to write to them and to give them back
            began = perf_counter()
            with mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
                memory[:: mmap.PAGESIZE] = bytes(PAGES)
            seconds.append((perf_counter() - began) / PAGES)
        loaded = next((name for name in REPLACED if name in preloaded), "")
        return {"page_seconds": min(seconds), "allocator": loaded, "freed_pages": live.freed_pages()}


def _stages(case: Case) -> tuple[str, ...]:
    """Stages of the main process."""
    own = () if case.loader_option("num_workers") else ("preparation", "collate")
    return (*COMPUTE, "optimizer", *own)


def _most_faults(case: Case) -> float | None:
    """Page faults of a step in a process that gives all that it frees back to the system; None where none were seen."""
    found = [n for n in (case.page_faults, case.inspected(Allocator.name).get("freed_pages")) if n is not None]
    return max(found, default=None)


def _share(case: Case, faults: float | None) -> float | None:
    """Share of those stages that so many page faults take; None where neither was measured.

    Large tensors are written first by the threads that compute, each of which is given its own pages.
    """
    cost, whole = case.inspected(Allocator.name).get("page_seconds"), sum(seconds_of(case, s) for s in _stages(case))
    if faults is None or cost is None or whole <= 0:
        return None
    return float(min(0.9, faults * cost / compute_threads(case) / whole))
