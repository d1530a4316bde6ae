"""Rates by layer: the common part of optimizers for large batches, and the larger batch that they are tried with."""

from __future__ import annotations

from itertools import islice

from autoopt import Applies, Case, Change, Estimate, Risk, Strategy
from autoopt_strategies.common import Setting, at_most, declared
from autoopt_strategies.training.batch_size import BatchSize

TIMES = 4
"""Of the batch that is there: less needs no rates by layer."""


def refused(case: Case, others: tuple[str, ...]) -> Applies:
    """Why rates by layer have no place here."""
    if any(case.plan.setting(name) is not None for name in others):
        return Applies.no("another optimizer of the plan decides how large the steps of layers are")
    if case.plan.setting("optimizer_in_backward") is not None:
        return Applies.no("the update is part of the backward pass")
    if case.plan.setting("batch_size") is None and not larger(case):
        return Applies.no(f"a batch {TIMES} times as large, for which it is made, is none that can be trained with")
    return Applies.yes()


def larger(case: Case) -> list[Change]:
    """The change to a batch so many times as large; none where there is one already, or it cannot be."""
    strategy = BatchSize()
    size = case.workload.batch_size
    if case.plan.setting(strategy.name) is not None or not size or not strategy.applies(case):
        return []
    wanted = TIMES * (case.setup.batch.size or size)
    if wanted > strategy.most(case):
        return []
    return [Change(strategy=strategy.name, setting=strategy.setting_of(case, wanted))]


class RatesByLayer(Strategy):
    """An optimizer whose steps have another size in each layer, tried together with a larger batch."""

    stages = frozenset({"optimizer", "host"})
    risk = Risk.TRAINING
    after = frozenset({"fused_optimizer"})

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """That of the larger batch, if samples teach as much in it: by itself it makes no step faster."""
        found = next((BatchSize().predict(case, change.setting) for change in islice(larger(case), 1)), None)
        return declared(at_most(found))

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        return larger(case)
