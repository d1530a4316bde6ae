"""Worth of each kept change: the final plan without it, and it alone on the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

from autoopt.events import AblationMeasured
from autoopt.records import Ablation, Change, Estimate, Plan, Verdict
from autoopt.search.at_once import compare_at_once, compared, differ, of_plans, undecided
from autoopt.search.compare.arena import SIDES
from autoopt.search.compare.comparison import Decision, Mode, SideName
from autoopt.search.compare.contest import SWITCHED
from autoopt.search.compare.statistics import wider
from autoopt.search.decided import in_larger_plan
from autoopt.search.proof import stands_out
from autoopt.search.required_time import FEWEST_PAIRS
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.switched_apart import compare_switched
from autoopt.search.verification_time import seconds_due

AT_MOST = 0.5
"""Of the time that is left, for what takes longer to decide than was thought."""


def ablate(context: RunContext, state: SearchState, deadline: float) -> tuple[list[Ablation], list[str]]:
    """Takes each change of the incumbent away; drops what no longer pays.

    What made the workload fit may no longer be wanted beside the rest. A dropped change leaves another plan,
    of which the rest is ablated again while time allows.

    Returns:
        The ablation of the plan that is left, leave-one-out alone, and a sentence for each change that was dropped or
        stays as a part of what was proved together.
    """
    dropped: list[str] = []
    while state.found:
        if len(state.found) > 1:
            stepping = [c for c in state.incumbent.changes if c.strategy not in state.evaluated_alone]
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
    """A sentence for each part of a stack that stays although leaving it out is not decided to be worse."""
    found = []
    for row in rows:
        part = state.together.get(row.strategy)
        if part is not None and _decision(state, row) is not Decision.ACCEPT:
            found.append(
                f"{row.strategy} was proved together with others, not by itself: {exp(part.gain):.2f}x by what was seen"
            )
    return found


def alone(context: RunContext, state: SearchState, rows: list[Ablation], deadline: float) -> list[Ablation]:
    """The same rows with each change tried alone on the baseline, as far as time allows; announces them.

    All intervals of the ablation hold together.
    """
    done = []
    plans = {row.strategy: _only(context, state, row) for row in rows}
    others = [p for name, p in plans.items() if p != state.incumbent and name not in state.evaluated_alone]
    _each(context, state, [(state.baseline, plan) for plan in others], "incumbent", deadline)
    for row in rows:
        plan = plans[row.strategy]
        if row.strategy in state.evaluated_alone:
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
    if change.strategy in state.evaluated_alone:  # no block of steps shows it: what its evaluations did stands
        kept = [t for t in state.trials if t.strategy == change.strategy and t.verdict is Verdict.KEPT]
        return Ablation(strategy=change.strategy, setting=change.setting, without=kept[-1].time_to_target)
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
    """Measures those comparisons of plans that are missing or undecided, all at once, as far as there is time and room.

    What a running process can put on and off is measured in such.

    Args:
        pairs: incumbent and candidate, of which ``role`` is the same plan in each.
    """
    shared, fresh = SIDES.index(role), role == "candidate"
    purpose = "ablation: without each" if fresh else "ablation: each alone"

    def missing(mode: Mode) -> list[Plan]:
        seen = ((plans, compared(state, *plans, fresh=fresh)) for plans in pairs)
        open_ = (plans for plans, known in seen if known is None or undecided(known, mode))
        return [plans[1 - shared] for plans in open_ if differ(context, *plans)]

    if others := missing(SWITCHED):
        told = f"{purpose}, in processes that put it on and off"
        compare_switched(context, state, pairs[0][shared], others, role, deadline, told)
    if left := missing("interleaved"):
        others_with_pairs = [(plan, FEWEST_PAIRS) for plan in left]
        share = AT_MOST / len(left)
        compare_at_once(context, state, pairs[0][shared], others_with_pairs, role, deadline, purpose, share)


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
    losers = [
        row
        for row in rows
        if row.without is not None
        and row.strategy not in state.evaluated_alone
        and (
            _refused(state, row)
            # never proved by itself: the simpler plan stands, where there is time to verify that one
            or (
                row.strategy in state.together
                and not stands_out(row.without, context.min_gain)
                and _verifiable(context, state, row.strategy)
            )
        )
    ]
    return min(losers, key=lambda row: row.without.value if row.without else 1.0, default=None)


def _verifiable(context: RunContext, state: SearchState, strategy: str) -> bool:
    """Whether there is time to verify the plan without a change: what was trained in turns was the plan with it."""
    less = replace(state, incumbent=state.without(strategy))
    return not context.stopping() and context.now() + seconds_due(context, less) <= context.allocation.budget


def _refused(state: SearchState, row: Ablation) -> bool:
    """Whether the comparison of the plan with and without a change decided that it brings nothing worth having."""
    return _decision(state, row) in (Decision.REJECT, Decision.HARMFUL)


def _decision(state: SearchState, row: Ablation) -> Decision | None:
    """Of the latest comparison of the plan with and without a change; None where there was none."""
    seen = compared(state, state.without(row.strategy), state.incumbent)
    return seen.decision if seen is not None else None
