"""Whole runs of a script as evidence: what its user pays, from the start of the process to its end.

A plan is measured in blocks only to choose it. Where a budget holds whole runs of the untouched and the patched script,
they are the final figure: they hold imports, the first batch, evaluations and the end, and nothing listens to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, log

from autoopt.benchmark.target import whole_run_seconds
from autoopt.records import Plan
from autoopt.records.messages import WHOLE_RUN
from autoopt.records.whole_run import WholeRun
from autoopt.search.budget_allocation import KEPT_BACK_AT_MOST
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState

_FASTEST = 20.0
"""A whole run is predicted to be no more than so many times faster."""


def longest(budget: float) -> float:
    """Seconds of the longest whole run of which a budget holds pairs."""
    return KEPT_BACK_AT_MOST * budget / 2


def run_seconds(context: RunContext, state: SearchState) -> float | None:
    """Seconds of a whole run of the untouched script, about.

    None where whole runs show nothing: of a build(), of a script that must be changed to fit into memory, of one that
    does not end by itself at the user's target, or whose length is not known or is too long for the budget.
    """
    if state.sites is None or state.baseline.changes or state.planned_steps is None:
        return None
    step = state.aa.side.step_seconds
    if step is None:
        return None
    seen = state.trained
    if seen is not None and seen.stopped == WHOLE_RUN:
        return seen.seconds  # they are the measure by now, and what a further one takes is asked where it would be made
    if state.objective.users_target is not None:
        return None
    parts = _parts(state, state.planned_steps, step.p50)
    seconds = state.aa.start_seconds + state.planned_steps * step.p50 if parts is None else parts.seconds
    if seen is not None and seen.steps >= state.planned_steps:
        seconds = max(seconds, seen.seconds)
    return seconds if seconds <= longest(context.allocation.budget) else None


def _parts(state: SearchState, steps: int, step_seconds: float) -> WholeRun | None:
    """The untouched script's run with steps as they take in interleaved blocks; None where its parts are not known."""
    if state.facts.run is None:
        return None
    return whole_run_seconds(state.facts.run.model_copy(update={"step_seconds": step_seconds}), float(steps))


@dataclass(frozen=True)
class InWholeRun:
    """What predictions for steps, and for what comes between them, bring of a whole run of the untouched script.

    Args:
        run: seconds of it.
        steps, between: seconds of all its steps; of its evaluations, checkpoints and later epochs' starts.
    """

    run: float
    steps: float
    between: float

    def gain(self, of_steps: float, of_both: float) -> float:
        """Log speedup of the run, where its steps, and steps with what comes between, have these."""
        saved = self.steps * -expm1(-of_steps) + (self.steps + self.between) * -expm1(-of_both)
        return -log(max(1.0 - saved / self.run, 1 / _FASTEST))

    def shares(self, of_steps: float, of_both: float) -> tuple[float, float]:
        """How much more of the run's log speedup each of the two brings, for a little more of it."""
        left = self.run / exp(self.gain(of_steps, of_both))
        return self.steps * exp(-of_steps) / left, (self.steps + self.between) * exp(-of_both) / left


def in_whole_run(context: RunContext, state: SearchState) -> InWholeRun | None:
    """The parts of a whole run that predictions speak of; None where :func:`run_seconds` is."""
    run, step = run_seconds(context, state), state.aa.side.step_seconds
    if run is None or step is None or state.planned_steps is None:
        return None
    steps, parts = state.planned_steps * step.p50, _parts(state, state.planned_steps, step.p50)
    found = (
        [] if parts is None else [parts.part(name) for name in ("later epochs' starts", "evaluations", "checkpoints")]
    )
    between = sum(part.seconds for part in found if part is not None)
    return InWholeRun(max(run, steps + between), steps, between)


def shown_by_whole_runs(context: RunContext, state: SearchState, plan: Plan) -> float | None:
    """Seconds of a whole run of the untouched script, where such runs show what a plan brings; else None."""
    seconds = run_seconds(context, state)
    if seconds is None or context.gate.risk_over(plan, state.baseline).trains_otherwise:
        return None
    return seconds if context.runner.runs_whole(plan) else None
