"""Bucket size: how much of the gradient is sent at once."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, at_most, gain, kept
from autoopt_strategies.distributed.common import gradient_bytes, replicated, wrapped

USUAL = 25.0
"""Megabytes of a bucket that torch begins with."""


class BucketSize(Strategy):
    """Sets how many megabytes of gradients are sent at once.

    What it does: ``bucket_cap_mb`` of ``DistributedDataParallel``.
    When it helps: smaller ones begin to send sooner, and more of it is hidden behind the backward pass; larger ones
        use a fast link better, and cost fewer messages.
    When it does not: a model whose gradients fit in one bucket of a few megabytes.
    What it costs: nothing; sums are taken in another order.
    Source: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    name = "bucket_size"
    title = "size of what is sent at once"
    stages = frozenset({"communication"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp"})
    example = Example(
        {"megabytes": 5.0},
        setup=Setup().with_distributed(processes=2),
        processes=2,
        facts={"parameters": 50_000_000},
        trains=False,
    )

    def applies(self, case: Case) -> Applies:
        if not (able := replicated(case)):
            return able
        megabytes = gradient_bytes(case) / 2**20
        if megabytes < 2:
            return Applies.no(f"the gradients are {megabytes:.2g} MB, which are sent at once whatever the size")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At the very best all that is sent is hidden behind the backward pass."""
        return at_most(gain(case, {"communication": 0.0}))

    def settings(self, case: Case) -> Settings:
        megabytes = gradient_bytes(case) / 2**20
        now = case.setup.distributed.bucket_megabytes or wrapped(case, "bucket_cap_mb") or USUAL
        for factor in (0.25, 4.0):
            size = now * factor
            while size < 4 * megabytes and size > 0.5 and kept((yield {"megabytes": size})):
                size *= factor

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(bucket_megabytes=setting["megabytes"])

    def recipe(self, setting: Setting) -> Recipe:
        size = setting["megabytes"]
        return Recipe(
            pytorch=f"model = DistributedDataParallel(model, bucket_cap_mb={size:g})",
            lightning={"_note": f"strategy=DDPStrategy(bucket_cap_mb={size:g})"},
            transformers={"ddp_bucket_cap_mb": int(size)},
            accelerate={"_note": f"kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb={size:g})]"},
        )
