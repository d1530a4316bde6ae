"""Worth of each kept change: the final plan without each of them, and each of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import exp, inf, log, log1p
from statistics import fmean

import numpy as np

from autoopt.errors import TrialFailed
from autoopt.events import AblationMeasured
from autoopt.records import Ablation, Change, Estimate, Plan
from autoopt.search.accept.trainings import ratio_of_pairs
from autoopt.search.budget_allocation import STEADY_SECONDS
from autoopt.search.candidate import FEWEST_PAIRS, PLAIN
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


def ablate(context: RunContext, deadline: float) -> tuple[list[Ablation], list[str]]:
    """Takes each change of the incumbent away, the least promising first; drops what does not pay.

    What made the workload fit may no longer be wanted next to the rest. A dropped change leaves another plan, of which
    the rest is ablated, and in the end all of it again while time allows. ``state.together`` keeps the parts of a
    combination that are not decided.

    Returns:
        The ablation of the plan that is left, leave-one-out alone, and a sentence for each change that was dropped.
    """
    state = context.state
    if context.by_whole_runs and len(state.found) > 1:
        return _ablate_by_whole_runs(context, deadline)

    def left_out(change: Change) -> Comparison | None:
        """The comparison of the incumbent with itself without a change; None before there is one."""
        return compared(state, state.without(change.strategy), state.incumbent, fresh=True)

    def expected(change: Change) -> float:
        """The log gain of a change in the incumbent: measured without it, else believed."""
        seen, member = left_out(change), state.together.get(change.strategy)
        if seen is not None and seen.estimate is not None:
            return log(seen.estimate.value)
        return inf if member is None else state.beliefs.of([member])[0]

    def shown(strategy: str) -> bool:
        """Whether leaving a change out is decided to cost speed: of the plan, or as more was in it."""
        larger = in_larger_plan(state, strategy)
        return Decision.ACCEPT in (_decision(state, strategy), larger and larger[0].decision)

    rows, dropped, settled = list[Ablation](), list[str](), False
    while state.found and not settled:
        if len(state.found) > 1:
            stepping = [c for c in state.incumbent.changes if not context.between_steps(c.strategy)]
            less = [state.without(change.strategy) for change in stepping]
            compare_switched(context, [(base, state.incumbent) for base in less], "candidate", deadline)
        rows, settled = [], True
        changes = sorted(state.incumbent.changes, key=expected)
        for place, change in enumerate(changes):
            waiting = sum(left_out(each) is None for each in changes[place:])
            without = _without(context, change, deadline, waiting)
            row = Ablation(strategy=change.strategy, setting=change.setting, without=without)
            if without is None or not _drops(context, row, without):
                rows.append(row)
                continue
            state.incumbent, settled = state.without(change.strategy), False
            dropped.append(_dropped(change.strategy, without))
            deadline = min(deadline, context.allocation.budget - seconds_due(context, state.incumbent))
    left = [change.strategy for change in state.found if not shown(change.strategy)]
    state.together = {name: member for name, member in state.together.items() if name in left}
    return _of_the_rest(state, rows), dropped


def _ablate_by_whole_runs(context: RunContext, deadline: float) -> tuple[list[Ablation], list[str]]:
    """The same by a whole run of each patch, of which one at most is dropped."""
    state, plan, rows = context.state, context.state.incumbent, list[Ablation]()
    known = context.gate.whole_pairs(plan)
    before, after = max(pair.baseline.seconds for pair in known), max(pair.best.seconds for pair in known)
    for change in plan.changes:
        row, now = Ablation(strategy=change.strategy, setting=change.setting), context.now()
        if not context.stopping() and now + before + after <= deadline:
            with suppress(TrialFailed):  # without it the rest does not run, or takes longer than there is time
                pair = context.gate.trainings.whole_runs(
                    state.without(change.strategy),
                    plan,
                    context.seed + FRESH_SEEDS,
                    purpose=f"ablation: without {change.strategy}",
                    max_seconds=deadline - now,
                )
                same = pair.time_sliced_same_steps
                ratio = ratio_of_pairs([pair.log_ratio], state.noise.process_sd, time_sliced=same)
                row = row.model_copy(update={"without": ratio})
        rows.append(row)
    slower = [(row.without, row) for row in rows if row.without is not None and row.without.high < 1.0]
    losers = [one for one in slower if _verifiable(context, one[1].strategy)]
    if not losers:
        return _of_the_rest(state, rows), []
    without, loser = min(losers, key=lambda one: one[0].value)
    state.incumbent = state.without(loser.strategy)
    # what is left is confirmed as the whole was: by whole runs, those of the verification
    number, side = int(state.base), Side(plan=state.incumbent)
    state.comparisons[number] = state.comparisons[number].model_copy(update={"candidate": side})
    left = [row for row in rows if row is not loser]
    rows = [row.model_copy(update={"beside": (loser.strategy,)}) if row.without else row for row in left]
    return rows, [_dropped(loser.strategy, without)]


def _dropped(strategy: str, without: Estimate) -> str:
    return f"{strategy} was dropped in the ablation: with it the plan is {without.text('.3f')} as fast as without"


def _of_the_rest(state: SearchState, rows: list[Ablation]) -> list[Ablation]:
    """The rows of what was found, in the plan's order; what larger plans showed of a change, where that is all."""
    known, full = {row.strategy: row for row in rows}, list[Ablation]()
    for change in state.found:
        row, larger = known[change.strategy], in_larger_plan(state, change.strategy)
        if row.without is None and larger is not None:
            row = row.model_copy(update={"without": larger[0].estimate, "beside": larger[1]})
        full.append(row)
    return full


