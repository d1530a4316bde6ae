"""What each kept change is worth: the final plan without it, and it alone on the baseline."""

from __future__ import annotations

from autoopt.events import AblationMeasured
from autoopt.records import Ablation, Change, Estimate, Plan
from autoopt.search.compare.comparison import Decision
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState


def ablate(tools: RunContext, search: SearchState, deadline: float) -> tuple[list[Ablation], list[str]]:
    """Takes each change of the incumbent away; drops what no longer pays.

    What made the workload fit may no longer be wanted beside the rest. A dropped change leaves another plan,
    of which the rest is ablated again while time allows.

    Returns:
        The ablation of the plan that is left, leave-one-out alone, and a sentence for each dropped change.
    """
    dropped: list[str] = []
    while search.found:
        rows = [_without(tools, search, change, deadline) for change in search.incumbent.changes]
        loser = _loser(tools, search, rows)
        if loser is None:
            return [row for row in rows if Change(strategy=row.strategy, setting=row.setting) in search.found], dropped
        estimate = loser.without
        assert estimate is not None
        dropped.append(
            f"{loser.strategy} was dropped in the ablation: with it the plan is {estimate.value:.3f}x "
            f"[{estimate.low:.3f}, {estimate.high:.3f}] as fast as without"
        )
        search.incumbent = search.without(loser.strategy)
    return [], dropped


def alone(tools: RunContext, search: SearchState, rows: list[Ablation], deadline: float) -> list[Ablation]:
    """The same rows with each change tried alone on the baseline, as far as time allows; announces them."""
    done = []
    for row in rows:
        change = Change(strategy=row.strategy, setting=row.setting)
        plan = tools.bench.registry.order(search.baseline.with_change(change))
        only = plan == search.incumbent  # then leaving it out and trying it alone are the same comparison
        ratio = row.without if only else _ratio(tools, search, search.baseline, plan, deadline, "ablation: alone")
        done.append(row.model_copy(update={"alone": ratio}))
        tools.announce(AblationMeasured(at=tools.now(), ablation=done[-1]))
    return done


def _without(tools: RunContext, search: SearchState, change: Change, deadline: float) -> Ablation:
    plan = search.incumbent
    ratio = _ratio(tools, search, search.without(change.strategy), plan, deadline, "ablation: without")
    return Ablation(strategy=change.strategy, setting=change.setting, without=ratio)


def _ratio(
    tools: RunContext, search: SearchState, base: Plan, plan: Plan, deadline: float, purpose: str
) -> Estimate | None:
    """The speedup of ``plan`` over ``base``; None where there was no time, or one of them cannot run."""
    known = measured(search, base, plan)
    if known is not None:
        return known
    fold = tools.bench.registry.fold
    try:
        if fold(base) == fold(plan):
            return None
    except Exception:  # a strategy that cannot stand alone
        return None
    if tools.stopping() or tools.now() + tools.shares.comparison > deadline:
        return None
    comparison = tools.compare(
        "comparison",
        base,
        plan,
        search,
        seconds=1.5 * tools.shares.comparison,
        deadline=deadline,
        purpose=purpose,
    )
    search.ablations.append(comparison)
    return comparison.estimate if comparison.decision is not Decision.FAILED else None


def measured(search: SearchState, base: Plan, plan: Plan) -> Estimate | None:
    """The same comparison from the search, where there was one."""
    for comparison in reversed([*search.comparisons.values(), *search.ablations]):
        if comparison.incumbent.plan == base and comparison.candidate.plan == plan and comparison.estimate:
            return comparison.estimate
    return None


def _loser(tools: RunContext, search: SearchState, rows: list[Ablation]) -> Ablation | None:
    """The change that least pays its place: its interval lies below the gain worth having."""
    if len(rows) < 2:
        return None
    losers = [
        row
        for row in rows
        if row.without is not None
        and row.without.value < 1 + tools.min_gain
        and row.without.high < 1 + max(tools.min_gain, search.noise.floor or 0.0)
    ]
    return min(losers, key=lambda row: row.without.value if row.without else 1.0, default=None)
