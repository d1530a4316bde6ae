"""Evaluation cadence: training is interrupted less often to be measured."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import LEAST_SHARE, gain, ranged, seconds_of
from autoopt_strategies.trying import Setting, Settings, climb


class EvaluationCadence(Strategy):
    """Evaluates less often.

    No run and no benchmark has kept it so far.

    What it does: multiplies the steps between evaluations.
    When it helps: evaluation takes a good part of the run.
    When it does not: the target is then noticed later, by half of the interval on average, which is why
        time to the target decides.
    What it costs: a coarser validation curve, and later early stopping.
    Source: none; arithmetic on the measured seconds.
    """

    name = "evaluation_cadence"
    title = "fewer evaluations"
    stages = frozenset({"evaluate"})
    risk = Risk.TRAINING
    example = Example({"evaluate_every": 500}, facts={"evaluate_every": 100})

    def applies(self, case: Case) -> Applies:
        if not case.workload.has_evaluate:
            return Applies.no("there is no evaluation")
        if case.pipeline is None:
            return Applies.yes()
        seconds = seconds_of(case, "evaluate")
        if seconds < LEAST_SHARE * case.pipeline.step_seconds:
            return Applies.no(f"evaluation takes {seconds / case.pipeline.step_seconds:.1%} of the time")
        if case.planned_steps and 4 * self._now(case) > case.planned_steps:
            return Applies.no("the planned run is evaluated fewer than four times as it is")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Seconds saved, less the half interval by which the target is noticed later."""
        times = setting["evaluate_every"] / self._now(case)
        estimate = gain(case, {"evaluate": seconds_of(case, "evaluate") / times})
        if estimate is None or not case.planned_steps:
            return estimate
        later = 1 + (setting["evaluate_every"] - self._now(case)) / 2 / case.planned_steps
        value = estimate.value / later
        return ranged(estimate, value, min(value, estimate.low / later), max(value, estimate.high))

    def settings(self, case: Case) -> Settings:
        now = self._now(case)
        most = max(now + 1, (case.planned_steps or 16 * now) // 3)
        yield from climb(2 * now, now + 1, most, lambda steps: {"evaluate_every": steps})

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_cadence(evaluate_every=setting["evaluate_every"])

    def recipe(self, setting: Setting) -> Recipe:
        steps = setting["evaluate_every"]
        return Recipe(
            pytorch=f"if step % {steps} == 0:\n    evaluate(...)",
            lightning={"val_check_interval": steps, "check_val_every_n_epoch": None},
            transformers={"eval_strategy": "steps", "eval_steps": steps},
            accelerate={"_note": f"evaluate every {steps} steps"},
        )

    def _now(self, case: Case) -> int:
        facts = case.workload
        return case.setup.cadence.evaluate_every or facts.evaluate_every or facts.steps_per_epoch or 100
