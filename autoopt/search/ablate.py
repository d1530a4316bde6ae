"""Worth of each kept change: combined candidates ablated, the final plan without each change, and each alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, log, log1p

from autoopt.events import AblationMeasured
from autoopt.records import Ablation, Change, Estimate, Plan, Verdict
from autoopt.search.at_once import MORE, compare_switched, compared, differ, of_plans, undecided
from autoopt.search.candidate import with_proof
from autoopt.search.compare.arena import SIDES
from autoopt.search.compare.comparison import Comparison, Decision, SideName
from autoopt.search.compare.statistics import wider
from autoopt.search.decided import in_larger_plan
from autoopt.search.evaluations import of_evaluation_alone
from autoopt.search.run_context import RunContext
from autoopt.search.screened import FEWEST_PAIRS, pairs_to_prove
from autoopt.search.state import SearchState
from autoopt.search.verify import seconds_due


def ablate(context: RunContext, state: SearchState, deadline: float) -> tuple[list[Ablation], list[str]]:
    """Takes each change of the incumbent away; drops what no longer pays.

    What made the workload fit may no longer be wanted next to the rest. A dropped change leaves another plan,
    of which the rest is ablated again while time allows.

    Returns:
        The ablation of the plan that is left, leave-one-out alone, and a sentence for each change that was dropped or
        stays as a part of what was confirmed together.
    """
    dropped: list[str] = []
    while state.found:
        if len(state.found) > 1:
            stepping = [c for c in state.incumbent.changes if not _of_evaluations(context, c.strategy)]
            less = [state.without(change.strategy) for change in stepping]
            _each(context, state, [(base, state.incumbent) for base in less], "candidate", deadline)
        rows = [_without(context, state, change, deadline) for change in state.incumbent.changes]
        loser = _loser(context, state, rows)
        if loser is None:
            rows = [row for row in rows if Change(strategy=row.strategy, setting=row.setting) in state.found]
            return [_from_larger_plan(state, row) for row in rows], [*dropped, *_unproved(state, rows)]
        estimate = loser.without
        assert estimate is not None
        dropped.append(
            f"{loser.strategy} was dropped in the ablation: with it the plan is {estimate.value:.3f}x "
            f"[{estimate.low:.3f}, {estimate.high:.3f}] as fast as without"
        )
        state.incumbent = state.without(loser.strategy)
        deadline = min(deadline, context.allocation.budget - seconds_due(context, state))
    return [], dropped


def _from_larger_plan(state: SearchState, row: Ablation) -> Ablation:
    """The row with what leaving the change out showed before others were dropped, where that is all there is."""
    larger = in_larger_plan(state, row.strategy) if row.without is None else None
    if larger is None:
        return row
    seen, others = larger
    return row.model_copy(update={"without": seen.estimate, "beside": others})


def _unproved(state: SearchState, rows: list[Ablation]) -> list[str]:
    """A sentence for each part of a combined candidate that stays although it is undecided whether it helps."""
    found = []
    for row in rows:
        part = state.together.get(row.strategy)
        if part is not None and _decision(state, row) is not Decision.ACCEPT:
            found.append(
                f"{row.strategy} was confirmed together with others, not alone: {exp(part.gain):.2f}x by what was seen"
            )
    return found


def alone(context: RunContext, state: SearchState, rows: list[Ablation], deadline: float) -> list[Ablation]:
    """The same rows with each change tried alone on the baseline, as far as time allows; announces them.

    All intervals of the ablation hold together.
    """
    done = []
    plans = {row.strategy: _only(context, state, row) for row in rows}
    others = [p for name, p in plans.items() if p != state.incumbent and not _of_evaluations(context, name)]
    _each(context, state, [(state.baseline, plan) for plan in others], "incumbent", deadline)
    for row in rows:
        plan = plans[row.strategy]
        if _of_evaluations(context, row.strategy):
            done.append(row.model_copy(update={"alone": row.without}))
            continue
        only = plan == state.incumbent  # then leaving it out and trying it alone are the same comparison
        if only:  # which the verification has made once more
            row = row.model_copy(update={"without": _again(state, row.strategy) or row.without})
        ratio = row.without if only else _ratio(context, state, state.baseline, plan, deadline, "ablation: alone")
        done.append(row.model_copy(update={"alone": ratio}))
    done = held_together(done)
    for row in done:
        context.announce(AblationMeasured(at=context.now(), ablation=row))
    return done


def held_together(rows: Sequence[Ablation]) -> list[Ablation]:
    """The same rows with intervals that hold together, with the confidence that each had by itself (Bonferroni)."""
    shown = [figure for row in rows for figure in (row.without, row.alone) if figure is not None]
    count = len(shown) - sum(row.without is not None and row.without == row.alone for row in rows)

    def widened(figure: Estimate | None) -> Estimate | None:
        if figure is None or not figure.low < figure.value < figure.high:
            return figure
        low, high = (wider(abs(log(bound / figure.value)), count) for bound in (figure.low, figure.high))
        return figure.model_copy(update={"low": figure.value * exp(-low), "high": figure.value * exp(high)})

    return [row.model_copy(update={"without": widened(row.without), "alone": widened(row.alone)}) for row in rows]


def _only(context: RunContext, state: SearchState, row: Ablation) -> Plan:
    """The baseline with a single change."""
    change = Change(strategy=row.strategy, setting=row.setting)
    return context.runner.registry.order(state.baseline.with_change(change))


def _again(state: SearchState, strategy: str) -> Estimate | None:
    kept = [trial for trial in state.trials if trial.strategy == strategy and trial.verdict is Verdict.KEPT]
    return kept[-1].measured_again if kept else None


def _without(context: RunContext, state: SearchState, change: Change, deadline: float) -> Ablation:
    """With a change against without it, from fresh processes: the trial that kept it was selected by its own figure.

    A single change is measured again by the verification, which compares the same two plans.
    """
    plan, base = state.incumbent, state.without(change.strategy)
    if _of_evaluations(context, change.strategy):  # no block of steps shows it: what its evaluations did stands
        kept = [t for t in state.trials if t.strategy == change.strategy and t.verdict is Verdict.KEPT]
        seen = next((trial.time_to_target for trial in reversed(kept) if not trial.companions), None)
        return Ablation(strategy=change.strategy, setting=change.setting, without=seen)
    if len(state.found) < 2:
        return Ablation(strategy=change.strategy, setting=change.setting, without=_figure(state, base, plan))
    ratio = _ratio(context, state, base, plan, deadline, "ablation: without", fresh=True)
    if ratio is not None:
        state.measured_again(change.strategy, ratio)
    return Ablation(
        strategy=change.strategy,
        setting=change.setting,
        without=ratio if ratio is not None else _figure(state, base, plan),
    )


def _figure(state: SearchState, base: Plan, plan: Plan) -> Estimate | None:
    """By the latest comparison of two plans that has one, the search's own included."""
    found = (seen for seen in reversed([*state.comparisons.values(), *state.ablations]) if seen.estimate)
    return next((seen.estimate for seen in found if of_plans(seen, base, plan)), None)


