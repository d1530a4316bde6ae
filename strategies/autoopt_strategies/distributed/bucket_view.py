"""Gradients as views of the buckets that are sent."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, gain, seconds_of
from autoopt_strategies.distributed.common import gradient_bytes, replicated, wrapped


class BucketView(Strategy):
    """Lets gradients lie in the buckets that are sent, rather than in memory of their own.

    What it does: ``gradient_as_bucket_view=True``: no copy into the bucket and back, and no second copy in memory.
    When it helps: large models, whose gradients take long to copy and much room.
    When it does not: small ones.
    What it costs: nothing; gradients cannot be detached in place.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    name = "bucket_view"
    title = "gradients within their buckets"
    stages = frozenset({"backward"})
    risk = Risk.EXACT
    after = frozenset({"ddp"})
    example = Example({"enabled": True}, setup=Setup().with_distributed(processes=2), processes=2, trains=False)

    def applies(self, case: Case) -> Applies:
        if wrapped(case, "gradient_as_bucket_view"):
            return Applies.no("the script has them there already")
        return replicated(case)

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At most two copies of the gradients at the measured bandwidth of the memory."""
        rate, backward = case.environment.peaks.memory_bytes_per_second, seconds_of(case, "backward")
        if rate is None or not backward:
            return None
        saved = min(2 * 2 * gradient_bytes(case) / rate, 0.9 * backward)
        found = gain(case, {"backward": backward - saved})
        return None if found is None else Estimate(value=found.value, low=0.98, high=found.high, n=1, kind="declared")

    def settings(self, case: Case) -> list[Setting]:
        return [{"enabled": True}]

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """The second copy of the gradients."""
        return [(0.0, {"enabled": True})] if replicated(case) else []

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(bucket_view=setting["enabled"])

    def recipe(self, setting: Setting) -> Recipe:
        return Recipe(
            pytorch="model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
            lightning={"_note": "strategy=DDPStrategy(gradient_as_bucket_view=True)"},
            accelerate={"_note": "kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)]"},
        )
