"""The search over one strategy that trains otherwise: its settings in turn, each trained to the target."""

from __future__ import annotations

from autoopt.records import Verdict
from autoopt.search.candidate import candidate_of, conversation, skip
from autoopt.search.planner import Proposal, plugin_error
from autoopt.search.proof import Proof
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.strategy import Case


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
