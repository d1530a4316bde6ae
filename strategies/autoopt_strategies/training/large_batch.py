"""The larger batch that optimizers for large batches are tried with."""

from __future__ import annotations

from itertools import islice

from autoopt import Applies, Case, Change, Estimate
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


def predicted(case: Case) -> Estimate | None:
    """The expected gain of the larger batch, if samples teach as much in it."""
    return next((BatchSize().predict(case, change.setting) for change in islice(larger(case), 1)), None)
