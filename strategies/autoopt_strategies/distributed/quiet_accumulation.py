"""no_sync: of a step's micro-batches only the last one's gradients are sent."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, at_most, gain, seconds_of
from autoopt_strategies.distributed.common import described, processes


class QuietAccumulation(Strategy):
    """Sends gradients once a step, not once a micro-batch.

    What it does: ``model.no_sync()`` around all micro-batches of a step but the last.
    When it helps: accumulation over several micro-batches in several processes.
    When it does not: one micro-batch a step.
    What it costs: nothing; gradients are summed in another order.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    name = "quiet_accumulation"
    title = "gradients sent once a step"
    stages = frozenset({"communication"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp", "accumulation"})
    example = Example(
        {"enabled": True},
        setup=Setup().with_distributed(processes=2),
        facts={"accumulation": 4},
        processes=2,
        losses=1e-5,
        trains=False,
    )

    def applies(self, case: Case) -> Applies:
        if not (able := described(case)):
            return able
        if processes(case) < 2:
            return Applies.no("training is in one process, which has nobody to send gradients to")
        if (case.setup.batch.accumulation or case.workload.accumulation) < 2:
            return Applies.no("a step is one micro-batch: its gradients are sent once")
        if case.setup.distributed.static_graph:
            return Applies.no("the graph is learnt from a first micro-batch that is sent (static_graph)")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """All but one sending of a step."""
        count = case.setup.batch.accumulation or case.workload.accumulation
        return at_most(gain(case, {"communication": seconds_of(case, "communication") / count}))

    def settings(self, case: Case) -> list[Setting]:
        return [{"enabled": True}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(quiet_accumulation=setting["enabled"])

    def recipe(self, setting: Setting) -> Recipe:
        return Recipe(
            pytorch=(
                "for number, batch in enumerate(micro_batches):\n"
                "    with nullcontext() if number == len(micro_batches) - 1 else model.no_sync():\n"
                "        (loss(model, batch) / len(micro_batches)).backward()"
            ),
            lightning={"_note": "accumulate_grad_batches does so by itself"},
            transformers={"_note": "gradient_accumulation_steps does so by itself"},
            accelerate={"_note": "with accelerator.accumulate(model) does so by itself"},
        )
