"""Expandable segments: the CUDA allocator grows its segments instead of leaving gaps."""

from __future__ import annotations

import os

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, memory_used

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The first is what torch 2.9 and later read first; the second is what all read."""
KEY, ON = "expandable_segments", "expandable_segments:True"
PRESSED = 0.7
FRAGMENTED = 0.05
"""Of the memory, what gaps between tensors take, about, where training runs out of it at its first steps."""


def configured() -> tuple[str, str]:
    """The allocator's variable with this turned on; whatever else the user has set in it stays."""
    variable = next((name for name in VARIABLES if os.environ.get(name)), VARIABLES[-1])
    rest = [part for part in os.environ.get(variable, "").split(",") if part and part.split(":")[0].strip() != KEY]
    return variable, ",".join([*rest, ON])


class ExpandableSegments(Strategy):
    """Lets the allocator of CUDA memory extend its segments.

    No run and no benchmark has kept it so far.

    What it does: sets ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` before torch is imported, beside what
        you have set there (or in ``PYTORCH_ALLOC_CONF``) yourself.
    When it helps: sizes change from step to step and fragmentation makes the allocator free and retry;
        a batch that almost fits.
    When it does not: memory to spare; static shapes.
    What it costs: nothing on drivers that support it; some interprocess sharing of CUDA tensors does not.
    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
    """

    name = "expandable_segments"
    title = "expandable memory segments"
    stages = frozenset({"forward", "backward"})
    risk = Risk.EXACT
    example = Example({"enabled": True}, device="cuda:0", trains=False)

    def applies(self, case: Case) -> Applies:
        if case.device != "cuda":
            return Applies.no(f"the allocator in question is that of CUDA; the device is {case.device}")
        variable, value = configured()
        if os.environ.get(variable) == value:
            return Applies.no(f"{variable} has it already")
        if not case.fits:
            return Applies.yes()
        used = memory_used(case)
        if used is not None and used < PRESSED and case.workload.static_shapes is not False:
            return Applies.no(f"{used:.0%} of the memory is used and shapes are static: nothing fragments")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Retries of the allocator are what it saves; a step without them gains nothing but noise."""
        return Estimate(value=1.0, low=0.98, high=1.1, n=1).as_kind("declared")

    def settings(self, case: Case) -> list[Setting]:
        return [{"enabled": True}]

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """Less is lost to gaps, at no cost."""
        return [(0.0, {"enabled": True})]

    def memory_saved(self, case: Case) -> float | None:
        return FRAGMENTED * (case.environment.device_memory_bytes or 0)

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        variable, value = configured()
        return setup.with_flags(env={variable: value})

    def recipe(self, setting: Setting) -> Recipe:
        variable, value = configured()
        line = f'os.environ["{variable}"] = "{value}"  # before torch is imported'
        return Recipe.noted(line, f"{variable}={value} in the environment")
