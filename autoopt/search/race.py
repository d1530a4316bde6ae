"""Looks: candidates against one live incumbent, each in a process of its own, or put on in the incumbent's.

How processes of one program differ is in the interval of a screening, so that it refuses what is plainly slow and never
accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from statistics import fmean

import numpy as np

from autoopt.benchmark.switching import PARTS, SCRIPT_PARTS, unswitchable
from autoopt.records import JsonDict, Noise, Plan
from autoopt.registry import Registry
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.candidate import plan_of
from autoopt.search.compare.arena import Clock, LiveArm, Source
from autoopt.search.compare.arm import SETTLING_STEPS, Start
from autoopt.search.compare.comparison import Comparison, Rule
from autoopt.search.compare.contest import Contest, OnProgress, Several
from autoopt.search.compare.statistics import MIN_BLOCKS
from autoopt.search.planner import PLUGIN_ERRORS, Proposal
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import MemoryLedger, TrialRunner
from autoopt.strategy import Case

MOST_ROUNDS = 12
"""Of a screening measurement: more of them serve less than another process would."""


class Race:
    """Candidates against one live incumbent, each in a process of its own, so many ``places`` at the same time."""

    places = 1

    def __init__(
        self,
        start: Start,
        incumbent: Plan,
        rule: Rule,
        *,
        clock: Clock,
        rng: np.random.Generator,
        memory: MemoryLedger | None = None,
    ) -> None:
        self._start, self._clock, self._rng, self.incumbent = start, clock, rng, incumbent
        self._rule = rule.model_copy(update={"max_pairs": 1, "max_seconds": inf})
        self._live: LiveArm | None = None
        self._memory = memory or MemoryLedger()
        self._one_at_a_time = False

    def screen(self, candidate: Plan, noise: Noise, on_progress: OnProgress | None = None) -> Comparison:
        """One pair of processes. ``inconclusive``, ``reject``, ``harmful`` or ``failed``; never ``accept``."""
        self._one_at_a_time = self._one_at_a_time or not self._memory.fit_together(self.incumbent, candidate)
        if self._one_at_a_time:
            self.close()
        contest = Contest(
            Source(self._start, self.hand_over()),
            self.incumbent,
            [candidate],
            "incumbent",
            self._rule,
            clock=self._clock,
            noise=noise,
            rng=self._rng,
            most_rounds=MOST_ROUNDS,
            on_progress=on_progress,
            keep_live=True,
            alternating=self._one_at_a_time,
        )
        (seen,) = contest.run()
        assert seen is not None
        self._memory.note(seen)
        self._one_at_a_time = self._one_at_a_time or contest.for_want_of_room
        self._live = contest.live
        return seen

    def hand_over(self) -> LiveArm | None:
        """The incumbent's live process, which belongs to whoever asks from here on; None where there is none."""
        live, self._live = self._live, None
        return live

    def close(self) -> None:
        """Ends the incumbent's process."""
        live = self.hand_over()
        if live is not None:
            live.close()


SECONDS = 4.0
"""Of a screening in a process that is alive, at least, as thought beforehand."""


def switchable_parts(runner: TrialRunner) -> frozenset[str]:
    """Parts of a setup that can be switched in processes of a run; none where several train together, or at once."""
    script = runner.base.script
    if runner.parallel > 1 or (script is not None and script.launch is not None):
        return frozenset()
    return PARTS if script is None else SCRIPT_PARTS


def seconds_of_screening(allocation: BudgetAllocation, state: SearchState) -> float:
    """Seconds of a screening in a live process, about: ramp and block of both, as often as counts."""
    startup = state.aa.side.startup
    steps = SETTLING_STEPS + 4 * MIN_BLOCKS * (startup.cycle if startup is not None else 1)
    return max(SECONDS, steps * allocation.step_seconds)


def switchable(registry: Registry, incumbent: Plan, plan: Plan, parts: frozenset[str] = PARTS) -> bool:
    """Whether a process of the incumbent can take the plan on: by the word of its strategies, and by what they set."""
    both = (incumbent, plan)
    changed = [change for one in both for change in one.changes if not all(change in other.changes for other in both)]
    if not changed or not all(registry[change.strategy].switchable for change in changed):
        return False
    try:
        return not unswitchable(registry.fold(incumbent), registry.fold(plan), parts)
    except PLUGIN_ERRORS:  # its own look says so
        return False