def unconfirmed(state: SearchState, rows: list[Ablation], *, whole: bool) -> list[str]:
    """A sentence on the parts of a combined candidate that stay although it is undecided whether they help. Beliefs are
    about steps, and say nothing of a plan that whole runs have confirmed."""
    parts = []
    for row in rows:
        member = state.together.get(row.strategy)
        if member is not None and not (whole and row.without is not None and row.without.low > 1):
            about = "" if whole else f" (about {exp(state.beliefs.of([member])[0]):.2f}x)"
            parts.append(f"{row.strategy}{about}")
    return [f"confirmed together, none of them alone: {', '.join(parts)}"] if parts else []


def alone(context: RunContext, rows: list[Ablation], deadline: float) -> list[Ablation]:
    """The same rows with each change tried alone on the baseline, in time; announces them, with intervals that hold
    together."""
    state = context.state
    by_steps = [] if context.by_whole_runs else rows  # of what whole runs have confirmed, blocks show little
    changes = [Change(strategy=row.strategy, setting=row.setting) for row in by_steps]
    plans = {c.strategy: context.registry.order(state.baseline.with_change(c)) for c in changes}
    others = [p for name, p in plans.items() if p != state.incumbent and not context.between_steps(name)]
    compare_switched(context, [(state.baseline, plan) for plan in others], "incumbent", deadline)
    done = [] if by_steps else rows
    for row in by_steps:
        plan, ratio = plans[row.strategy], row.without
        if plan == state.incumbent and not context.between_steps(row.strategy):
            # leaving it out and trying it alone are one comparison, which the verification has made once more
            ratio = next((trial.measured_again for trial in reversed(state.kept(row.strategy))), None) or ratio
            row = row.model_copy(update={"without": ratio})
        elif not context.between_steps(row.strategy):
            ratio = _ratio(context, state.baseline, plan, deadline, "ablation: alone")
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


def _without(context: RunContext, change: Change, deadline: float, waiting: int) -> Estimate | None:
    """With a change against without it, from fresh processes: the trial that kept it was selected by its own figure.

    A single change is measured again by the verification, which compares the same two plans. What was never confirmed
    by itself is decided here, and may take its share of the time, of so many that wait.
    """
    state = context.state
    plan, base = state.incumbent, state.without(change.strategy)
    if context.between_steps(change.strategy):  # no block of steps shows it: its own trial does
        kept = reversed(state.kept(change.strategy))
        return next((trial.time_to_target for trial in kept if not trial.companions), None)
    if len(state.found) > 1:
        share, until, member = 0.0, None, state.together.get(change.strategy)
        if member is not None:
            share = (deadline - context.now()) / (waiting + 1)
            if _own(state, change.strategy):  # a narrower interval distinguishes its gain from none
                until = max(state.beliefs.of([member])[0], log1p(context.min_gain))
        purpose = "ablation: without"
        ratio = _ratio(context, base, plan, deadline, purpose, fresh=True, seconds=share, until=until)
        if ratio is not None:
            state.measured_again(change.strategy, ratio)
            return ratio
    found = (seen for seen in reversed([*state.comparisons.values(), *state.ablations]) if seen.estimate)
    return next((seen.estimate for seen in found if seen.compares(base, plan)), None)


