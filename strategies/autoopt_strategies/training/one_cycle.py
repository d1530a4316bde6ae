"""One cycle: the learning rate up to several times the user's and down to nothing, momentum the other way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, kept
from autoopt_strategies.training.warmup_cosine import no_schedule_of_ones_own


@dataclass(frozen=True)
class Cycle:
    """``scheduler factory -> scheduler factory``; what the user had is replaced.

    Args:
        peak: the highest rate, in multiples of the user's.
        rise: share of the steps in which it rises.
    """

    peak: float = 4.0
    rise: float = 0.3

    def __call__(self, factory: Any) -> Callable[[Any, int], Any]:
        def made(optimizer: Any, total_steps: int) -> Any:
            from torch.optim.lr_scheduler import OneCycleLR

            rates = [float(group["lr"]) * self.peak for group in optimizer.param_groups]
            named = "betas" if "betas" in optimizer.defaults else "momentum"  # by which it cycles all groups
            momentum = all(named in group for group in optimizer.param_groups)
            # A step more than planned, since it is asked once before the first and once after the last.
            return OneCycleLR(
                optimizer, rates, total_steps=total_steps + 2, pct_start=self.rise, cycle_momentum=momentum
            )

        return made


class OneCycle(Strategy):
    """Replaces a constant learning rate by one cycle.

    What it does: ``OneCycleLR`` over the planned steps.
    When it helps: short runs; large rates in the middle get there sooner ("super-convergence").
    When it does not: a tuned schedule is there already; it is left alone.
    What it costs: another training path; the target decides, with more than one seed.
    Source: Smith and Topin, "Super-convergence", 2018
    """

    name = "one_cycle"
    title = "one-cycle learning rate"
    stages = frozenset({"optimizer"})
    risk = Risk.TRAINING
    example = Example({"peak": 2.0, "rise": 0.3}, losses=None)

    def applies(self, case: Case) -> Applies:
        return no_schedule_of_ones_own(case, self.name)

    def settings(self, case: Case) -> Settings:
        for peak in (4.0, 10.0, 2.0):
            if kept((yield {"peak": peak, "rise": 0.3})):
                return

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_scheduler(Cycle(**setting))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            f"scheduler = OneCycleLR(optimizer, max_lr={setting['peak']:g} * lr, "
            f"total_steps=total_steps, pct_start={setting['rise']:g})"
        )
        note = {"_note": code + ", stepped after every optimizer step"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)
