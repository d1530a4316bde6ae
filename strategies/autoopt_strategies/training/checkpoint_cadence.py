"""Checkpoint cadence: training is interrupted less often to be saved."""

from __future__ import annotations

from math import sqrt

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, gain, seconds_of

LEAST_SHARE = 0.01
FAILURE_SECONDS = 24 * 3600.0
"""Seconds between failures of one machine that the best interval is worked out for."""


class CheckpointCadence(Strategy):
    """Saves less often: at the interval that loses least to saving and to failures together.

    No run and no benchmark has kept it so far.

    What it does: sets the steps between checkpoints by Young's formula.
    When it helps: checkpoints take a good part of the run.
    When it does not: short runs without checkpoints.
    What it costs: more is trained again after a failure.
    Source: Young, "A first order approximation to the optimum checkpoint interval", CACM 1974
    """

    name = "checkpoint_cadence"
    title = "fewer checkpoints"
    stages = frozenset({"checkpoint"})
    risk = Risk.TRAINING
    example = Example({"checkpoint_every": 500}, setup=Setup().with_cadence(checkpoint_every=2))

    def applies(self, case: Case) -> Applies:
        if case.setup.cadence.checkpoint_every is None:
            return Applies.no("the workload does not say how often it saves checkpoints")
        if case.pipeline is not None:
            share = seconds_of(case, "checkpoint") / (case.pipeline.step_seconds or 1.0)
            if share < LEAST_SHARE:
                return Applies.no(f"checkpoints take {share:.1%} of the time")
        return Applies.yes() if self.settings(case) else Applies.no("checkpoints are as rare as they should be")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        now = case.setup.cadence.checkpoint_every or setting["checkpoint_every"]
        return gain(case, {"checkpoint": seconds_of(case, "checkpoint") * now / setting["checkpoint_every"]})

    def settings(self, case: Case) -> list[Setting]:
        now = case.setup.cadence.checkpoint_every or 1
        if case.pipeline is None or not case.pipeline.step_seconds:
            return [{"checkpoint_every": 2 * now}]
        saving = seconds_of(case, "checkpoint") * now
        steps = int(sqrt(2 * saving * FAILURE_SECONDS) / case.pipeline.step_seconds)
        return [{"checkpoint_every": steps}] if steps > now else []

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_cadence(checkpoint_every=setting["checkpoint_every"])

    def recipe(self, setting: Setting) -> Recipe:
        steps = setting["checkpoint_every"]
        return Recipe(
            pytorch=f"if step % {steps} == 0:\n    torch.save(...)",
            lightning={"_note": f"ModelCheckpoint(every_n_train_steps={steps})"},
            transformers={"save_strategy": "steps", "save_steps": steps},
            accelerate={"_note": f"accelerator.save_state() every {steps} steps"},
        )
