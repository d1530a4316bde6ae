"""Taking a stack apart: what was proved together stays only as far as leaving it out is decided to be worse.

Strong parts are left out one by one, for two or three pairs of processes decide them. The weak ones are left out all at
once, and by halves where that is decided to be worse. The simpler plan wins ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp

from autoopt.records import Plan
from autoopt.search.compare.comparison import Decision
from autoopt.search.planner import PLUGIN_ERRORS
from autoopt.search.required_time import FEWEST_PAIRS, pairs_to_prove
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState

STRONG_PAIRS = 5
"""A part that so many pairs of processes would prove is left out by itself."""
MORE = 2.0
"""A part may take so many times the pairs that what was seen of it promises: looks flatter what they find."""


def take_apart(context: RunContext, state: SearchState, before: Plan, deadline: float) -> list[str]:
    """Leaves out the parts of the incumbent that were proved together, and drops what nothing supports.

    Args:
        before: the plan that the stack was proved on.
        deadline: on the run's clock.

    Returns:
        A sentence for what was dropped, and one for each part that stays without a proof of its own.
    """
    if len(state.together) < 2:
        state.together.clear()
        return []
    taking = _Taking(context, state, before, deadline)
    taking.run()
    kept = taking.left
    names = [change.strategy for change in state.incumbent.changes if change not in kept.changes]
    told = taking.told(names)
    state.together = {name: part for name, part in state.together.items() if name in taking.doubtful}
    state.incumbent = kept
    return told


class _Taking:
    """One stack that is taken apart.

    Attributes:
        left: the stack without what was dropped.
        doubtful: parts that stay for their looks: there was no time to decide them.
    """

    def __init__(self, context: RunContext, state: SearchState, before: Plan, deadline: float) -> None:
        self.context, self.state, self.before, self.deadline = context, state, before, deadline
        self.left = state.incumbent
        self.doubtful: set[str] = set()
        self._open = sorted(state.together, key=lambda name: -state.together[name].gain)

    def run(self) -> None:
        weak = [name for name in self._open if self._pairs([name]) > STRONG_PAIRS]
        for name in [name for name in self._open if name not in weak]:
            self._halve([name])
        self._halve(weak)

    def _halve(self, parts: Sequence[str]) -> None:
        """Leaves parts out, and by halves where that is decided to be worse; the stronger half is looked into first."""
        if not parts:
            return
        every = len(parts) > 1 and len(parts) == len(self.state.together)  # of all, the stack's own proof says so
        needed = True if every else self._needed(parts)
        if needed and len(parts) > 1:
            half = (len(parts) + 1) // 2
            self._halve(parts[:half])
            self._halve(parts[half:])
        elif not needed:
            self._drop([name for name in parts if not (needed is None and self._firm(name))])
            self._open = [name for name in self._open if name not in parts]

    def _firm(self, name: str) -> bool:
        """Whether a part that there was no time to decide stays: its looks alone tell it from chance."""
        if self.state.together[name].firm:
            self.doubtful.add(name)
        return name in self.doubtful

    def _drop(self, names: Iterable[str]) -> None:
        self.left = self._without(names)

    def _needed(self, parts: Sequence[str]) -> bool | None:
        """Whether what is left is decided to be slower without them; None where that is not decided either way."""
        less = self._without(parts)
        fold = self.context.runner.registry.fold
        try:
            alike = fold(less) == fold(self.left)
        except PLUGIN_ERRORS:  # what is left cannot stand without them
            return True
        decision = Decision.REJECT if alike else self._decision(less, parts)
        if decision in (Decision.REJECT, Decision.HARMFUL):
            return False
        return True if decision is Decision.ACCEPT else None

    def _decision(self, less: Plan, parts: Sequence[str]) -> Decision | None:
        if not self._time(parts):
            return None
        context, left = self.context, self.deadline - self.context.now()
        needed = self._pairs(parts) * context.allocation.pair
        comparison = context.compare(
            "comparison",
            less,
            self.left,
            self.state,
            seconds=min(left, max(MORE * needed, left / len(self._open))),
            deadline=self.deadline,
            purpose=f"ablation: the stack without {', '.join(parts)}",
        )
        self.state.ablations.append(comparison)
        failure = comparison.failure
        if failure is not None:
            return Decision.ACCEPT if failure.side == "incumbent" else None
        return comparison.decision

    def _time(self, parts: Iterable[str]) -> bool:
        """Whether there is time to decide them, if they bring what was seen of them."""
        needed = self._pairs(parts) * self.context.allocation.pair
        return not self.context.stopping() and self.context.now() + needed <= self.deadline

    def _pairs(self, parts: Iterable[str]) -> int:
        """Pairs of processes that would decide that leaving them out is worse."""
        gain = sum(self.state.together[name].gain for name in parts)
        return max(pairs_to_prove(gain, self.state.noise, self.context.min_gain), FEWEST_PAIRS)

    def _without(self, names: Iterable[str]) -> Plan:
        """The plan that is left without these, as the plan before had them."""
        plan = self.left
        for name in names:
            old = next((change for change in self.before.changes if change.strategy == name), None)
            plan = plan.without(name) if old is None else plan.with_change(old)
        return self.context.runner.registry.order(plan)

    def told(self, names: Sequence[str]) -> list[str]:
        """Sentences on the changes that were dropped, and on those that stay without a proof of their own."""
        found = []
        if names:
            found.append(
                f"{', '.join(names)}: proved together with others; that the plan is slower without is not decided, "
                "and the simpler plan stands"
            )
        for name in sorted(self.doubtful):
            seen = exp(self.state.together[name].gain)
            found.append(f"{name} was proved together with others, not by itself: looks at it show {seen:.2f}x")
        return found
