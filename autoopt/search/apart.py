"""Taking a stack apart: what was proved together stays only as far as leaving it out is decided to be worse.

Parts that a running process can put on and off are left out in it, one by one. Of the others strong ones are left out
by themselves, for two or three pairs of processes decide them; the weak ones all at once, and by halves where that is
decided to be worse. The simpler plan wins ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoopt.records import Plan
from autoopt.search.at_once import MORE, compare_at_once, compared, differ
from autoopt.search.candidate import with_proof
from autoopt.search.compare.comparison import Comparison, Decision
from autoopt.search.proof import stands_out
from autoopt.search.required_time import FEWEST_PAIRS, pairs_to_prove
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.switched_apart import compare_switched

STRONG_PAIRS = 5
"""A part that so many pairs of processes would prove is left out by itself."""


def take_apart(context: RunContext, state: SearchState, before: Plan, deadline: float) -> list[str]:
    """Leaves out the parts of the incumbent that were proved together, and drops what nothing supports.

    Args:
        before: the plan that the stack was proved on.
        deadline: on the run's clock.

    Where there is no time to test what would be left, the whole stands but for what is decided to bring nothing.

    Returns:
        A sentence for what was dropped; parts that stay without a proof of their own are left in ``state.together``.
    """
    if len(state.together) < 2:
        state.together.clear()
        return []
    taking = _Taking(context, state, before, deadline)
    taking.run()
    kept = taking.left
    names = [change.strategy for change in state.incumbent.changes if change not in kept.changes]
    state.together = {name: part for name, part in state.together.items() if name in taking.doubtful}
    state.incumbent = kept
    return _dropped(names)


class _Taking:
    """One stack that is taken apart.

    Attributes:
        left: the stack without what was dropped.
        doubtful: parts that stay for what was seen of them: there was no time to decide them.
        decidable: parts that had the pairs of processes that decide what is worth having, or showed nothing in fewer:
            what looks had shown of them was selected by them.
        refused: parts of which leaving them out is decided to cost nothing.
        seen: lower ends of what single parts brought where that stands out of its noise.
    """

    def __init__(self, context: RunContext, state: SearchState, before: Plan, deadline: float) -> None:
        self.context, self.state, self.before, self.deadline = context, state, before, deadline
        self.left = state.incumbent
        self.doubtful: set[str] = set()
        self.decidable: set[str] = set()
        self.refused: set[str] = set()
        self.seen: dict[str, float] = {}
        self._open = sorted(state.together, key=lambda name: -state.together[name].gain)

    def run(self) -> None:
        """Strong parts first, as many at once as there is room for; then the weak ones."""
        self._switch_each()
        unknown = [name for name in self._open if self._measured_without(name) is None]
        weak = [name for name in unknown if self._pairs([name]) > STRONG_PAIRS]
        strong = [name for name in self._open if name not in weak]
        self._leave_out_each(strong)
        for name in sorted(strong, key=self._first_settled):
            self._halve([name])
        self._halve(weak)
        whole, parts = self.state.incumbent, self.state.together
        if self.left == self.context.runner.registry.order(self.before):  # the whole was proved faster than that
            best = max(parts, key=lambda name: (self.seen.get(name, 0.0), parts[name].gain))
            self.left = self._without(set(parts) - {best}, whole)
            self.doubtful.add(best)
            self.refused.discard(best)
        if self.left != whole and not self.context.testable(self.state, self.left):
            undecided = {name for name in parts if self.left.setting(name) != whole.setting(name)} - self.refused
            self.left = self._without(self.refused, whole)  # what was proved as a whole stands
            self.doubtful |= undecided

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
            return
        if not needed:
            self._drop([name for name in parts if not (needed is None and self._firm(name))])
        self._open = [name for name in self._open if name not in parts]

    def _firm(self, name: str) -> bool:
        """Whether a part that there was no time to decide stays.

        One that was left out stays where what was seen tells it from chance. One that was not belongs to what was
        confirmed as a whole: it stays where it is likelier to bring something than not.
        """
        part = self.state.together[name]
        likely = part.firm if self._measured_without(name) is not None else part.gain > part.error
        if likely and name not in self.decidable:
            self.doubtful.add(name)
        return name in self.doubtful

    def _drop(self, names: Iterable[str]) -> None:
        self.left = self._without(names)

    def _switch_each(self) -> None:
        """Measures what is left without each part that a running process can put on and off."""
        less = [
            plan for plan in (self._without([name]) for name in self._open) if differ(self.context, plan, self.left)
        ]
        told = "ablation: the stack without each, in processes that put it on and off"
        compare_switched(self.context, self.state, self.left, less, "candidate", self.deadline, told)

    def _measured_without(self, name: str) -> Comparison | None:
        """What is left with this one part against without it, where that was measured."""
        return compared(self.state, self._without([name]), self.left, fresh=True)

    def _leave_out_each(self, names: Sequence[str]) -> None:
        """Measures what is left without each of several, all of them alive."""
        less = {name: self._without([name]) for name in names if self._measured_without(name) is None}
        plans = [(plan, self._pairs([name])) for name, plan in less.items() if differ(self.context, plan, self.left)]
        purpose = f"ablation: the stack without {', '.join(less)}, each"
        share = 1 / max(len(self._open), 1)
        compare_at_once(self.context, self.state, self.left, plans, "candidate", self.deadline, purpose, share)

    def _first_settled(self, name: str) -> tuple[bool, float]:
        """Order in which single parts are settled, after each was left out of the whole.

        What the whole needs comes before anything is dropped, since another plan is left then; of the rest what is
        worth least is dropped first, for two of them may do the same.
        """
        seen = self._measured_without(name)
        if seen is None or seen.estimate is None:
            return True, -self.state.together[name].gain
        estimate = seen.estimate
        return estimate.low <= 1.0, estimate.value

    def _needed(self, parts: Sequence[str]) -> bool | None:
        """Whether what is left is decided to be slower without them; None where that is not decided either way."""
        less = self._without(parts)
        differs = differ(self.context, less, self.left)
        if differs is None:  # what is left cannot stand without them
            return True
        if not differs:
            self.refused.update(parts)
            return False
        seen = compared(self.state, less, self.left, fresh=True)
        if seen is None and self._time(less, parts):
            seen = self._compared(less, parts)
        return self._ruled(seen, parts) if seen is not None else None

    def _ruled(self, seen: Comparison, parts: Sequence[str]) -> bool | None:
        """The same, by a comparison; what it tells of a single part is remembered."""
        if seen.failure is not None:
            return True if seen.failure.side == "incumbent" else None
        if seen.decision in (Decision.REJECT, Decision.HARMFUL):
            self.refused.update(parts)
            return False
        estimate = seen.estimate
        if len(parts) == 1:
            self.state.together[parts[0]] = with_proof(self.state.together[parts[0]], seen)
            idle = estimate is not None and estimate.value <= 1 + self.context.min_gain
            if len(seen.pairs) > STRONG_PAIRS or (idle and len(seen.pairs) >= FEWEST_PAIRS):
                self.decidable.add(parts[0])
        if estimate is not None and len(parts) == 1 and stands_out(estimate, self.context.min_gain):
            self.seen[parts[0]] = estimate.low
        worse = estimate is not None and estimate.low > 1.0 and estimate.value > 1 + self.context.min_gain
        return True if worse and len(seen.pairs) >= FEWEST_PAIRS else None

    def _compared(self, less: Plan, parts: Sequence[str]) -> Comparison:
        context, left = self.context, self.deadline - self.context.now()
        needed = self._seconds(less, parts)
        comparison = context.compare(
            "comparison",
            less,
            self.left,
            self.state,
            seconds=min(left, max(MORE * needed, left / (len(self._open) + 1))),
            deadline=self.deadline,
            purpose=f"ablation: the stack without {', '.join(parts)}",
        )
        self.state.ablations.append(comparison)
        return comparison

    def _time(self, less: Plan, parts: Iterable[str]) -> bool:
        """Whether there is time to decide them, if they bring what was seen of them."""
        needed = self._seconds(less, parts)
        return not self.context.stopping() and self.context.now() + needed <= self.deadline

    def _seconds(self, less: Plan, parts: Iterable[str]) -> float:
        """Seconds of the pairs of processes that would decide whether what is left is faster than ``less``."""
        return self._pairs(parts) * self.context.pair_seconds(self.state, less, self.left)

    def _pairs(self, parts: Iterable[str]) -> int:
        """Pairs of processes that would decide that leaving them out is worse."""
        gain = sum(self.state.together[name].gain for name in parts)
        return max(pairs_to_prove(gain, self.state.noise, self.context.min_gain), FEWEST_PAIRS)

    def _without(self, names: Iterable[str], plan: Plan | None = None) -> Plan:
        """The plan that is left, or another, without these, as the plan before had them."""
        plan = plan or self.left
        for name in names:
            old = next((change for change in self.before.changes if change.strategy == name), None)
            plan = plan.without(name) if old is None else plan.with_change(old)
        return self.context.runner.registry.order(plan)


def _dropped(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [
        f"{', '.join(names)}: proved together with others; that the plan is slower without is not decided, and the "
        "simpler plan stands"
    ]
