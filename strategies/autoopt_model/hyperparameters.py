"""Hyper-parameters of the optimizer at the values that ``--tune`` found."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.trying import ChangedOptimizer, Setting

THEIRS = {"lr": "learning_rate", "weight_decay": "weight_decay", "eps": "adam_epsilon"}
"""What transformers calls them."""


def with_values(optimizer: Any, *values: tuple[str, float]) -> Any:
    """The optimizer, in place, with other values in its parameter groups.

    Groups keep their proportion to the first one, so that a group without weight decay stays without.

    Args:
        values: name and value of the first group's.
    """
    first = dict(optimizer.param_groups[0])
    for name, value in values:
        for group in optimizer.param_groups:
            group[name] = value * group[name] / first[name] if first[name] else value
        optimizer.defaults[name] = value
    return optimizer


class Hyperparameters(Strategy):
    """Trains with the learning rate, weight decay and the like that a search found.

    What it does: ``--tune lr=1e-4..1e-2`` searches them by short trainings that are stopped early where they are
        hopeless; the best values are then trained anew here, from fresh seeds.
    When it helps: the values in use were never searched on these data, or for another batch.
    When it does not: a schedule that sets its own peak (OneCycleLR) overrides the learning rate that is given here.
    What it costs: the search; another training path, so that time to the target decides, with more than one seed.
    Source: Bergstra et al., "Algorithms for hyper-parameter optimization", NeurIPS 2011 (TPE); Li et al., "A system
        for massively parallel hyperparameter tuning", MLSys 2020 (asynchronous successive halving)
    """

    name = "hyperparameters"
    title = "tuned hyper-parameters"
    stages = frozenset({"optimizer"})
    risk = Risk.TRAINING
    after = frozenset({"fused_optimizer"})
    example = Example({"lr": 2e-3}, inspected={"found": {"lr": 2e-3}}, losses=None)

    def applies(self, case: Case) -> Applies:
        if case.inspected(self.name).get("found"):
            return Applies.yes()
        return Applies.no("nothing was searched that is better: --tune lr=1e-4..1e-2 says what to search")

    def settings(self, case: Case) -> list[Setting]:
        return [dict(case.inspected(self.name)["found"])]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(ChangedOptimizer(with_values, tuple(sorted(setting.items()))))

    def recipe(self, setting: Setting) -> Recipe:
        values = sorted(setting.items())
        code = "\n".join(f"{name} = {value:.6g}  # of the optimizer" for name, value in values)
        note = "of the optimizer: " + ", ".join(f"{name}={value:.6g}" for name, value in values)
        theirs = {THEIRS[name]: value for name, value in values if name in THEIRS}
        return Recipe.noted(code, note, transformers=theirs or {"_note": note})
