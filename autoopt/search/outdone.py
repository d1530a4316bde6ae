"""Outdone candidates: what did well, and gave way to a kept change beside which its strategy would not try it.

Both were measured against one incumbent. The ratio of the two is what the candidate would bring in the place of what
was kept, and where that is told to be less than a gain, the candidate is decided, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, hypot

from scipy.stats import t as student

from autoopt.records import Change, Plan, Trial, Verdict
from autoopt.registry import Registry
from autoopt.search.compare.comparison import Comparison, PairOfProcesses
from autoopt.search.compare.sequential_test import PLAN_DOF, between_process_of
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel
from autoopt.search.planner import PLUGIN_ERRORS, candidate_plan
from autoopt.search.state import SearchState

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
