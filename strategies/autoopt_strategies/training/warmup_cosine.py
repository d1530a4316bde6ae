"""Warm-up and cosine: the learning rate rises for a while, then falls along half a cosine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, kept


@dataclass(frozen=True)
class Cosine:
    """``scheduler factory -> scheduler factory``; what the user had is replaced.

    Args:
        warmup: share of the steps in which the rate rises.
        peak: the highest rate, in multiples of the user's.
        end: the last rate, in multiples of the highest.
    """

    warmup: float = 0.05
    peak: float = 1.0
    end: float = 0.01

    def __call__(self, factory: Any) -> Callable[[Any, int], Any]:
        def made(optimizer: Any, total_steps: int) -> Any:
            from torch.optim.lr_scheduler import LambdaLR

            return LambdaLR(optimizer, lambda step: self.multiple(step, total_steps))

        return made

    def multiple(self, step: int, total_steps: int) -> float:
        """The learning rate in a step, in multiples of the user's."""
        from math import cos, pi

        rising = max(1, round(self.warmup * total_steps))
        if step < rising:
            return self.peak * (step + 1) / (rising + 1)
        done = min(1.0, (step - rising) / max(1, total_steps - rising))
        return self.peak * (self.end + (1 - self.end) * (1 + cos(pi * done)) / 2)


class WarmupCosine(Strategy):
    """Replaces a constant learning rate by warm-up and a cosine to almost nothing.

    What it does: a ``LambdaLR`` over the planned steps.
    When it helps: a constant rate that is too high for the end or too low for the start.
    When it does not: a tuned schedule is there already; it is left alone.
    What it costs: another training path; the target decides, with more than one seed.
    Source: Loshchilov and Hutter, "SGDR", ICLR 2017; Goyal et al., 2017 (warm-up)
    """

    name = "warmup_cosine"
    title = "warm-up and cosine"
    stages = frozenset({"optimizer"})
    risk = Risk.TRAINING
    example = Example({"warmup": 0.1, "peak": 2.0, "end": 0.01}, losses=None)

    def applies(self, case: Case) -> Applies:
        return no_schedule_of_ones_own(case, self.name)

    def settings(self, case: Case) -> Settings:
        for peak in (2.0, 4.0, 1.0):
            if kept((yield {"warmup": 0.05, "peak": peak, "end": 0.01})):
                return

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_scheduler(Cosine(**setting))

    def recipe(self, setting: Setting) -> Recipe:
        steps = f"{setting['warmup']:g} * total_steps"
        peak, end = setting["peak"], setting["end"]
        code = f"lr = {peak:g} * lr  # linear warm-up over {steps}, then CosineAnnealingLR to {end:g} of it"
        arguments = {"lr_scheduler_type": "cosine", "warmup_ratio": setting["warmup"]}
        return Recipe(
            pytorch=code,
            lightning={"_note": code},
            transformers={**arguments, "_note": code},
            accelerate={"_note": code},
        )


def no_schedule_of_ones_own(case: Case, name: str) -> Applies:
    """A schedule is only proposed where the learning rate is constant."""
    if case.workload.optimizer.has_scheduler:
        return Applies.no("the workload has a learning-rate schedule of its own, which is kept")
    if case.workload.optimizer.options.get("lr") is None:
        return Applies.no("the optimizer has no learning rate")
    others = {"warmup_cosine", "one_cycle"} - {name}
    taken = next((other for other in others if case.plan.setting(other) is not None), None)
    if taken:
        return Applies.no(f"{taken} decides the learning rate already")
    if not case.planned_steps:
        return Applies.no("the length of the run is not known")
    return Applies.yes()
