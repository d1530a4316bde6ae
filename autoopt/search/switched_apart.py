"""Comparisons of one plan with several others in processes that take each of them on, block by block.

The way to what the parts of a plan bring where a process can put them on and off: its own speed is on both sides, and
one start serves all. Processes are replicated as in any comparison; how much less they differ in what a change brings
than in their speed, is learned from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from autoopt.records import Plan
from autoopt.search.at_once import MORE, earlier_pairs
from autoopt.search.compare.arena import Source
from autoopt.search.compare.comparison import SideName
from autoopt.search.compare.contest import SWITCHED, Contest, Several
from autoopt.search.required_time import FEWEST_PAIRS
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.switched_looks import MOST_ROUNDS, seconds_of_look, switchable, switchable_parts
from autoopt.search.time_limits import STEADY_SECONDS


def compare_switched(
    context: RunContext,
    state: SearchState,
    shared: Plan,
    others: Sequence[Plan],
    role: SideName,
    deadline: float,
    purpose: str,
) -> None:
    """Compares one plan with those of the others that a process can take on beside it, into ``state.ablations``.

    Args:
        role: of the shared plan in each comparison.
        deadline: on the run's clock.

    The first of them come first: as many as there is time for in as many processes as a decision takes. An undecided
    comparison of the same two goes on.
    """
    seen = [look.seconds / len(look.pairs) for look in (*state.looks, *state.ablations) if look.mode == SWITCHED]
    each, start = fmean([seconds_of_look(context.allocation), *seen]), context.allocation.start_seconds
    in_time = max(int(((deadline - context.now()) / FEWEST_PAIRS - start) / each), 0)
    base, chosen = switchable_from(context, shared, switchable_from(context, shared, others)[1][:in_time])
    if not chosen or context.stopping():
        return
    until = min(deadline, context.now() + MORE * FEWEST_PAIRS * (start + len(chosen) * each))
    key = {
        "purpose": purpose,
        "process": base.model_dump(mode="json"),
        role: shared.model_dump(mode="json"),
        "others": [plan.model_dump(mode="json") for plan in chosen],
    }

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
            earlier=[earlier_pairs(state, shared, plan, role, SWITCHED) for plan in chosen],
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
