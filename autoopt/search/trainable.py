"""Changes whose quality only trainings tell: whether a budget has the time for those, and their search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf

from autoopt.events import TrialEnded
from autoopt.records import Change, Verdict
from autoopt.search.accept.evidence import FEWEST_SEEDS
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.candidate import candidate_of, conversation, skip
from autoopt.search.confirmation import Confirmation
from autoopt.search.first_training import train_first
from autoopt.search.planner import PLUGIN_ERRORS, Proposal, candidate_plan, plugin_error
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.strategy import Case, Risk

OTHER_SAMPLES = "samples are others and drawn at random, so that only trainings tell how good it is"

MOST_MINUTES = 24 * 60
"""A budget that is named is no larger than this."""


def takes_trainings(context: RunContext, state: SearchState, changes: Sequence[Change]) -> bool:
    """Whether no probe reports the quality of changes: they make other samples of data that draw at random.

    Gradients are compared on the same batches, and such data never give one twice.
    """
    registry = context.runner.registry
    if state.facts.dataset.deterministic is not False:
        return False
    if any(registry[change.strategy].risk.trains_otherwise for change in changes):
        return False
    return any(
        registry[change.strategy].risk is Risk.NUMERIC and other_samples(context, state, change) for change in changes
    )


def screenable(context: RunContext, state: SearchState, proposals: Sequence[Proposal]) -> list[Proposal]:
    """Proposals less those that could not be kept in this budget, whatever a screening shows; these are notified what
    they need.

    That is what no probe reports the quality of, where there is no time for the trainings that do.
    """
    reported_before = {name for name, trial in state.skipped.items() if trial.reason.startswith(OTHER_SAMPLES)}
    found = []
    for proposal in proposals:
        speedup = max(proposal.predicted.value if proposal.predicted else 1.0, 1.0)
        if (
            context.gate.accept_undecided
            or not takes_trainings(context, state, (proposal.change,))
            or context.now() + _with_trainings(state, context.allocation, speedup) <= context.allocation.budget
        ):
            found.append(proposal)
        elif proposal.strategy.name not in reported_before | {trial.strategy for trial in state.trials}:
            text = f"{OTHER_SAMPLES}{_enough(context, state, speedup)}"
            trial = state.skip(proposal.strategy, Verdict.NOT_TRIED, text, predicted=proposal.predicted)
            context.announce(TrialEnded(at=context.now(), trial=trial))
    return found


def _with_trainings(state: SearchState, allocation: BudgetAllocation, speedup: float) -> float:
    """Seconds to look at a change, to confirm and to train it, and then the rest alone; infinite without a metric."""
    if state.objective.metric is None:
        return inf
    trainings = FEWEST_SEEDS * allocation.trained_pair(speedup) + allocation.trained_pair()
    return allocation.screening + 2 * allocation.comparison + trainings


def _enough(context: RunContext, state: SearchState, speedup: float) -> str:
    """The budget that would do for them, in words: a larger one trains longer, up to the planned run."""
    if state.objective.metric is None:
        return ", and no metric is known"
    allocation, planned = context.allocation, state.planned_seconds or inf
    before, given = context.now() / allocation.budget, state.objective.users_target is not None
    for minutes in range(ceil(allocation.budget / 60), MOST_MINUTES):
        larger = replace(allocation, budget=60.0 * minutes)
        longer = max(min(planned, larger.baseline(given)), allocation.baseline_seconds)
        needed = _with_trainings(state, replace(larger, baseline_seconds=longer), speedup)
        if before * larger.budget + needed <= larger.budget:
            return f", for which about --budget {minutes}m would do"
    return ""


def other_samples(context: RunContext, state: SearchState, change: Change) -> bool:
    """Whether a change makes the samples otherwise."""
    registry, before = context.runner.registry, context.runner.registry.fold(state.incumbent)
    try:
        return registry.fold(candidate_plan(registry, state.incumbent, (change,))).dataset != before.dataset
    except PLUGIN_ERRORS:
        return False


FEWEST_TRAININGS = 4
"""Baseline and plan, from two seeds."""


def seconds_of_trainings(context: RunContext, state: SearchState, left: float) -> float:
    """Seconds to compare one setting and to train it and the baseline to the target from two seeds.

    Before the baseline was trained this is a guess by its share of the budget, and a target may be reached in a tenth
    of that: where the guess alone forbids a trial and somebody named a target, the baseline is trained first.

    Args:
        left: for the search.
    """
    allocation = context.allocation
    if state.trained is None and state.objective.target is not None and not context.stopping():
        least = (
            allocation.baseline(target_given=True) + allocation.comparison + FEWEST_TRAININGS * allocation.start_seconds
        )
        if _needed(allocation) > left >= least:
            train_first(context, state)
    return _needed(context.allocation)


def _needed(allocation: BudgetAllocation) -> float:
    return allocation.comparison + allocation.verification(2)


def search_settings(
    context: RunContext, state: SearchState, proposal: Proposal, case: Case, deadline: float, remaining: int = 0
) -> bool:
    """Tries settings until the strategy has no more, or time is up. True where something was kept.

    Args:
        deadline: on the run's clock.
        remaining: strategies that follow in this round.
    """
    kept, confirmation, strategy = False, Confirmation(context, state, deadline), proposal.strategy
    for setting, answer in conversation(strategy, case):
        if isinstance(setting, BaseException):
            skip(context, state, strategy, Verdict.FAILED, plugin_error(setting))
            break
        if context.stopping() or context.now() + context.allocation.comparison > deadline:
            skip(context, state, strategy, Verdict.NOT_TRIED, "the time for the search is up")
            break
        candidate = candidate_of(context, state, strategy, case, setting)
        if candidate is None:
            answer(None)
            continue
        trial = confirmation.measure(candidate, seconds=context.allocation.trial, remaining=remaining)
        kept = kept or trial.verdict is Verdict.KEPT
        answer(trial)
    return kept
