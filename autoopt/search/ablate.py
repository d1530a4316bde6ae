"""Worth of each kept change: combined candidates ablated, the final plan without each change, and each alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, log, log1p
from statistics import fmean

import numpy as np

from autoopt.errors import TrialFailed
from autoopt.events import AblationMeasured
from autoopt.records import Ablation, Change, Estimate, Plan, Trial, Verdict
from autoopt.search.accept.trainings import ratio_of_pairs
from autoopt.search.budget_allocation import STEADY_SECONDS
from autoopt.search.candidate import FEWEST_PAIRS, PLAIN, pairs_to_confirm
from autoopt.search.compare.arena import SIDES, Source
from autoopt.search.compare.comparison import Comparison, Decision, PairOfProcesses, Side, SideName
from autoopt.search.compare.contest import SWITCHED, Contest, Several
from autoopt.search.compare.statistics import wider
from autoopt.search.outcome import in_larger_plan
from autoopt.search.planner import PLUGIN_ERRORS
from autoopt.search.race import MOST_ROUNDS, seconds_of_screening, switchable, switchable_parts
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.verify import FRESH_SEEDS, seconds_due


def ablate(context: RunContext, state: SearchState, deadline: float) -> tuple[list[Ablation], list[str]]:
    """Takes each change of the incumbent away; drops what no longer pays.

    What made the workload fit may no longer be wanted next to the rest. A dropped change leaves another plan,
    of which the rest is ablated again while time allows.

    Returns:
        The ablation of the plan that is left, leave-one-out alone, and a sentence for each change that was dropped
        and on those that stay as parts of what was confirmed together.
    """
    whole, dropped = by_whole_runs(context, state), list[str]()
    by_runs = whole and len(state.found) > 1
    while state.found:
        if len(state.found) > 1 and not by_runs:
            stepping = [c for c in state.incumbent.changes if not context.between_steps(c.strategy)]
            less = [state.without(change.strategy) for change in stepping]
            _each(context, state, [(base, state.incumbent) for base in less], "candidate", deadline)
        measured = _without_by_whole_runs if by_runs else _without
        changes = state.incumbent.changes
        figures = [measured(context, state, change, deadline) for change in changes]
        rows = [
            Ablation(strategy=change.strategy, setting=change.setting, without=figure)
            for change, figure in zip(changes, figures, strict=True)
        ]
        loser = _loser(context, state, rows, by_runs)
        if loser is None or loser.without is None:
            rows = [row for row, change in zip(rows, changes, strict=True) if change in state.found]
            # what leaving a change out showed before others were dropped, where that is all there is
            larger = [in_larger_plan(state, row.strategy) if row.without is None else None for row in rows]
            full = [
                row.model_copy(update={"without": seen[0].estimate, "beside": seen[1]}) if seen else row
                for row, seen in zip(rows, larger, strict=True)
            ]
            return full, [*dropped, *_unconfirmed(state, rows, whole)]
        state.incumbent, without = state.without(loser.strategy), loser.without
        dropped.append(
            f"{loser.strategy} was dropped in the ablation: with it the plan is {without.value:.3f}x "
            f"[{without.low:.3f}, {without.high:.3f}] as fast as without"
        )
        if by_runs:  # what is left is confirmed as the whole was: by whole runs, those of the verification
            number, side = int(state.base), Side(plan=state.incumbent)
            state.comparisons[number] = state.comparisons[number].model_copy(update={"candidate": side})
            left = [row for row in rows if row is not loser]
            rows = [row.model_copy(update={"beside": (loser.strategy,)}) if row.without else row for row in left]
            return rows, [*dropped, *_unconfirmed(state, rows, whole)]
        deadline = min(deadline, context.allocation.budget - seconds_due(context, state))
    return [], dropped


def by_whole_runs(context: RunContext, state: SearchState) -> bool:
    """Whether whole runs of a script have shown what the incumbent brings, and no blocks of steps."""
    if state.made_by is None or state.made_by.pairs:
        return False
    return bool(context.gate.whole_pairs(state.incumbent))


def _without_by_whole_runs(context: RunContext, state: SearchState, change: Change, deadline: float) -> Estimate | None:
    """With a change against without it, by a whole run of each patch; None where the time holds no pair."""
    plan, base, now = state.incumbent, state.without(change.strategy), context.now()
    known = context.gate.whole_pairs(plan)
    longest = max(pair.baseline.seconds for pair in known)
    if context.stopping() or now + longest + max(pair.best.seconds for pair in known) > deadline:
        return None
    try:
        pair = context.gate.trainings.whole_runs(
            base,
            plan,
            context.seed + FRESH_SEEDS,
            purpose=f"ablation: without {change.strategy}",
            steps=state.planned_steps or 0,
            max_seconds=deadline - now,
        )
    except TrialFailed:  # without it the rest does not run, or takes longer than there is time
        return None
    return ratio_of_pairs([pair.log_ratio], state.noise.process_sd, time_sliced=pair.time_sliced_same_steps)


def _unconfirmed(state: SearchState, rows: list[Ablation], whole: bool) -> list[str]:
    """A sentence on the parts of a combined candidate that stay although it is undecided whether they help.

    Args:
        whole: whole runs have confirmed the plan, of which beliefs, about steps, say nothing.
    """
    parts = []
    for row in rows:
        member = state.together.get(row.strategy)
        shown = _decision(state, row) is Decision.ACCEPT or (whole and row.without is not None and row.without.low > 1)
        if member is not None and not shown:
            about = "" if whole else f" (about {exp(state.beliefs.of([member])[0]):.2f}x)"
            parts.append(f"{row.strategy}{about}")
    return [f"confirmed together, none of them alone: {', '.join(parts)}"] if parts else []


def alone(context: RunContext, state: SearchState, rows: list[Ablation], deadline: float) -> list[Ablation]:
    """The same rows with each change tried alone on the baseline, as far as time allows; announces them.

    All intervals of the ablation hold together.
    """
    # of what whole runs have confirmed, blocks of steps would show little
    done = rows if by_whole_runs(context, state) else _each_alone(context, state, rows, deadline)
    done = held_together(done)
    for row in done:
        context.announce(AblationMeasured(at=context.now(), ablation=row))
    return done


def _each_alone(context: RunContext, state: SearchState, rows: list[Ablation], deadline: float) -> list[Ablation]:
    """The same rows with each change tried alone, by blocks of steps."""
    done = []
    changes = [Change(strategy=row.strategy, setting=row.setting) for row in rows]
    plans = {c.strategy: context.runner.registry.order(state.baseline.with_change(c)) for c in changes}
    others = [p for name, p in plans.items() if p != state.incumbent and not context.between_steps(name)]
    _each(context, state, [(state.baseline, plan) for plan in others], "incumbent", deadline)
    for row in rows:
        plan = plans[row.strategy]
        if context.between_steps(row.strategy):
            done.append(row.model_copy(update={"alone": row.without}))
            continue
        only = plan == state.incumbent  # then leaving it out and trying it alone are the same comparison
        if only:  # which the verification has made once more
            again = next((trial.measured_again for trial in reversed(_kept(state, row.strategy))), None)
            row = row.model_copy(update={"without": again or row.without})
        ratio = row.without if only else _ratio(context, state, state.baseline, plan, deadline, "ablation: alone")
        done.append(row.model_copy(update={"alone": ratio}))
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


def _kept(state: SearchState, strategy: str) -> list[Trial]:
    return [trial for trial in state.trials if trial.strategy == strategy and trial.verdict is Verdict.KEPT]


def _without(context: RunContext, state: SearchState, change: Change, deadline: float) -> Estimate | None:
    """With a change against without it, from fresh processes: the trial that kept it was selected by its own figure.

    A single change is measured again by the verification, which compares the same two plans.
    """
    plan, base = state.incumbent, state.without(change.strategy)
    if context.between_steps(change.strategy):  # no block of steps shows it: its own trial does
        kept = reversed(_kept(state, change.strategy))
        return next((trial.time_to_target for trial in kept if not trial.companions), None)
    if len(state.found) > 1:
        ratio = _ratio(context, state, base, plan, deadline, "ablation: without", fresh=True)
        if ratio is not None:
            state.measured_again(change.strategy, ratio)
            return ratio
    found = (seen for seen in reversed([*state.comparisons.values(), *state.ablations]) if seen.estimate)
    return next((seen.estimate for seen in found if seen.compares(base, plan)), None)


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
        text = f"{purpose}, in processes that put it on and off"
        compare_switched(context, state, pairs[0][shared], others, role, deadline, text)


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
    seconds = 1.5 * needed
    comparison = context.compare("comparison", base, plan, state, seconds=seconds, deadline=deadline, purpose=purpose)
    state.ablations.append(comparison)
    return comparison.estimate if comparison.decision is not Decision.FAILED else None


def _loser(context: RunContext, state: SearchState, rows: list[Ablation], by_runs: bool) -> Ablation | None:
    """The change that least pays its place, of those that are refused; None where what is left cannot be verified."""

    def refused(row: Ablation, without: Estimate) -> bool:
        if by_runs:
            return without.high < 1.0
        if context.between_steps(row.strategy):
            return False
        if _decision(state, row) in (Decision.REJECT, Decision.HARMFUL):
            return True
        # never confirmed by itself: the simpler plan stands; of what whole runs have shown, blocks decide less
        whole = bool(context.gate.whole_pairs(state.incumbent))
        return not whole and row.strategy in state.together and not stands_out(without, context.min_gain)

    seen = [(row.without.value, row) for row in rows if row.without is not None and refused(row, row.without)]
    losers = [one for one in seen if len(rows) > 1 and _verifiable(context, state, one[1].strategy)]
    return min(losers, key=lambda one: one[0])[1] if losers else None  # a single change is verified anyway


def _verifiable(context: RunContext, state: SearchState, strategy: str) -> bool:
    """Whether there is time to verify the plan without a change, where the plan with it was trained alternately."""
    if not context.gate.trained_pairs(state.incumbent):
        return True
    less = replace(state, incumbent=state.without(strategy))
    return not context.stopping() and context.now() + seconds_due(context, less) <= context.allocation.budget


def _decision(state: SearchState, row: Ablation) -> Decision | None:
    """Of the latest comparison of the plan with and without a change; None where there was none."""
    seen = compared(state, state.without(row.strategy), state.incumbent)
    return seen.decision if seen is not None else None


TWICE_AS_LIKELY = 0.43
"""Standard errors by which a gain is twice as likely as none."""
STANDS_OUT = 0.5
"""Of the half-width of its interval (log), which holds at all times and is some three standard errors."""


def stands_out(estimate: Estimate, min_gain: float) -> bool:
    """Whether the gain of a part of a confirmed combination is more than chance."""
    gain = log(estimate.value)
    return gain >= max(log1p(min_gain), STANDS_OUT * (log(estimate.high) - gain))


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
        return []
    taking = _Taking(context, state, deadline)
    taking.run()
    kept = taking.left
    names = [change.strategy for change in state.incumbent.changes if change not in kept.changes]
    state.together = {name: member for name, member in state.together.items() if name in taking.doubtful}
    state.incumbent = kept
    if not names:
        return []
    return [
        f"{', '.join(names)}: confirmed together with others; whether the plan is slower without is undecided, and the "
        "simpler plan stands"
    ]


class _Taking:
    """One combined candidate that is ablated, part by part.

    Attributes:
        left: the combined candidate without what was dropped.
        doubtful: parts that stay for what was seen of them: there was no time to decide them.
        idle: parts that showed nothing in the pairs of processes that decide what is worth having.
        refused: parts of which leaving them out is decided to cost nothing.
        seen: lower ends of what parts brought where that stands out of its noise.
    """

    def __init__(self, context: RunContext, state: SearchState, deadline: float) -> None:
        self.context, self.state, self.deadline = context, state, deadline
        self.left = state.incumbent
        self.doubtful = {name for name in state.together if context.between_steps(name)}
        self.idle: set[str] = set()
        self.refused: set[str] = set()
        self.seen: dict[str, float] = {}

    def run(self) -> None:
        """Settles one part after the other; what would be left has to be testable, or the whole stands."""
        whole, parts = self.state.incumbent, self.state.together
        steps = [name for name in parts if name not in self.doubtful]
        without = (self._without([name]) for name in steps)
        less = [plan for plan in without if differ(self.context, plan, self.left)]
        text = "ablation: the plan without each change, switched within one process"
        compare_switched(self.context, self.state, self.left, less, "candidate", self.deadline, text)
        for place, name in enumerate(sorted(steps, key=self._first_settled)):
            needed = self._needed(name, len(steps) - place)
            if needed is None and self._likely(name):
                self.doubtful.add(name)
            elif not needed:
                self.left = self._without([name])
        if steps and self.left == self._without(steps, whole):  # the whole was confirmed faster than that
            best = max(steps, key=lambda name: (self.seen.get(name, 0.0), self._gain(name)))
            self.left = self._without(set(steps) - {best}, whole)
            self.doubtful.add(best)
            self.refused.discard(best)
        if self.left != whole and not self.context.testable(self.state, self.left):
            undecided = {name for name in parts if self.left.setting(name) != whole.setting(name)} - self.refused
            self.left = self._without(self.refused, whole)  # what was confirmed as a whole stands
            self.doubtful |= undecided

    def _likely(self, name: str) -> bool:
        """Whether a part that there was no time to decide stays.

        One that was left out stays if its effect is distinguishable from chance. Another one belongs to the confirmed
        whole: it stays if that is likely a gain.
        """
        measured = compared(self.state, self._without([name]), self.left, fresh=True) is not None
        gain, error = self.state.beliefs.of([self.state.together[name]])
        return name not in self.idle and gain > (PLAIN if measured else TWICE_AS_LIKELY) * error

    def _gain(self, name: str) -> float:
        """The expected log gain of a part."""
        return self.state.beliefs.of([self.state.together[name]])[0]

    def _first_settled(self, name: str) -> tuple[bool, float]:
        """Order in which parts are settled, after each was left out of the whole.

        What the whole needs comes before anything is dropped, since another plan is left then; of the rest what is
        worth least is dropped first, for two of them may do the same.
        """
        seen = compared(self.state, self._without([name]), self.left, fresh=True)
        if seen is None or seen.estimate is None:
            return True, -self._gain(name)
        return seen.estimate.low <= 1.0, seen.estimate.value

    def _needed(self, name: str, waiting: int) -> bool | None:
        """Whether what is left is decided to be slower without a part; None where that is not decided either way."""
        less = self._without([name])
        differs = differ(self.context, less, self.left)
        if differs is None:  # what is left cannot stand without it
            return True
        if not differs:
            self.refused.add(name)
            return False
        seen = compared(self.state, less, self.left, fresh=True) or self._compared(less, name, waiting)
        return self._ruled(seen, name) if seen is not None else None

    def _ruled(self, seen: Comparison, name: str) -> bool | None:
        """The same, by a comparison; what it reports about the part is remembered."""
        if seen.failure is not None:
            return True if seen.failure.side == "incumbent" else None
        if seen.decision in (Decision.REJECT, Decision.HARMFUL):
            self.refused.add(name)
            return False
        member = self.state.together[name]
        if member[0] == name:  # a companion's gain is a part of the one that it serves
            self.state.learn([member], seen)
        estimate, enough = seen.estimate, len(seen.pairs) >= FEWEST_PAIRS
        if estimate is None:
            return None
        worth = estimate.value > 1 + self.context.min_gain
        if enough and not worth:
            self.idle.add(name)
        if stands_out(estimate, self.context.min_gain):
            self.seen[name] = estimate.low
        return True if enough and worth and estimate.low > 1.0 else None

    def _compared(self, less: Plan, name: str, waiting: int) -> Comparison | None:
        """What is left against the same without a part; None without the time for the fewest pairs that count.

        What beliefs say of it decides how long it takes at most, never whether it is measured.

        Args:
            waiting: parts that are not settled.
        """
        context, state = self.context, self.state
        pair, left = context.pair_seconds(state, less, self.left), self.deadline - context.now()
        needed = MORE * pair * pairs_to_confirm(self._gain(name), state.noise, context.min_gain)
        if context.stopping() or FEWEST_PAIRS * pair > left:
            return None
        comparison = context.compare(
            "comparison",
            less,
            self.left,
            state,
            seconds=max(needed if needed <= left else 0.0, left / (waiting + 1), FEWEST_PAIRS * pair),
            deadline=self.deadline,
            purpose=f"ablation: the plan without {name}",
        )
        state.ablations.append(comparison)
        return comparison

    def _without(self, names: Iterable[str], plan: Plan | None = None) -> Plan:
        """The plan that is left, or another, without these, as the plan before had them."""
        plan = plan or self.left
        for name in names:
            old = next((change for change in self.state.before_combined.changes if change.strategy == name), None)
            plan = plan.without(name) if old is None else plan.with_change(old)
        return self.context.runner.registry.order(plan)


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
        shared_changes = (c for c in shared.changes if all(c in each.changes for each in every))
        common = registry.order(Plan(changes=tuple(shared_changes)))
        if all(each == common or switchable(registry, common, each, parts) for each in every):
            base = common
            chosen.append(plan)
    return base, chosen
