"""The incumbent measured from the inside: its round's document, and the pipeline graph that predictions need."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain

from autoopt.errors import ScriptEnded, TrialFailed
from autoopt.events import Predicted, RoundMeasured
from autoopt.records import Round, Stop, StopReason
from autoopt.registry import Registry
from autoopt.search.planner import Choice, Queue, build_queue, unwanted
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import BaselineFailed
from autoopt.simplify.analyse import build_round, model_error, run_parts
from autoopt.simplify.pipeline import Pipeline
from autoopt.simplify.stage_profile import (
    Description,
    StageProfile,
    doubt_of,
    least_doubtful,
    profile_stages,
    reason_to_doubt,
)
from autoopt.simplify.stage_timings import StageTimings

SHARE = 0.02
FEWEST_SECONDS, MOST_SECONDS = 4.0, 60.0
"""Seconds for the microbenchmarks: a share of the budget within these bounds."""
EARLY_SECONDS = 6.0
"""The same for the profile of a script before anything is compared, at most: its predictions are not waited for."""
AT_MOST, AT_LEAST_SECONDS = 0.3, 20.0
"""Of the budget, for one profile: where steps are too slow for all of it, looks tell more."""
TRYING = 0.05
"""Of the budget, for what strategies try on copies of the model: looks tell more, where there is time for few."""
TRACED_STEPS, TRACE_SECONDS = 25, 2.5
TRACE_AT_MOST = 0.015
"""A trace takes as long as so many steps, and what the profiler itself takes; it is made where that is no larger share
of the budget."""
AGAIN_AT_MOST = 0.025
"""A profile that was disturbed is taken once more where the first took no larger share of the budget than this."""


def diagnose(context: RunContext) -> None:
    """Shows what strategies are predicted to bring a script, before anything is compared.

    On a short budget this profile is the first round's; a longer one has a longer one taken later. What is wrong with
    the script shows where it is compared with itself.
    """
    state = context.state
    if state.sites is None:
        return
    short = _seconds(context) <= EARLY_SECONDS
    trace = _trace(context) if short else None
    key = {"plan": state.incumbent.model_dump()}

    def predict(seen: StageProfile) -> None:
        pipeline = build_round(_description(state), seen)[1]
        queue = queue_by(seen, pipeline, state, context.registry, context.choice, context.min_gain)
        context.announce(Predicted(at=context.now(), predictions=queue.predictions))

    seconds = min(_seconds(context), EARLY_SECONDS)
    measure = partial(_profiled, context, seconds, advise=short, trace=trace, on_profile=predict)
    with suppress(TrialFailed):
        state.diagnosed = context.run.step("diagnose", key, measure, StageProfile)


def queue_by(
    seen: StageProfile,
    pipeline: Pipeline | None,
    state: SearchState,
    registry: Registry,
    choice: Choice,
    min_gain: float,
) -> Queue:
    """The queue of strategies by one profile of the incumbent, before anything was compared; the state is unchanged."""
    facts = state.facts.model_copy(update={"inspected": seen.inspected})
    known = replace(state, facts=facts, profiles={seen.plan.key: seen})
    return build_queue(registry, known.case(registry, pipeline=pipeline), choice, 1 + min_gain)


def simplify(context: RunContext) -> tuple[Round, Pipeline | None] | Stop:
    """Measures every stage of the incumbent alone.

    Returns:
        The round and its pipeline; the end of the rounds where the incumbent no longer trains.

    Raises:
        BaselineFailed: the incumbent is the baseline, and does not train.
    """
    state = context.state
    index, diagnosed = len(state.rounds), state.diagnosed
    first = index == 0 and _seconds(context) <= EARLY_SECONDS  # a longer budget has a longer profile, too
    if first and diagnosed is not None and diagnosed.plan == state.incumbent:
        return _round(context, diagnosed, index)
    trace = _trace(context) if index == 0 else None
    description, usual = _description(state), _usual_step(state)
    profiled = partial(_profiled, context, _seconds(context), advise=index == 0, trace=trace)

    def measure() -> StageProfile:
        began = context.now()
        first = profiled()
        if context.now() - began > AGAIN_AT_MOST * context.allocation.budget:
            return first  # a short budget has no time for a second one, and its doubts are reported
        profiles = chain((first,), iter(profiled, None))
        return least_doubtful(
            lambda: next(profiles), lambda seen: doubt_of(seen, usual, model_error(description, seen))
        )

    key = {"round": index, "plan": state.incumbent.model_dump()}
    try:
        seen = context.run.step("examine", key, measure, StageProfile)
    except TrialFailed as failure:
        if state.incumbent == state.baseline:
            raise BaselineFailed(failure, "while its stages were measured") from failure
        short = failure.where == ScriptEnded.WHERE
        why = "a run of it is over before its steps can be measured" if short else failure.reason
        return Stop(reason=StopReason.EXHAUSTED, detail=f"the incumbent could not be profiled: {why}")
    return _round(context, seen, index)


def _seconds(context: RunContext) -> float:
    """Seconds for the microbenchmarks of a profile."""
    return min(max(SHARE * context.allocation.budget, FEWEST_SECONDS), MOST_SECONDS)


def _description(state: SearchState) -> Description:
    """The workload with what comes between steps as the incumbent has it: a script's profile does not measure it."""
    return Description(facts=state.facts.model_copy(update={"run": state.run}), environment=state.environment)


