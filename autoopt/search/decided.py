"""Decided candidates: what each strategy came to over all its trials, and what decided it.

A trial speaks of one candidate on one incumbent. A change that was looked at alone and kept as a part of a stack is
decided where the plan without it is, one that came along as a companion where leaving it out is, and one that gave way
to a kept change, beside which it would not be tried, where it is told to be no gain in the place of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, hypot

from scipy.stats import t as student

from autoopt.records import Change, Decided, Plan, Trial, Verdict
from autoopt.registry import Registry
from autoopt.search.compare.comparison import Comparison, Decision, PairOfProcesses
from autoopt.search.compare.sequential_test import PLAN_DOF, between_process_of
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel
from autoopt.search.planner import PLUGIN_ERRORS, candidate_plan
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
        return Decided(strategy=name, verdict=Verdict.KEPT, by="its own proof")
    larger = in_larger_plan(state, name)
    if larger is not None and larger[0].decision is Decision.ACCEPT:
        seen, others = larger
        by = f"the plan with and without it, as {', '.join(others)} was in it, {seen.reason}"
        return Decided(strategy=name, verdict=Verdict.KEPT, by=by)
    by = _in_smaller_plan(state, name)
    if by:
        return Decided(strategy=name, verdict=Verdict.KEPT, by=by)
    return Decided(strategy=name, by="kept as a part of what was proved together; leaving it out was not decided")


def in_larger_plan(state: SearchState, name: str) -> tuple[Comparison, tuple[str, ...]] | None:
    """The comparison that left out a change of the final plan while more was in the plan, and the names of that."""
    for seen in with_and_without(state, name):
        plan, final = seen.candidate.plan, state.incumbent
        others = tuple(change.strategy for change in plan.changes if change not in final.changes)
        if others and seen.estimate and all(change in plan.changes for change in final.changes):
            return seen, others
    return None


def _in_smaller_plan(state: SearchState, name: str) -> str:
    """What was decided of a change of the final plan before more came into it, in words; empty where nothing was."""
    final = state.incumbent.changes
    for seen in with_and_without(state, name):
        plan = seen.candidate.plan.changes
        later = [change.strategy for change in final if change not in plan]
        if seen.decision is Decision.ACCEPT and later and all(change in final for change in plan):
            return f"the plan with and without it, before {', '.join(later)} came into it, {seen.reason}"
    return ""


def _refused(state: SearchState, name: str, measured: list[Trial]) -> Decided:
    """A strategy that is not in the final plan: refused where no candidate of its own is left open.

    Its own candidates are those with the fewest companions: stacks of which it is a part have more.
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


TAIL = 0.05
"""The chance that a rival which is a gain in the place of what was kept is called none, at most: looked at once, at the
end. Simulated: ``tests/search/test_outdone.py``."""
DOF = 6
"""Worth of the errors, in pairs of processes, before any of these."""


@dataclass(frozen=True)
class InPlace:
    """The speedup of one candidate over another, from pairs of processes of each with one incumbent; 90 % bounds."""

    value: float
    low: float
    high: float


def decide_outdone(state: SearchState, registry: Registry, min_gain: float) -> None:
    """Gives the verdict ``no_gain`` to what is told to bring nothing in the place of what was kept.

    Args:
        min_gain: the gain worth having (0.01: one per cent).
    """
    for index, trial in enumerate(state.trials):
        if trial.verdict is not Verdict.INCONCLUSIVE or trial.strategy in state.incumbent.names():
            continue
        for kept in state.found:
            found = _in_place(state, registry, trial, kept)
            if found is not None and found.high < 1 + min_gain:
                told = (
                    f"{trial.reason}; in the place of {kept.strategy}, which is kept and beside which it is not tried, "
                    f"it would be {found.value:.2f}x [{found.low:.2f}, {found.high:.2f}] (90 %)"
                )
                state.trials[index] = trial.model_copy(update={"verdict": Verdict.NO_GAIN, "reason": told})
                break


def in_place(
    rival: Sequence[PairOfProcesses], kept: Sequence[PairOfProcesses], between: BetweenProcess
) -> InPlace | None:
    """The ratio of two candidates; None where either was not measured.

    Args:
        rival, kept: pairs of processes of each against the same plan.
        between: what is known of the between-process variance.
    """
    if not rival or not kept:
        return None
    one, other = (TwoLevel([p.log_ratio for p in s], [p.standard_error for p in s], between) for s in (rival, kept))
    difference, error = one.value - other.value, hypot(one.error, other.error)
    radius = float(student.isf(TAIL, DOF + len(rival) + len(kept) - 2)) * error
    return InPlace(exp(difference), exp(difference - radius), exp(difference + radius))


def _in_place(state: SearchState, registry: Registry, trial: Trial, kept: Change) -> InPlace | None:
    """The ratio on the first incumbent on which both were measured and exclude each other."""
    known = between_process_of(state.noise)
    between = BetweenProcess(known.sd, min(known.dof, PLAN_DOF))
    changes = (Change(strategy=trial.strategy, setting=trial.setting), *trial.companions)
    for incumbent in {seen.incumbent.plan.key: seen.incumbent.plan for seen in state.looks}.values():
        try:
            beside = candidate_plan(registry, incumbent, (kept,))
            apart = _apart(state, registry, trial, kept, beside)
            rival = candidate_plan(registry, incumbent, changes)
        except PLUGIN_ERRORS:  # a plugin's crash is a result, not the end
            continue
        if apart:
            found = in_place(_pairs(state, incumbent, rival), _pairs(state, incumbent, beside), between)
            if found is not None:
                return found
    return None


def _apart(state: SearchState, registry: Registry, trial: Trial, kept: Change, beside: Plan) -> bool:
    """Whether the trial's strategy would not be tried beside what was kept."""
    if registry.exclude(trial.strategy, kept.strategy):
        return True
    return not registry[trial.strategy].applies(state.case_of(beside, registry))


def _pairs(state: SearchState, incumbent: Plan, candidate: Plan) -> list[PairOfProcesses]:
    """Pairs of processes of its proof, in which nothing was selected; of its looks where it has none of its own."""
    proved = _of(state.comparisons.values(), incumbent, candidate)
    return proved or _of(state.looks, incumbent, candidate)


def _of(comparisons: Iterable[Comparison], incumbent: Plan, candidate: Plan) -> list[PairOfProcesses]:
    same = (seen for seen in comparisons if (seen.incumbent.plan, seen.candidate.plan) == (incumbent, candidate))
    return [pair for seen in same for pair in seen.pairs]
