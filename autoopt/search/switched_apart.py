"""Comparisons of one plan with several others in processes that take each of them on, block by block.

The way to what the parts of a plan bring where a process can put them on and off: its own speed is on both sides, and
one start serves all. Processes are replicated as in any comparison; how much less they differ in what a change brings
than in their speed, is learned from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from statistics import fmean

import numpy as np

from autoopt.records import Plan
from autoopt.search.at_once import MORE, earlier_pairs
from autoopt.search.compare.comparison import Comparison, Decision, SideName
from autoopt.search.compare.pairs import SIDES
from autoopt.search.compare.sequential_test import SequentialTest
from autoopt.search.compare.several import Several
from autoopt.search.look_ruling import SWITCHED
from autoopt.search.one_process import OneProcess, within
from autoopt.search.required_time import FEWEST_PAIRS
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.switched_looks import seconds_of_look, switchable, switchable_parts
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
        return _Visits(context, state, base, shared, chosen, role, until).run()

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


class _Visits:
    """Processes one after the other, each of which takes on every plan that is not decided yet."""

    def __init__(
        self,
        context: RunContext,
        state: SearchState,
        base: Plan,
        shared: Plan,
        others: Sequence[Plan],
        role: SideName,
        deadline: float,
    ) -> None:
        self._context, self._base, self._shared, self._others = context, base, shared, others
        self._role: SideName = role
        self._deadline = deadline
        self._rule, self._noise = context.rule(deadline - context.now()), state.noise
        self._rng = np.random.default_rng([context.seed, len(state.ablations), state.numbers, 6])
        self._tests = {plan.key: self._test(state, plan) for plan in others}
        self._latest: dict[str, Comparison] = {}
        self._lost: set[str] = set()

    def _test(self, state: SearchState, plan: Plan) -> SequentialTest:
        """With what processes that were switched have shown before."""
        earlier = earlier_pairs(state, self._shared, plan, self._role, SWITCHED)
        return SequentialTest(self._rule, within(self._noise), earlier)

    def run(self) -> Several:
        while open_ := self._open():
            self._visit(open_)
        return Several(comparisons=tuple(self._document(plan) for plan in self._others))

    def _open(self) -> list[Plan]:
        """Those that another process may decide."""
        left, now = self._deadline - self._context.now(), list[Plan]()
        waiting = [plan for plan in self._others if plan.key not in self._lost]
        for plan in waiting:
            test = self._tests[plan.key]
            if plan.key not in self._latest or test.decide(left / len(waiting)) is None:
                now.append(plan)
        return now if left > 0 and not self._context.stopping() else []

    def _visit(self, plans: Sequence[Plan]) -> None:
        """Another process; what it cannot tell of is asked no more."""
        start, clock, began = self._context.runner.start, self._context.now, self._context.now()
        process = OneProcess(start, self._base, self._rule, usual=self._shared, clock=clock, rng=self._rng)
        role = SIDES[1 - SIDES.index(self._role)]
        with closing(process):
            seen = process.look(plans, self._noise, role=role, warm_up_seconds=STEADY_SECONDS, deadline=self._deadline)
        each = (clock() - began) / len(plans)
        for plan, look in zip(plans, seen, strict=True):
            if look is None:
                self._lost.add(plan.key)
                continue
            self._latest[plan.key] = look
            for pair in look.pairs:
                self._tests[plan.key].add(pair.model_copy(update={"seconds": each}))

    def _document(self, plan: Plan) -> Comparison | None:
        """The looks of all processes as one comparison; None where no process told of it."""
        test, look = self._tests[plan.key], self._latest.get(plan.key)
        if look is None:
            return None
        decision, reason = test.decide(0.0) or (Decision.INCONCLUSIVE, "not decided within the time for it")
        return look.model_copy(
            update={
                "decision": decision,
                "reason": reason.replace("pairs of processes", "processes that were switched"),
                "estimate": test.estimate(),
                "e_value": test.e_value(),
                "pairs": tuple(test.pairs),
                "seconds": sum(pair.seconds for pair in test.pairs),
                "between_process_sd": test.between_process_sd,
                "fresh": True,
            }
        )