def _ratio(
    context: RunContext,
    base: Plan,
    plan: Plan,
    deadline: float,
    purpose: str,
    *,
    fresh: bool = False,
    seconds: float = 0.0,
    until: float | None = None,
) -> Estimate | None:
    """The speedup of ``plan`` over ``base``; None where there was no time, or one of them cannot run.

    Args:
        fresh: a comparison by which the search has kept a change does not do.
        seconds: that it may take, where that is more than a short comparison takes.
        until: half-width of the interval (log) at which it ends; None: where it is decided, or cannot be.
    """
    known = compared(context.state, base, plan, fresh=fresh)
    if known is not None:
        return known.estimate
    if not differ(context, base, plan):
        return None
    pair = context.pair_seconds(base, plan)
    needed = FEWEST_PAIRS * pair
    if context.stopping() or context.now() + needed + pair / 2 > deadline:  # they may take longer than those before
        return None
    seconds = max(1.5 * needed, seconds)
    comparison = context.compare(
        "comparison", base, plan, seconds=seconds, deadline=deadline, purpose=purpose, until_error=until
    )
    _note(context.state, comparison)
    return comparison.estimate if comparison.decision is not Decision.FAILED else None


def _note(state: SearchState, seen: Comparison, known: int = 0) -> None:
    """Keeps a comparison, of which so many pairs are known, and what it shows of a part of a combination."""
    state.ablations.append(seen)
    less, more = seen.incumbent.plan.names(), seen.candidate.plan.names()
    left_out = [name for name in more if name not in less]
    if len(left_out) == 1 and _own(state, left_out[0]):
        state.learn([state.together[left_out[0]]], seen, known)


def _own(state: SearchState, strategy: str) -> bool:
    """Whether a part of a combination has a gain of its own: a companion's is a part of the one that it serves."""
    member = state.together.get(strategy)
    return member is not None and member[0] == strategy


def _drops(context: RunContext, row: Ablation, without: Estimate) -> bool:
    """Whether a change does not pay its place, and there is time to verify the plan without it."""
    state = context.state
    if len(state.incumbent.changes) < 2 or context.between_steps(row.strategy):
        return False  # a single change is verified anyway
    refused = _decision(state, row.strategy) in (Decision.REJECT, Decision.HARMFUL)
    if row.strategy in state.together and not context.gate.whole_pairs(state.incumbent):
        # never confirmed by itself: the simpler plan stands; of what whole runs have shown, blocks decide less
        seen, least = log(without.value), log1p(context.min_gain)
        gain, error = seen, (log(without.high) - seen) / OF_AN_INTERVAL
        if _own(state, row.strategy):
            gain, error = state.beliefs.of([state.together[row.strategy]])
        refused = refused or seen < least or gain < max(least, PLAIN * error)
    return refused and _verifiable(context, row.strategy)


def _verifiable(context: RunContext, strategy: str) -> bool:
    """Whether there is time to verify the plan without a change, where the plan with it was trained alternately."""
    state = context.state
    if not context.gate.trained_pairs(state.incumbent):
        return True
    due = seconds_due(context, state.without(strategy))
    return not context.stopping() and context.now() + due <= context.allocation.budget


def _decision(state: SearchState, strategy: str) -> Decision | None:
    """Of the latest comparison of the plan with and without a change; None where there was none."""
    seen = compared(state, state.without(strategy), state.incumbent)
    return seen.decision if seen is not None else None


OF_AN_INTERVAL = 3.0
"""Standard errors, about, of the half-width of an interval that holds at all times."""


