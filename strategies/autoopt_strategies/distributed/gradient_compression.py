"""Gradient compression: gradients travel in half the bytes."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, at_most, gain, seconds_of
from autoopt_strategies.distributed.common import replicated


class GradientCompression(Strategy):
    """Sends gradients as bfloat16.

    What it does: torch's ``bf16_compress_hook``: a bucket is divided by the number of processes, cast, sent, and cast
        back.
    When it helps: a slow link, and models whose gradients take longer to send than the backward pass lasts.
    When it does not: fast links. Between processes of a CPU torch has no such hook.
    What it costs: gradients are rounded to 8 bits of mantissa before they are summed.
    Source: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
    """

    name = "gradient_compression"
    title = "gradients sent as bfloat16"
    stages = frozenset({"communication"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp"})
    example = Example(
        {"dtype": "bfloat16"},
        device="cuda:0",
        setup=Setup().with_distributed(processes=2),
        processes=2,
        losses=2e-2,
        trains=False,
    )

    def applies(self, case: Case) -> Applies:
        if not (able := replicated(case)):
            return able
        if case.device != "cuda":
            return Applies.no(f"torch sends bfloat16 through NCCL alone; the device is {case.device}")
        if case.workload.model.dtypes == ("bfloat16",):
            return Applies.no("gradients are bfloat16 already")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Half of what is sent, of which some may be hidden; casting is not known before it was tried."""
        return at_most(gain(case, {"communication": seconds_of(case, "communication") / 2}))

    def settings(self, case: Case) -> list[Setting]:
        return [{"dtype": "bfloat16"}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(compression=setting["dtype"])

    def recipe(self, setting: Setting) -> Recipe:
        hook = "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook"
        return Recipe(
            pytorch=f"{hook}\nmodel.register_comm_hook(None, bf16_compress_hook)",
            lightning={"_note": "strategy=DDPStrategy(ddp_comm_hook=bf16_compress_hook)"},
            accelerate={
                "_note": "kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)]"
            },
        )