class SwitchedScreenings:
    """Visits of plans in one process, and the screenings that they brought until they are asked for.

    Args:
        take_over: hands over a live process of the incumbent.
    """

    def __init__(
        self, context: RunContext, state: SearchState, case: Case, take_over: Callable[[], LiveArm | None]
    ) -> None:
        self._context, self._state, self._case, self._take_over = context, state, case, take_over
        self._seen: dict[str, Comparison | None] = {}  # None: it failed, or it was taken
        self._spent: list[float] = []
        self._rng = np.random.default_rng([context.seed, state.numbers, 5])
        self._live: LiveArm | None = None

    def possible(self, plan: Plan) -> bool:
        """Whether a visit may tell of a plan, and none has failed to."""
        runner, failed = self._context.runner, plan.key in self._seen and not self.knows(plan)
        return not failed and switchable(runner.registry, self._state.incumbent, plan, switchable_parts(runner))

    def among(self, proposals: Sequence[Proposal], seconds: float) -> list[Proposal]:
        """Proposals whose first setting a process can take on, in their order, as many as there are seconds for."""
        room = int((seconds - self._context.allocation.start_seconds) / self.each)
        return [proposal for proposal in proposals if self.able(proposal)][: max(room, 0)]

    @property
    def each(self) -> float:
        """Seconds of a screening in a visit, as thought beforehand and as seen so far."""
        return fmean([seconds_of_screening(self._context.allocation, self._state), *self._spent])

    def able(self, proposal: Proposal) -> bool:
        """Whether a process can take on its first setting, sooner than one of its own would show it."""
        strategy = proposal.strategy
        if not strategy.switchable or self.each > self._context.allocation.screening:
            return False
        plan = plan_of(self._context, self._state, strategy, self._case, proposal.setting)
        return plan is not None and self.possible(plan)

    def visit(self, plans: Sequence[Plan], deadline: float) -> None:
        """Screens those plans that a process can take on and that were not screened; a durable step."""
        new = [plan for plan in plans if not self.knows(plan) and self.possible(plan)]
        if not new:
            return
        context, state = self._context, self._state
        incumbent = state.incumbent.names()
        key: JsonDict = {
            "purpose": f"looks in one process from {state.numbers}",
            "incumbent": state.incumbent.model_dump(),
            "candidates": [plan.model_dump() for plan in new],
        }

        def measure() -> Several:
            names = ", ".join("+".join(name for name in plan.names() if name not in incumbent) for plan in new)
            screened = f"screening {len(new)} candidates in one process: {names}"
            context.begin("optimize", len(state.rounds), screened if len(new) > 1 else f"screening {names}")
            return Several(comparisons=tuple(self._measured(new, deadline)))

        seen = context.run.step("look", key, measure, Several)
        self._spent += [screening.seconds for screening in seen.comparisons if screening is not None]
        self._seen |= {plan.key: screening for plan, screening in zip(new, seen.comparisons, strict=True)}

    def _measured(self, plans: Sequence[Plan], deadline: float) -> list[Comparison | None]:
        """One pair of processes of each that are one process of the incumbent, which lives on."""
        context, incumbent = self._context, self._state.incumbent
        live, self._live = self._live or self._take_over(), None
        contest = Contest(
            Source(context.runner.start, live, switched=incumbent),
            incumbent,
            plans,
            "incumbent",
            context.screening_rule(deadline - context.now()),
            clock=context.now,
            noise=self._state.noise,
            rng=self._rng,
            most_rounds=MOST_ROUNDS,
            keep_live=True,
        )
        screenings = contest.run()
        self._live = contest.live
        return [screening and screening.model_copy(update={"fresh": False}) for screening in screenings]

    def knows(self, plan: Plan) -> bool:
        """Whether a visit has brought a screening of a plan that nobody has taken."""
        return self._seen.get(plan.key) is not None

    def take(self, plan: Plan) -> Comparison | None:
        """The screening of a plan, once."""
        seen = self._seen.get(plan.key)
        if seen is not None:
            self._seen[plan.key] = None
        return seen

    def close(self) -> None:
        """Ends the process; what was seen is kept."""
        live, self._live = self._live, None
        if live is not None:
            live.close()