def compared(state: SearchState, base: Plan, plan: Plan, *, fresh: bool = False) -> Comparison | None:
    """The latest comparison of two plans that has a figure or could not be made; None where there was none. A ``fresh``
    one is none by which the search has kept a change, selected by its own figure."""
    searched = [] if fresh else list(state.comparisons.values())
    found = (seen for seen in reversed([*searched, *state.ablations]) if seen.compares(base, plan))
    return next((seen for seen in found if seen.estimate or seen.decision is Decision.FAILED), None)


def differ(context: RunContext, one: Plan, other: Plan) -> bool:
    """Whether two plans come to different setups; False where one of them cannot stand."""
    fold = context.registry.fold
    try:
        return fold(one) != fold(other)
    except PLUGIN_ERRORS:
        return False


MORE = 2.0
"""Processes that switch may take so many times the seconds that a decision is thought to take."""


def compare_switched(context: RunContext, pairs: Sequence[tuple[Plan, Plan]], role: SideName, deadline: float) -> None:
    """Compares pairs of plans in processes that put a change on and off, where such can, into ``state.ablations``.

    Those that are missing or undecided are compared, the first of them first: as many as there is time for in as many
    processes as a decision takes. ``role`` is that of the plan that is the same in each pair.
    """
    state, side, fresh = context.state, SIDES.index(role), role == "candidate"
    others, before = list[Plan](), dict[str, tuple[PairOfProcesses, ...]]()
    for plans in pairs:
        known = compared(state, *plans, fresh=fresh)
        # more processes that switch may decide what those that it has did not
        open_ = known is None or (known.decision is Decision.INCONCLUSIVE and known.mode == SWITCHED)
        if open_ and differ(context, *plans):
            others.append(plans[1 - side])
            before[others[-1].key] = known.pairs if known is not None else ()
    if not others or context.stopping():
        return
    shared = pairs[0][side]
    switched = (seen for seen in (*state.screenings, *state.ablations) if seen.mode == SWITCHED)
    spent = [seen.seconds / len(seen.pairs) for seen in switched]
    each, start = fmean([seconds_of_screening(context.allocation, state), *spent]), context.allocation.start_seconds
    in_time = max(int(((deadline - context.now()) / FEWEST_PAIRS - start) / each), 0)
    base, chosen = switchable_from(context, shared, switchable_from(context, shared, others)[1][:in_time])
    if not chosen:
        return
    until = min(deadline, context.now() + MORE * FEWEST_PAIRS * (start + len(chosen) * each))
    what = "without each" if fresh else "each alone"
    key = {
        "purpose": f"ablation: {what}, in processes that put it on and off",
        "process": base.model_dump(),
        role: shared.model_dump(),
        "others": [plan.model_dump() for plan in chosen],
    }
    earlier = [before[plan.key] for plan in chosen]

    def measure() -> Several:
        rule = context.rule(until - context.now(), warm_up_seconds=STEADY_SECONDS)
        contest = Contest(
            Source(context.runner.start, switched=base),
            shared,
            chosen,
            role,
            rule,
            clock=context.now,
            noise=state.noise,
            rng=np.random.default_rng([context.seed, len(state.ablations), state.numbers, 6]),
            most_rounds=MOST_ROUNDS,
            earlier=earlier,
        )
        return Several(comparisons=tuple(contest.run()))

    several = context.on_one_machine("comparisons", key, measure, Several)
    for comparison, pairs_before in zip(several.comparisons, earlier, strict=True):
        if comparison is not None:
            _note(state, comparison, len(pairs_before))


def switchable_from(context: RunContext, shared: Plan, others: Sequence[Plan]) -> tuple[Plan, list[Plan]]:
    """The plan of a process that can take on the shared plan and others, and which of these: as many as can be. It has
    what all of them have in common: a change can be put on, and only then off again."""
    registry, parts = context.registry, switchable_parts(context.runner)
    base, chosen = shared, list[Plan]()
    for plan in others:
        every = (shared, *chosen, plan)
        shared_changes = (c for c in shared.changes if all(c in each.changes for each in every))
        common = registry.order(Plan(changes=tuple(shared_changes)))
        if all(each == common or switchable(registry, common, each, parts) for each in every):
            base = common
            chosen.append(plan)
    return base, chosen
