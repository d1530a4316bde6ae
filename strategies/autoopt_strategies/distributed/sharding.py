"""Sharding: processes hold a share of the optimizer's states each (ZeRO), or of the parameters as well (FSDP2)."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.distributed.ddp import described, replicated
from autoopt_strategies.predictions import gain, guessed, memory_short, seconds_of
from autoopt_strategies.trying import Setting, Settings, while_kept


class Sharding(Strategy):
    """Shares the optimizer's states, or parameters, gradients and states, out between the processes.

    No run and no benchmark has kept it so far.

    What it does: ``sharded_optimizer``: ``ZeroRedundancyOptimizer`` over your optimizer, of which each process updates
        its share and sends it. ``fully_sharded``: ``fully_shard`` on each repeated block and on the model; a block's
        parameters are gathered before it runs, and let go of after its forward pass (``reshard``) or not.
    When it helps: states that take much memory (Adam's are twice the parameters), and an update that takes long; a
        model whose states do not fit on one device, or leave room for too small a batch.
    When it does not: optimizers without states; a slow link, over which parameters travel now as well; what fits well.
    What it costs: a message with each update; fully sharded, about half as much again is sent.
    Source: https://docs.pytorch.org/tutorials/recipes/zero_redundancy_optimizer.html;
        https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    name = "sharding"
    title = "states or parameters shared out"
    stages = frozenset({"forward", "backward", "optimizer"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp", "fused_optimizer", "checkpointing"})
    example = Example(
        {"sharded_optimizer": True}, setup=Setup().with_distributed(processes=2), processes=2, losses=1e-5, trains=False
    )

    def applies(self, case: Case) -> Applies:
        if not (able := described(case)):
            return able
        if case.setup.distributed.processes < 2:
            return Applies.no("training is in one process, which has nobody to share with")
        if case.plan.setting("muon") is not None:
            return Applies.no("Muon updates whole matrices, of which each process would hold a part")
        states, parameters = _states_stay(case), _parameters_stay(case)
        return Applies.no(f"states: {states}; parameters: {parameters}") if states and parameters else Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At the very best an update takes its share of the time; what sending costs is not known."""
        if "fully_sharded" in setting:  # it saves memory: a step that fits as it is gains nothing of it but noise
            return guessed(0.5, 1.1)
        found = gain(case, {"optimizer": seconds_of(case, "optimizer") / case.setup.distributed.processes})
        if found is None or _parameters_stay(case):
            return None if found is None else guessed(0.5, found.high, found.value)
        return guessed(0.5, max(found.high, 1.1), found.value)  # parameters are shared out after it

    def settings(self, case: Case) -> Settings:
        if not _states_stay(case):
            yield {"sharded_optimizer": True}
        if not _parameters_stay(case):
            yield from while_kept({"fully_sharded": {"reshard": reshard}} for reshard in (True, False))

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """All but this process's share: of the states, or of parameters and gradients, too."""
        if not described(case) or case.setup.distributed.processes < 2:
            return []
        states = [] if _states_stay(case) else [(0.05, {"sharded_optimizer": True})]
        if case.device != "cuda" or not case.workload.model.repeated_blocks:
            return states
        shares = ((0.1, False), (0.3, True))
        return [*states, *((cost, {"fully_sharded": {"reshard": reshard}}) for cost, reshard in shares)]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(**setting)

    def recipe(self, setting: Setting) -> Recipe:
        if "fully_sharded" not in setting:
            made = "ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=lr)"
            return Recipe(pytorch=f"optimizer = {made}")
        reshard = setting["fully_sharded"]["reshard"]
        options = f"reshard_after_forward={reshard}"
        return Recipe(
            pytorch=f"for block in model.blocks:\n    fully_shard(block, {options})\nfully_shard(model, {options})",
            lightning={"_note": "strategy=ModelParallelStrategy(), fully_shard in configure_model"},
            transformers={"fsdp": "full_shard auto_wrap"},
            accelerate={"fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": reshard}},
        )


def _states_stay(case: Case) -> str:
    """Why the optimizer's states cannot be shared out; empty where they can."""
    if not (able := replicated(case)):
        return able.reason
    optimizer = case.workload.optimizer
    if optimizer.type == "SGD" and not optimizer.options.get("momentum"):
        return "SGD without momentum has no states to share out"
    if optimizer.groups > 1:
        return f"the optimizer has {optimizer.groups} groups of parameters, one can be shared out"
    return ""


def _parameters_stay(case: Case) -> str:
    """Why parameters are not shared out; empty where they may be."""
    if case.setup.distributed.fully_sharded is not None:
        return "parameters are shared out already"
    if case.device != "cuda":
        return f"it pays where a device's memory is short; the device is {case.device}"
    if not case.workload.model.repeated_blocks:
        return "the model has no repeated blocks, which would be gathered one by one"
    return "" if memory_short(case) else "memory is not short, and that is all it saves"
