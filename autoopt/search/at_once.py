"""The cost of leaving out each of several changes, and the gain of each alone, measured together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from autoopt.records import Plan
from autoopt.search.budget_allocation import STEADY_SECONDS
from autoopt.search.compare.arena import Source
from autoopt.search.compare.comparison import Comparison, Decision, Mode, PairOfProcesses, SideName
from autoopt.search.compare.contest import SWITCHED, Contest, Several
from autoopt.search.planner import PLUGIN_ERRORS
from autoopt.search.race import MOST_ROUNDS, seconds_of_look, switchable, switchable_parts
from autoopt.search.run_context import RunContext
from autoopt.search.screened import FEWEST_PAIRS
from autoopt.search.state import SearchState

FEWEST = 2
ROOM = 0.8
"""Share of the memory that all processes together may take, by what each of the plans has taken at most."""
CONTEXT_BYTES = 1 << 29
"""That a process takes of a device beside what its allocator has: the driver's context and its kernels, about."""
MORE = 2.0
"""They may take so many times the pairs that what was seen of them promises: looks flatter what they find."""


def compare_at_once(
    context: RunContext,
    state: SearchState,
    shared: Plan,
    others: Sequence[tuple[Plan, int]],
    role: SideName,
    deadline: float,
    purpose: str,
    share: float = 0.0,
) -> None:
    """Compares one plan with several at a time, as many as there is room and time for, into ``state.ablations``.

    Args:
        others: plans, each with the pairs of processes that decide it; the first come first.
        role: of the shared plan in each comparison.
        deadline: on the run's clock.
        share: of the time until then, which each may take where that is more than it is thought to need.

    Nothing is measured where fewer than two would be: comparisons one by one are then as good, but for one that was
    left undecided, which goes on.
    """
    earlier = [earlier_pairs(state, shared, plan, role) for plan, _ in others]
    fewest = 1 if any(earlier) else FEWEST
    count = len(others)
    while count >= fewest and not _fits(context, state, shared, others[:count], deadline):
        count -= 1
    if count < fewest or context.stopping():
        return
    chosen = others[:count]
    seconds = max(MORE * _seconds(context, state, shared, chosen), count * share * (deadline - context.now()))
    several = context.compare_several(
        shared,
        [plan for plan, _ in chosen],
        state,
        role=role,
        seconds=seconds,
        deadline=deadline,
        purpose=purpose,
        earlier=earlier[:count],
    )
    found = [comparison for comparison in several.comparisons if comparison is not None]
    state.apart = state.apart or len(found) < count
    state.ablations.extend(found)


def earlier_pairs(
    state: SearchState, shared: Plan, other: Plan, role: SideName, mode: Mode = "interleaved"
) -> tuple[PairOfProcesses, ...]:
    """The pairs of processes of the two in a comparison that was made in this way and left undecided."""
    plans = (other, shared) if role == "candidate" else (shared, other)
    seen = compared(state, *plans, fresh=True)
    return seen.pairs if seen is not None and undecided(seen, mode) else ()


def undecided(seen: Comparison, mode: Mode = "interleaved") -> bool:
    """Whether more processes may decide it that are compared in this way, as those that it has were."""
    return seen.decision is Decision.INCONCLUSIVE and seen.mode == mode


def compared(state: SearchState, base: Plan, plan: Plan, *, fresh: bool = False) -> Comparison | None:
    """The latest comparison of two plans that has a figure or could not be made; None where there was none.

    Args:
        fresh: not by what the search has kept a change for, which was selected by its own figure.
    """
    searched = [] if fresh else list(state.comparisons.values())
    found = (seen for seen in reversed([*searched, *state.ablations]) if of_plans(seen, base, plan))
    return next((seen for seen in found if seen.estimate or seen.decision is Decision.FAILED), None)


def of_plans(seen: Comparison, base: Plan, plan: Plan) -> bool:
    """Whether it compares these two."""
    return seen.incumbent.plan == base and seen.candidate.plan == plan


def differ(context: RunContext, one: Plan, other: Plan) -> bool | None:
    """Whether two plans come to different setups; None where one of them cannot stand."""
    fold = context.runner.registry.fold
    try:
        return fold(one) != fold(other)
    except PLUGIN_ERRORS:
        return None


def _fits(
    context: RunContext, state: SearchState, shared: Plan, others: Sequence[tuple[Plan, int]], deadline: float
) -> bool:
    """Whether there is time to decide them, and memory for all of them."""
    in_time = context.now() + _seconds(context, state, shared, others) <= deadline
    return in_time and not state.apart and room(state, 1 + len(others))


def _seconds(context: RunContext, state: SearchState, shared: Plan, others: Sequence[tuple[Plan, int]]) -> float:
    """Seconds of the rounds that decide them: each goes on while any is undecided, and starts the shared plan anew."""
    half = context.allocation.pair / 2
    rounds = max(pairs for _, pairs in others)
    of_others = sum(pairs * (half + state.dearer_start(plan)) for plan, pairs in others)
    return of_others + rounds * (half + state.dearer_start(shared))


def room(state: SearchState, processes: int) -> bool:
    """Whether so many processes fit into memory, by the largest that was seen; where nothing is known, they do not."""
    seen = [*state.looks, *state.comparisons.values(), *state.ablations]
    control = [state.control.comparison] if state.control is not None else []
    sides = [side for comparison in (*control, *seen) for side in (comparison.incumbent, comparison.candidate)]
    device = max((side.peak_memory_bytes or 0 for side in sides), default=0)
    host = max((side.peak_host_memory_bytes or 0 for side in sides), default=0)
    where = state.environment
    if not device or where.device_memory_bytes is None:
        return False
    context = 0 if where.device == "cpu" else CONTEXT_BYTES
    of_host = processes * host <= ROOM * (where.ram_bytes or 0) if host else True
    return of_host and processes * (device + context) <= ROOM * where.device_memory_bytes


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
