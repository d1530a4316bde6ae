"""Each kept change as a person would write it, for the report."""

from __future__ import annotations

from autoopt.records import Change, Plan, Snippets
from autoopt.registry import Registry


def snippets(plan: Plan, registry: Registry) -> tuple[Snippets, ...]:
    """Snippets of result.json for each change of a plan: its lines per way of training.

    A strategy whose ``recipe`` raises gives none; that must not cost the result of a run.
    """
    return tuple(_snippet(change, registry) for change in plan.changes)


def _snippet(change: Change, registry: Registry) -> Snippets:
    strategy = registry[change.strategy]
    known = {
        "strategy": change.strategy,
        "setting": change.setting,
        "title": strategy.title or change.strategy,
        "risk": str(strategy.risk),
        "stages": tuple(sorted(strategy.stages)),
    }
    try:
        recipe = strategy.recipe(dict(change.setting))
        return Snippets(
            **known,
            pytorch=recipe.pytorch,
            lightning=recipe.lightning,
            transformers=recipe.transformers,
            accelerate=recipe.accelerate,
        )
    except Exception:  # a third party's recipe; the change itself was measured all the same
        return Snippets(**known)
