"""Whole runs of a script as evidence: what its user pays, from the start of the process to its end.

A plan is measured in blocks only to choose it. Where a budget holds whole runs of the untouched and the patched script,
they are the final figure: they hold imports, the first batch, evaluations and the end, and nothing listens to them.
"""

from __future__ import annotations

from autoopt.benchmark.target import whole_run_seconds
from autoopt.records import Plan
from autoopt.records.messages import WHOLE_RUN
from autoopt.search.budget_allocation import KEPT_BACK_AT_MOST
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState


def run_seconds(context: RunContext, state: SearchState) -> float | None:
    """Seconds of a whole run of the untouched script, about.

    None where whole runs show nothing: of a build(), of a script with a target of its own or that must be changed to
    fit into memory, of one whose length is not known or is too long for the budget.
    """
    if state.sites is None or state.baseline.changes or state.planned_steps is None:
        return None
    step = state.aa.side.step_seconds
    if step is None:
        return None
    if state.objective.target is not None and state.objective.target_source == "user":
        return None
    start = state.aa.start_seconds
    if state.facts.run is None:
        seconds = start + state.planned_steps * step.p50
    else:
        known = state.facts.run.model_copy(update={"step_seconds": step.p50})
        seconds = whole_run_seconds(known, float(state.planned_steps)).seconds
    seen = state.trained
    if seen is not None and seen.stopped == WHOLE_RUN:
        seconds = seen.seconds
    elif seen is not None and seen.steps >= state.planned_steps:
        seconds = max(seconds, seen.seconds)
    return seconds if 2 * seconds <= KEPT_BACK_AT_MOST * context.allocation.budget else None


def shown_by_whole_runs(context: RunContext, state: SearchState, plan: Plan) -> float | None:
    """Seconds of a whole run of the untouched script, where such runs show what a plan brings; else None."""
    seconds = run_seconds(context, state)
    if seconds is None or context.gate.risk_over(plan, state.baseline).trains_otherwise:
        return None
    return seconds if context.runner.runs_whole(plan) else None
