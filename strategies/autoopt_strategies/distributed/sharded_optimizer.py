"""ZeRO: each process updates its share of the parameters, and holds the optimizer's states of that share alone."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, gain, seconds_of
from autoopt_strategies.distributed.common import described, processes, replicated

STATELESS = ("SGD",)


class ShardedOptimizer(Strategy):
    """Shares the optimizer's states out between the processes.

    No run and no benchmark has kept it so far.

    What it does: ``ZeroRedundancyOptimizer`` over your optimizer: each process updates its share and sends it.
    When it helps: states that take much memory (Adam's are twice the parameters), and an update that takes long.
    When it does not: optimizers without states; a slow link, over which parameters travel now as well.
    What it costs: a message with each update.
    Source: https://docs.pytorch.org/tutorials/recipes/zero_redundancy_optimizer.html
    """

    name = "sharded_optimizer"
    title = "optimizer states shared out"
    stages = frozenset({"optimizer"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp", "fused_optimizer"})
    example = Example(
        {"enabled": True}, setup=Setup().with_distributed(processes=2), processes=2, losses=1e-5, trains=False
    )

    def applies(self, case: Case) -> Applies:
        if not (able := described(case)):
            return able
        if not (able := replicated(case)):
            return able
        optimizer = case.workload.optimizer
        if optimizer.type in STATELESS and not optimizer.options.get("momentum"):
            return Applies.no(f"{optimizer.type} without momentum has no states to share out")
        if optimizer.groups > 1:
            return Applies.no(f"the optimizer has {optimizer.groups} groups of parameters, one can be shared out")
        if optimizer.module == "autoopt_model.muon":
            return Applies.no("its updates need whole matrices of all parameters")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At the very best the update takes its share of the time; what sending costs is not known."""
        found = gain(case, {"optimizer": seconds_of(case, "optimizer") / processes(case)})
        return None if found is None else Estimate(value=found.value, low=0.5, high=found.high, n=1).as_kind("declared")

    def settings(self, case: Case) -> list[Setting]:
        return [{"enabled": True}]

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """All but this process's share of the states."""
        return [(0.05, {"enabled": True})] if self.applies(case) else []

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(sharded_optimizer=setting["enabled"])

    def recipe(self, setting: Setting) -> Recipe:
        return Recipe(
            pytorch="optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=lr)",
        )
