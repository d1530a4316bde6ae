"""The cost of leaving out each of several changes, and the gain of each alone, measured together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from autoopt.records import Plan
from autoopt.search.budget_allocation import STEADY_SECONDS
from autoopt.search.candidate import FEWEST_PAIRS
from autoopt.search.compare.arena import Source
from autoopt.search.compare.comparison import Comparison, Decision, PairOfProcesses, SideName
from autoopt.search.compare.contest import SWITCHED, Contest, Several
from autoopt.search.planner import PLUGIN_ERRORS
from autoopt.search.race import MOST_ROUNDS, seconds_of_screening, switchable, switchable_parts
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState

MORE = 2.0
"""They may take so many times the pairs that what was seen of them promises: looks flatter what they find."""


def undecided(seen: Comparison) -> bool:
    """Whether more processes may decide it that switch between its plans, as those that it has did."""
    return seen.decision is Decision.INCONCLUSIVE and seen.mode == SWITCHED


def compared(state: SearchState, base: Plan, plan: Plan, *, fresh: bool = False) -> Comparison | None:
    """The latest comparison of two plans that has a figure or could not be made; None where there was none.

    Args:
        fresh: not by what the search has kept a change for, which was selected by its own figure.
    """
    searched = [] if fresh else list(state.comparisons.values())
    found = (seen for seen in reversed([*searched, *state.ablations]) if seen.compares(base, plan))
    return next((seen for seen in found if seen.estimate or seen.decision is Decision.FAILED), None)


def differ(context: RunContext, one: Plan, other: Plan) -> bool | None:
    """Whether two plans come to different setups; None where one of them cannot stand."""
    fold = context.runner.registry.fold
    try:
        return fold(one) != fold(other)
    except PLUGIN_ERRORS:
        return None


def compare_switched(
    context: RunContext,
    state: SearchState,
    shared: Plan,
    others: Sequence[Plan],
    role: SideName,
    deadline: float,
    purpose: str,
) -> None:
    """Compares one plan with those of the others that a process can take on next to it, into ``state.ablations``.

    Args:
        role: of the shared plan in each comparison.
        deadline: on the run's clock.

    The first of them come first: as many as there is time for in as many processes as a decision takes. An undecided
    comparison of the same two goes on.
    """
    seen = [
        screening.seconds / len(screening.pairs)
        for screening in (*state.screenings, *state.ablations)
        if screening.mode == SWITCHED
    ]
    each, start = fmean([seconds_of_screening(context.allocation, state), *seen]), context.allocation.start_seconds
    in_time = max(int(((deadline - context.now()) / FEWEST_PAIRS - start) / each), 0)
    base, chosen = switchable_from(context, shared, switchable_from(context, shared, others)[1][:in_time])
    if not chosen or context.stopping():
        return
    until = min(deadline, context.now() + MORE * FEWEST_PAIRS * (start + len(chosen) * each))
    key = {
        "purpose": purpose,
        "process": base.model_dump(),
        role: shared.model_dump(),
        "others": [plan.model_dump() for plan in chosen],
    }

    def pairs_before(plan: Plan) -> tuple[PairOfProcesses, ...]:
        seen = compared(state, *((plan, shared) if role == "candidate" else (shared, plan)), fresh=True)
        return seen.pairs if seen is not None and undecided(seen) else ()

    def measure() -> Several:
        rule = context.rule(until - context.now())
        contest = Contest(
            Source(context.runner.start, switched=base),
            shared,
            chosen,
            role,
            rule.model_copy(update={"warm_up_seconds": STEADY_SECONDS}),
            clock=context.now,
            noise=state.noise,
            rng=np.random.default_rng([context.seed, len(state.ablations), state.numbers, 6]),
            most_rounds=MOST_ROUNDS,
            earlier=[pairs_before(plan) for plan in chosen],
        )
        return Several(comparisons=tuple(contest.run()))

    several = context.on_one_machine("comparisons", key, measure, Several)
    state.ablations.extend(seen for seen in several.comparisons if seen is not None)


def switchable_from(context: RunContext, shared: Plan, others: Sequence[Plan]) -> tuple[Plan, list[Plan]]:
    """The plan of a process that can take on the shared plan and others, and which of these: as many as can be.

    Such a process has what all of them have in common: a change can be put on, and only then off again.
    """
    registry, parts = context.runner.registry, switchable_parts(context.runner)
    base, chosen = shared, list[Plan]()
    for plan in others:
        every = (shared, *chosen, plan)
        common = registry.order(_common(every))
        if all(each == common or switchable(registry, common, each, parts) for each in every):
            base = common
            chosen.append(plan)
    return base, chosen


def _common(plans: Sequence[Plan]) -> Plan:
    first, *rest = plans
    return Plan(changes=tuple(change for change in first.changes if all(change in plan.changes for plan in rest)))
