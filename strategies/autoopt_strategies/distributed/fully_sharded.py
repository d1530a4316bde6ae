"""FSDP2: parameters, gradients and optimizer states are shared out, and gathered where they are needed."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, memory_short, while_kept
from autoopt_strategies.distributed.common import described, processes


class FullyShardedParameters(Strategy):
    """Shares parameters, gradients and states out between devices, layer by layer.

    No run and no benchmark has kept it so far.

    What it does: ``fully_shard`` on each repeated block and on the model; a block's parameters are gathered before it
        runs. With ``dtype`` they travel and compute as bfloat16.
    When it helps: a model whose states do not fit on one device, or leave room for too small a batch.
    When it does not: what fits well: parameters travel in each step, where only gradients did.
    What it costs: about half as much again is sent. Kept gathered after the forward pass (``reshard`` off), memory for
        the parameters.
    Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    name = "fully_sharded"
    title = "parameters shared out"
    stages = frozenset({"forward", "backward", "optimizer"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp", "checkpointing"})
    example = Example(
        {"reshard": True},
        device="cuda:0",
        setup=Setup().with_distributed(processes=2),
        processes=2,
        losses=1e-4,
        trains=False,
        fits=False,
    )

    def applies(self, case: Case) -> Applies:
        if not (able := described(case)):
            return able
        if processes(case) < 2:
            return Applies.no("training is in one process, which has nobody to share parameters with")
        if case.setup.distributed.fully_sharded is not None:
            return Applies.no("parameters are shared out already")
        if case.device != "cuda":
            return Applies.no(f"it pays where a device's memory is short; the device is {case.device}")
        if not case.workload.model.repeated_blocks:
            return Applies.no("the model has no repeated blocks, which would be gathered one by one")
        return Applies.yes() if memory_short(case) else Applies.no("memory is not short, and that is all it saves")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """It saves memory; a step that fits as it is gains nothing of it but noise."""
        return Estimate(value=1.0, low=0.5, high=1.1, n=1).as_kind("declared")

    def settings(self, case: Case) -> Settings:
        return while_kept([{"reshard": True}, {"reshard": False}])

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """All but this process's share of parameters, gradients and states."""
        if processes(case) < 2 or case.device != "cuda" or not case.workload.model.repeated_blocks:
            return []
        return [(0.1, {"reshard": False}), (0.3, {"reshard": True})]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(fully_sharded=dict(setting))

    def recipe(self, setting: Setting) -> Recipe:
        options = f"reshard_after_forward={setting['reshard']}"
        return Recipe(
            pytorch=f"for block in model.blocks:\n    fully_shard(block, {options})\nfully_shard(model, {options})",
            lightning={"_note": "strategy=ModelParallelStrategy(), fully_shard in configure_model"},
            transformers={"fsdp": "full_shard auto_wrap"},
            accelerate={"fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": setting["reshard"]}},
        )
