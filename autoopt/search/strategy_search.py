"""The search over one strategy that trains otherwise: its settings in turn, each trained to the target."""

from __future__ import annotations

from autoopt.records import Verdict
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.candidate import candidate_of, conversation, skip
from autoopt.search.first_training import train_first
from autoopt.search.planner import Proposal, plugin_error
from autoopt.search.proof import Proof
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.strategy import Case

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
    kept, proof, strategy = False, Proof(context, state, deadline), proposal.strategy
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
        trial = proof.measure(candidate, seconds=context.allocation.trial, remaining=remaining)
        kept = kept or trial.verdict is Verdict.KEPT
        answer(trial)
    return kept
