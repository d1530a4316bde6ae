"""Decided candidates: what each strategy came to over all its trials, and what decided it.

A trial speaks of one candidate on one incumbent. A change that was screened alone and kept as a part of a combined
candidate is decided where the plan without it is, and one that came along as a companion where leaving it out is.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoopt.records import Decided, Trial, Verdict
from autoopt.search.compare.comparison import Comparison, Decision
from autoopt.search.state import SearchState

REFUSALS = frozenset({Verdict.NO_GAIN, Verdict.HARMFUL, Verdict.QUALITY_LOST, Verdict.FAILED})
UNMEASURED = frozenset({Verdict.NOT_APPLICABLE, Verdict.NOT_TRIED})
LEFT_OUT = {Decision.REJECT: Verdict.NO_GAIN, Decision.HARMFUL: Verdict.HARMFUL}


def decided(state: SearchState) -> tuple[Decided, ...]:
    """Each strategy of which a candidate was measured, in the order in which they were first tried."""
    measured = [trial for trial in state.trials if trial.verdict not in UNMEASURED]
    names = dict.fromkeys(trial.strategy for trial in measured)
    names |= dict.fromkeys(change.strategy for change in state.found)
    companions = (change.strategy for trial in measured for change in trial.companions)
    names |= dict.fromkeys(name for name in companions if _left_out(state, name) is not None)
    return tuple(_kept(state, name) or _refused(state, name, measured) for name in names)


def _kept(state: SearchState, name: str) -> Decided | None:
    """A strategy of the final plan; None for others."""
    if name not in {change.strategy for change in state.found}:
        return None
    without = state.without(name)
    for seen in with_and_without(state, name):
        same = (seen.candidate.plan, seen.incumbent.plan) == (state.incumbent, without)
        if same and seen.decision is Decision.ACCEPT:
            return Decided(strategy=name, verdict=Verdict.KEPT, by=f"the plan with and without it, {seen.reason}")
    alone = [trial for trial in state.trials if trial.strategy == name and not trial.companions]
    if any(trial.verdict is Verdict.KEPT for trial in alone):
        return Decided(strategy=name, verdict=Verdict.KEPT, by="its own confirmation")
    larger = in_larger_plan(state, name)
    if larger is not None and larger[0].decision is Decision.ACCEPT:
        seen, others = larger
        by = f"the plan with and without it, as {', '.join(others)} was in it, {seen.reason}"
        return Decided(strategy=name, verdict=Verdict.KEPT, by=by)
    final = state.incumbent.changes
    for seen in with_and_without(state, name):
        smaller = seen.candidate.plan.changes
        later = [change.strategy for change in final if change not in smaller]
        if seen.decision is Decision.ACCEPT and later and all(change in final for change in smaller):
            by = f"the plan with and without it, before {', '.join(later)} came into it, {seen.reason}"
            return Decided(strategy=name, verdict=Verdict.KEPT, by=by)
    return Decided(strategy=name, by="kept as a part of a confirmed combination; its own effect is undecided")


def in_larger_plan(state: SearchState, name: str) -> tuple[Comparison, tuple[str, ...]] | None:
    """The comparison that left out a change of the final plan while more was in the plan, and the names of that."""
    for seen in with_and_without(state, name):
        plan, final = seen.candidate.plan, state.incumbent
        others = tuple(change.strategy for change in plan.changes if change not in final.changes)
        if others and seen.estimate and all(change in plan.changes for change in final.changes):
            return seen, others
    return None


def _refused(state: SearchState, name: str, measured: list[Trial]) -> Decided:
    """A strategy that is not in the final plan: refused where no candidate of its own is left open.

    Its own candidates are those with the fewest companions: combined candidates of which it is a part have more.
    """
    trials = [trial for trial in measured if trial.strategy == name]
    fewest = min((len(trial.companions) for trial in trials), default=0)
    own = [trial for trial in trials if len(trial.companions) == fewest]
    if own and all(trial.verdict in REFUSALS for trial in own):
        return Decided(strategy=name, verdict=own[-1].verdict, by=own[-1].reason)
    out = _left_out(state, name)
    if out is not None:
        return Decided(strategy=name, verdict=LEFT_OUT[out.decision], by=f"the plan with and without it, {out.reason}")
    return Decided(strategy=name, by=own[-1].reason if own else "")


def _left_out(state: SearchState, name: str) -> Comparison | None:
    """The latest comparison that refused it as a part of a larger plan."""
    return next((seen for seen in with_and_without(state, name) if seen.decision in LEFT_OUT), None)


def with_and_without(state: SearchState, name: str) -> Iterator[Comparison]:
    """Comparisons of a plan with a strategy's change to the same plan without it, the latest first."""
    for seen in reversed([*state.comparisons.values(), *state.ablations]):
        plan = seen.candidate.plan
        baseline = state.baseline.setting(name)
        less = plan.without(name).changes
        same = [change for change in seen.incumbent.plan.changes if change.strategy != name]
        if plan.setting(name) is not None and list(less) == same and seen.incumbent.plan.setting(name) == baseline:
            yield seen