def _each(
    context: RunContext, state: SearchState, pairs: Sequence[tuple[Plan, Plan]], role: SideName, deadline: float
) -> None:
    """Measures those comparisons of plans that are missing or undecided, where a process can put the change on and off.

    Args:
        pairs: incumbent and candidate, of which ``role`` is the same plan in each.
    """
    shared, fresh = SIDES.index(role), role == "candidate"
    seen = ((plans, compared(state, *plans, fresh=fresh)) for plans in pairs)
    open_ = (plans for plans, known in seen if known is None or undecided(known))
    if others := [plans[1 - shared] for plans in open_ if differ(context, *plans)]:
        purpose = "ablation: without each" if fresh else "ablation: each alone"
        told = f"{purpose}, in processes that put it on and off"
        compare_switched(context, state, pairs[0][shared], others, role, deadline, told)


def _ratio(
    context: RunContext,
    state: SearchState,
    base: Plan,
    plan: Plan,
    deadline: float,
    purpose: str,
    *,
    fresh: bool = False,
) -> Estimate | None:
    """The speedup of ``plan`` over ``base``; None where there was no time, or one of them cannot run.

    Args:
        fresh: a comparison by which the search has kept a change does not do.
    """
    known = compared(state, base, plan, fresh=fresh)
    if known is not None:
        return known.estimate
    if not differ(context, base, plan):
        return None
    needed = FEWEST_PAIRS * context.pair_seconds(state, base, plan)
    if context.stopping() or context.now() + needed > deadline:
        return None
    comparison = context.compare(
        "comparison",
        base,
        plan,
        state,
        seconds=1.5 * needed,
        deadline=deadline,
        purpose=purpose,
    )
    state.ablations.append(comparison)
    return comparison.estimate if comparison.decision is not Decision.FAILED else None


def _loser(context: RunContext, state: SearchState, rows: list[Ablation]) -> Ablation | None:
    """The change that least pays its place, of those that their comparison refuses. A single one is verified anyway."""
    if len(rows) < 2:
        return None
    whole = any(pair.whole for pair in context.gate.in_turns(state.incumbent))
    losers = [
        row
        for row in rows
        if row.without is not None
        and not _of_evaluations(context, row.strategy)
        # never confirmed by itself: the simpler plan stands; of what whole runs have shown, blocks decide less
        and (
            _refused(state, row)
            or (not whole and row.strategy in state.together and not stands_out(row.without, context.min_gain))
        )
        and _verifiable(context, state, row.strategy)
    ]
    return min(losers, key=lambda row: row.without.value if row.without else 1.0, default=None)


def _verifiable(context: RunContext, state: SearchState, strategy: str) -> bool:
    """Whether there is time to verify the plan without a change, where the plan with it was trained alternately."""
    if not context.gate.in_turns(state.incumbent):
        return True
    less = replace(state, incumbent=state.without(strategy))
    return not context.stopping() and context.now() + seconds_due(context, less) <= context.allocation.budget


