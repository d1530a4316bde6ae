"""Looks at what a running process can take on: several candidates in one visit to one process of the incumbent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from autoopt.benchmark.switching import PARTS, SCRIPT_PARTS, unswitchable
from autoopt.records import JsonDict, Plan, Record
from autoopt.registry import Registry
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.candidate import plan_of
from autoopt.search.compare.arena import SETTLING_STEPS, LiveArm, Source
from autoopt.search.compare.comparison import Comparison
from autoopt.search.compare.contest import Contest
from autoopt.search.compare.statistics import MIN_BLOCKS
from autoopt.search.planner import PLUGIN_ERRORS, Proposal, most_promising
from autoopt.search.race import LiveIncumbent
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.time_limits import STEADY_SECONDS
from autoopt.search.trial_runner import TrialRunner
from autoopt.strategy import Case

SECONDS, STEPS = 4.0, SETTLING_STEPS + 2 * MIN_BLOCKS
"""Seconds of a look in a process that is alive, as thought beforehand; where steps are slow, so many of them."""


MOST_ROUNDS = 12
"""Of a screening measurement in a process that switches between plans."""


class Visit(Record):
    """One visit: a look at each plan, in their order; None where the process could not tell."""

    looks: tuple[Comparison | None, ...] = ()


def switchable_parts(runner: TrialRunner) -> frozenset[str]:
    """Parts of a setup that can be switched in processes of a run; none where several train together, or at once."""
    script = runner.base.script
    if runner.parallel > 1 or (script is not None and script.launch is not None):
        return frozenset()
    return PARTS if script is None else SCRIPT_PARTS


def seconds_of_look(allocation: BudgetAllocation) -> float:
    """Seconds of a look in a process that is alive, as thought beforehand."""
    return max(SECONDS, STEPS * allocation.step_seconds)


def switchable(registry: Registry, incumbent: Plan, plan: Plan, parts: frozenset[str] = PARTS) -> bool:
    """Whether a process of the incumbent can take the plan on: by the word of its strategies, and by what they set.

    Args:
        parts: of a setup that can be switched in it.
    """
    both = (incumbent, plan)
    changed = [change for one in both for change in one.changes if not all(change in other.changes for other in both)]
    if not changed or not all(registry[change.strategy].switchable for change in changed):
        return False
    try:
        return not unswitchable(registry.fold(incumbent), registry.fold(plan), parts)
    except PLUGIN_ERRORS:  # its own look says so
        return False


class SwitchedLooks:
    """Visits, and the looks that they brought until they are asked for.

    Args:
        context, state: of the run.
        case: what strategies are told.
        take_over: hands over a live process of the incumbent.
    """

    def __init__(
        self, context: RunContext, state: SearchState, case: Case, take_over: Callable[[], LiveArm | None]
    ) -> None:
        self._context, self._state, self._case, self._take_over = context, state, case, take_over
        self._seen: dict[str, Comparison] = {}
        self._asked: set[str] = set()
        self._spent: list[float] = []
        self._rng = np.random.default_rng([context.seed, state.numbers, 5])
        self._live = LiveIncumbent()

    def possible(self, plan: Plan) -> bool:
        """Whether a visit may tell of a plan, and none has failed to."""
        runner, known = self._context.runner, plan.key in self._asked and plan.key not in self._seen
        return not known and switchable(runner.registry, self._state.incumbent, plan, switchable_parts(runner))

    def among(self, proposals: Sequence[Proposal], seconds: float, each: float) -> list[Proposal]:
        """Proposals whose first setting a process can take on; where there is no time for all, those that promise most.

        Args:
            seconds: for all proposals.
            each: seconds that a look with a start of its own takes.
        """
        able = [p for p in proposals if self.able(p)]
        if self.fit(proposals, seconds, each):
            return able
        costs = self._costs(proposals, each)
        left, waiting, chosen = self._left(seconds), list(proposals), set[str]()
        while waiting:
            best = most_promising(tuple(waiting), lambda p: costs[p.strategy.name])
            waiting.remove(best)
            if costs[best.strategy.name] <= left:
                left -= costs[best.strategy.name]
                chosen.add(best.strategy.name)
        return [p for p in able if p.strategy.name in chosen]

    def fit(self, proposals: Sequence[Proposal], seconds: float, each: float) -> bool:
        """Whether there is time for a look at all of them, those that a process can take on in one visit."""
        return sum(self._costs(proposals, each).values()) <= self._left(seconds)

    def _costs(self, proposals: Sequence[Proposal], each: float) -> dict[str, float]:
        return {p.strategy.name: self.each if self.able(p) else each for p in proposals}

    def _left(self, seconds: float) -> float:
        """Seconds that the start of the process that is visited leaves."""
        return seconds - self._context.allocation.start_seconds

    @property
    def each(self) -> float:
        """Seconds of a look in a visit, as thought beforehand and as seen so far."""
        return fmean([seconds_of_look(self._context.allocation), *self._spent])

    def able(self, proposal: Proposal) -> bool:
        """Whether a process can take on its first setting."""
        strategy = proposal.strategy
        if not strategy.switchable:
            return False
        plan = plan_of(self._context, self._state, strategy, self._case, proposal.setting)
        return plan is not None and self.possible(plan)

    def visit(self, plans: Sequence[Plan], deadline: float) -> None:
        """Looks at those plans that a process can take on and that were not looked at; a durable step."""
        new = [plan for plan in plans if plan.key not in self._seen and self.possible(plan)]
        if not new:
            return
        context, state = self._context, self._state
        incumbent = state.incumbent.names()
        key: JsonDict = {
            "purpose": f"looks in one process from {state.numbers}",
            "incumbent": state.incumbent.model_dump(mode="json"),
            "candidates": [plan.model_dump(mode="json") for plan in new],
        }

        def measure() -> Visit:
            names = ", ".join("+".join(name for name in plan.names() if name not in incumbent) for plan in new)
            looked = f"looking at {len(new)} candidates in one process: {names}"
            context.begin("optimize", len(state.rounds), looked if len(new) > 1 else f"looking at {names}")
            return Visit(looks=tuple(self._measured(new, deadline)))

        seen = context.run.step("look", key, measure, Visit)
        self._asked |= {plan.key for plan in new}
        self._spent += [look.seconds for look in seen.looks if look is not None]
        self._seen |= {plan.key: look for plan, look in zip(new, seen.looks, strict=True) if look is not None}

    def _measured(self, plans: Sequence[Plan], deadline: float) -> list[Comparison | None]:
        """One pair of processes of each that are one process of the incumbent, which lives on."""
        context, incumbent = self._context, self._state.incumbent
        rule = context.rule(deadline - context.now())
        contest = Contest(
            Source(context.runner.start, self._live.take() or self._take_over(), switched=incumbent),
            incumbent,
            plans,
            "incumbent",
            rule.model_copy(update={"max_pairs": 1, "warm_up_seconds": STEADY_SECONDS}),
            clock=context.now,
            noise=self._state.noise,
            rng=self._rng,
            most_rounds=MOST_ROUNDS,
            keep_live=True,
        )
        looks = contest.run()
        self._live.arm = contest.live
        return [look and look.model_copy(update={"fresh": False}) for look in looks]

    def knows(self, plan: Plan) -> bool:
        return plan.key in self._seen

    def take(self, plan: Plan) -> Comparison | None:
        """The look at a plan, once."""
        return self._seen.pop(plan.key, None)

    def close(self) -> None:
        """Ends the process; what was seen is kept."""
        self._live.close()
