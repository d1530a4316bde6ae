"""Static graph: the same parameters get gradients in every step, in the same order."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting
from autoopt_strategies.distributed.common import replicated, wrapped


class StaticGraph(Strategy):
    """Tells ``DistributedDataParallel`` that the graph of a step never changes.

    What it does: ``static_graph=True``; parameters without a gradient are found once, and buckets are ordered by the
        first step.
    When it helps: where unused parameters are searched for in every step, or layers are recomputed in the backward
        pass.
    When it does not: a plain model, of which the search is off.
    What it costs: nothing; a graph that does change fails with an error.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    name = "static_graph"
    title = "a graph that never changes"
    stages = frozenset({"backward"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp"})
    example = Example(
        {"enabled": True}, setup=Setup().with_distributed(processes=2, find_unused=True), processes=2, trains=False
    )

    def applies(self, case: Case) -> Applies:
        if not (able := replicated(case)):
            return able
        if case.setup.distributed.quiet_accumulation:
            return Applies.no(
                "the graph is learnt from the first micro-batch, which sends nothing (quiet_accumulation)"
            )
        if wrapped(case, "static_graph"):
            return Applies.no("the script says so already")
        if not (case.setup.distributed.find_unused or wrapped(case, "find_unused_parameters")):
            return Applies.no("parameters without a gradient are not searched for, so that nothing is saved")
        if case.workload.static_shapes is False:
            return Applies.no("shapes differ from batch to batch, and the graph may differ with them")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """A walk over the graph in each step is what it saves."""
        return Estimate(value=1.0, low=0.98, high=1.1, n=1, kind="declared")

    def settings(self, case: Case) -> list[Setting]:
        return [{"enabled": True}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(static_graph=setting["enabled"], find_unused=False)

    def recipe(self, setting: Setting) -> Recipe:
        return Recipe(
            pytorch="model = DistributedDataParallel(model, static_graph=True)",
            lightning={"_note": "strategy=DDPStrategy(static_graph=True)"},
            transformers={"ddp_find_unused_parameters": False},
            accelerate={"_note": "kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)]"},
        )