def _profiled(
    context: RunContext,
    seconds: float,
    *,
    advise: bool,
    trace: str | None,
    on_profile: Callable[[StageProfile], None] = lambda seen: None,
) -> StageProfile:
    state = context.state
    registry = context.registry
    wanted = [name for name, each in registry.items() if not unwanted(each, context.choice)]
    return profile_stages(
        context.runner,
        state.incumbent,
        seconds=seconds,
        advise=advise,
        trace=trace,
        strategies=sorted(wanted, key=lambda name: registry[name].switchable),  # those are screened within seconds
        limit=max(AT_MOST * context.allocation.budget, AT_LEAST_SECONDS),
        trying=TRYING * context.allocation.budget,
        run_steps=None if state.sites is None else state.planned_steps,
        on_profile=on_profile,
    )


def _trace(context: RunContext) -> str | None:
    """The folder of a trace, where that takes a small part of the budget only; a trace shows the steps, no more."""
    usual, budget = _usual_step(context.state), context.allocation.budget
    seconds = TRACE_SECONDS + TRACED_STEPS * (usual or 0.0)
    if seconds <= TRACE_AT_MOST * budget:
        return str(context.run.directory.traces)
    context.state.missing.append(f"a trace of the baseline: it takes about {seconds:.0f} s of a {budget:.0f} s budget")
    return None


def _round(context: RunContext, seen: StageProfile, index: int) -> tuple[Round, Pipeline | None]:
    state = context.state
    state.profiles[seen.plan.key] = seen
    state.missing += [text for text in seen.missing if text not in state.missing]
    context.warn(*seen.doubts)
    state.facts = state.facts.model_copy(update={"inspected": {**seen.inspected, **state.tuned}})
    if index == 0:
        state.advice = seen.advice
    evaluate, run = StageTimings.model_validate(seen.timings).evaluate if seen.timings else None, state.facts.run
    if state.sites is not None and evaluate is not None and run is not None and run.evaluation_seconds:
        state.between_ratio["evaluate"] = evaluate.seconds / run.evaluation_seconds
    round_, pipeline = build_round(_description(state), seen, index)
    if state.facts.run is None and seen.timings:
        parts = run_parts(state.facts, seen.startup, seen.block, StageTimings.model_validate(seen.timings))
        state.facts = state.facts.model_copy(update={"run": parts})
    state.rounds.append(round_)
    context.announce(RoundMeasured(at=context.now(), round=round_))
    disturbed = reason_to_doubt(seen, _usual_step(state))
    if disturbed:
        believed = "its predictions exclude only slower candidates"
        words = f"round {index}: {disturbed}; {believed}: measure again on a quiet machine"
        context.warn(words)
    return round_, Pipeline(pipeline.round, doubtful=bool(disturbed)) if pipeline is not None else None


def _usual_step(state: SearchState) -> float | None:
    """Seconds of the incumbent's step in the typical block of its last comparison, else in a script's first steps."""
    side = state.made_by.candidate if state.made_by else state.control.side if state.control else None
    if side is None:
        return state.sites.step_seconds if state.sites is not None else None
    return statistics.median(side.block_step_seconds) if side.block_step_seconds else None
