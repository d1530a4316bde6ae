"""Schedule: a learning rate that rises and falls over the planned steps, in the place of a constant one."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.trying import Setting, Settings, until_kept


def rising_and_falling(factory: Any, shape: str, rise: float, peak: float) -> Callable[[Any, int], Any]:
    """A scheduler factory in the place of the user's.

    Args:
        shape: ``cosine`` by ``LambdaLR``, whose last rate is a hundredth of the peak; ``cycle`` by ``OneCycleLR``,
            momentum the other way.
        rise: share of the steps in which the rate rises.
        peak: the highest rate, in multiples of the user's.
    """
    from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

    def made(optimizer: Any, total_steps: int) -> Any:
        rising = max(1, round(rise * total_steps))

        def multiple(step: int) -> float:
            """The rate of ``cosine`` in a step, in multiples of the user's."""
            if step < rising:
                return peak * (step + 1) / (rising + 1)
            done = min(1.0, (step - rising) / max(1, total_steps - rising))
            return peak * (0.01 + 0.99 * (1 + cos(pi * done)) / 2)

        if shape == "cosine":
            return LambdaLR(optimizer, multiple)
        rates = [float(group["lr"]) * peak for group in optimizer.param_groups]
        momentum = not {"betas", "momentum"}.isdisjoint(optimizer.defaults)
        # A step more than planned, since it is asked once before the first and once after the last.
        return OneCycleLR(optimizer, rates, total_steps=total_steps + 2, pct_start=rise, cycle_momentum=momentum)

    return made


class Schedule(Strategy):
    """Replaces a constant learning rate by one that rises and falls over the planned steps.

    No run and no benchmark has kept it so far.

    What it does: ``cosine``: a short rise, then half a cosine to almost nothing (``LambdaLR``). ``cycle``: up to
        several times the rate and down to nothing, momentum the other way (``OneCycleLR``).
    When it helps: a constant rate that is too high for the end or too low for the start; short runs, in which large
        rates in the middle get there sooner ("super-convergence").
    When it does not: a tuned schedule is there already; it is left alone.
    What it costs: another training path; the target decides, with more than one seed.
    Source: Loshchilov and Hutter, "SGDR", ICLR 2017; Goyal et al., 2017 (warm-up); Smith and Topin,
        "Super-convergence", 2018
    """

    name = "schedule"
    title = "learning-rate schedule"
    stages = frozenset({"optimizer"})
    risk = Risk.TRAINING
    example = Example({"shape": "cosine", "rise": 0.1, "peak": 2.0}, losses=None)

    def applies(self, case: Case) -> Applies:
        if case.workload.optimizer.has_scheduler:
            return Applies.no("the workload has a learning-rate schedule of its own, which is kept")
        if case.workload.optimizer.options.get("lr") is None:
            return Applies.no("the optimizer has no learning rate")
        if not case.planned_steps:
            return Applies.no("the length of the run is not known")
        return Applies.yes()

    def settings(self, case: Case) -> Settings:
        """Both shapes one after the other, until one is kept."""
        return until_kept(
            {"shape": shape, "rise": rise, "peak": peak}
            for shape, rise, peaks in (("cosine", 0.05, (2.0, 4.0, 1.0)), ("cycle", 0.3, (4.0, 10.0, 2.0)))
            for peak in peaks
        )

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_scheduler(Wrap.of(rising_and_falling, **setting))

    def recipe(self, setting: Setting) -> Recipe:
        rise, peak = setting["rise"], setting["peak"]
        if setting["shape"] == "cycle":
            line = f"scheduler = OneCycleLR(optimizer, {peak:g} * lr, total_steps=total_steps, pct_start={rise:g})"
            return Recipe.noted(line, line + ", stepped after every optimizer step")
        line = f"lr = {peak:g} * lr  # linear warm-up over {rise:g} * total_steps, then CosineAnnealingLR to 0.01 of it"
        return Recipe.noted(line, transformers={"lr_scheduler_type": "cosine", "warmup_ratio": rise, "_note": line})