def _of_evaluations(context: RunContext, name: str) -> bool:
    """Whether a strategy shortens evaluations alone, which no block of steps shows."""
    return of_evaluation_alone(context.runner.registry[name])


def _refused(state: SearchState, row: Ablation) -> bool:
    """Whether the comparison of the plan with and without a change decided that it brings nothing worth having."""
    return _decision(state, row) in (Decision.REJECT, Decision.HARMFUL)


def _decision(state: SearchState, row: Ablation) -> Decision | None:
    """Of the latest comparison of the plan with and without a change; None where there was none."""
    seen = compared(state, state.without(row.strategy), state.incumbent)
    return seen.decision if seen is not None else None


STANDS_OUT = 0.5
"""Of the half-width of its interval (log), which holds at all times and is some three standard errors."""


def stands_out(estimate: Estimate, min_gain: float) -> bool:
    """Whether the gain of a part of a confirmed combination is more than chance."""
    gain = log(estimate.value)
    return gain >= max(log1p(min_gain), STANDS_OUT * (log(estimate.high) - gain))


STRONG_PAIRS = 5
"""A part that so many pairs of processes would confirm is left out by itself."""


def take_apart(context: RunContext, state: SearchState, deadline: float) -> list[str]:
    """Leaves out the parts of the incumbent that were confirmed together, and drops what nothing supports.

    Args:
        deadline: on the run's clock.

    Where there is no time to test what would be left, the whole stands but for what is decided to bring nothing.

    Returns:
        A sentence for what was dropped; parts that stay without a confirmation of their own are left in
        ``state.together``.
    """
    if len(state.together) < 2:
        state.together.clear()
        return []
    taking = _Taking(context, state, deadline)
    taking.run()
    kept = taking.left
    names = [change.strategy for change in state.incumbent.changes if change not in kept.changes]
    state.together = {name: part for name, part in state.together.items() if name in taking.doubtful}
    state.incumbent = kept
    return _dropped(names)


class _Taking:
    """One combined candidate that is ablated.

    Attributes:
        left: the combined candidate without what was dropped.
        doubtful: parts that stay for what was seen of them: there was no time to decide them.
        decidable: parts that had the pairs of processes that decide what is worth having, or showed nothing in fewer:
            what looks had shown of them was selected by them.
        refused: parts of which leaving them out is decided to cost nothing.
        seen: lower ends of what single parts brought where that stands out of its noise.
    """

    def __init__(self, context: RunContext, state: SearchState, deadline: float) -> None:
        self.context, self.state, self.before, self.deadline = context, state, state.before_stack, deadline
        self.left = state.incumbent
        self.doubtful = {name for name in state.together if _of_evaluations(context, name)}
        self.decidable: set[str] = set()
        self.refused: set[str] = set()
        self.seen: dict[str, float] = {}
        self._steps = [name for name in state.together if name not in self.doubtful]
        self._open = sorted(self._steps, key=lambda name: -state.together[name].gain)

    def run(self) -> None:
        """Strong parts first, as many at once as there is room for; then the weak ones."""
        self._switch_each()
        unknown = [name for name in self._open if self._measured_without(name) is None]
        weak = [name for name in unknown if self._pairs([name]) > STRONG_PAIRS]
        strong = [name for name in self._open if name not in weak]
        for name in sorted(strong, key=self._first_settled):
            self._halve([name])
        self._halve(weak)
        whole, parts = self.state.incumbent, self.state.together
        if self._steps and self.left == self._without(self._steps, whole):  # the whole was confirmed faster than that
            best = max(self._steps, key=lambda name: (self.seen.get(name, 0.0), parts[name].gain))
            self.left = self._without(set(self._steps) - {best}, whole)
            self.doubtful.add(best)
            self.refused.discard(best)
        if self.left != whole and not self.context.testable(self.state, self.left):
            undecided = {name for name in parts if self.left.setting(name) != whole.setting(name)} - self.refused
            self.left = self._without(self.refused, whole)  # what was confirmed as a whole stands
            self.doubtful |= undecided

    def _halve(self, parts: Sequence[str]) -> None:
        """Leaves parts out, and by halves where that is decided to be worse; the stronger half is looked into first."""
        if not parts:
            return
        every = len(parts) > 1 and len(parts) == len(self._steps)  # of all: the confirmation of the whole says so
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

        One that was left out stays if its effect is distinguishable from chance. Another one belongs to the confirmed
        whole: it stays if a gain is more likely than none.
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
        told = "ablation: the plan without each change, switched within one process"
        compare_switched(self.context, self.state, self.left, less, "candidate", self.deadline, told)

    def _measured_without(self, name: str) -> Comparison | None:
        """What is left with this one part against without it, where that was measured."""
        return compared(self.state, self._without([name]), self.left, fresh=True)

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
        """The same, by a comparison; what it reports about a single part is remembered."""
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
            purpose=f"ablation: the plan without {', '.join(parts)}",
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
        f"{', '.join(names)}: confirmed together with others; whether the plan is slower without is undecided, and the "
        "simpler plan stands"
    ]
