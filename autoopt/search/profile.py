"""The profile of a workload: where the time goes and what to expect, without trying anything."""

from __future__ import annotations

import time

from autoopt.events import EnvironmentRead, Listener, PhaseStarted
from autoopt.options import Options
from autoopt.records import Plan, Prediction, Profile, Verdict, WorkloadSummary
from autoopt.records.facts import WorkloadFacts
from autoopt.script.sites import advice_of
from autoopt.search.baseline import FirstProcess, check_devices, first_steps, objective_of, opportunities, together
from autoopt.search.incumbent_profile import queue_by
from autoopt.search.outcome import configuration
from autoopt.search.planner import Choice
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import TrialRunner
from autoopt.simplify.analyse import build_round, model_error
from autoopt.simplify.costly import costly_lines
from autoopt.simplify.pipeline import Pipeline
from autoopt.simplify.stage_profile import (
    Description,
    StageProfile,
    doubt_of,
    least_doubtful,
    profile_stages,
    reason_to_doubt,
)

NOTHING = Plan()
SECONDS = 20.0
UNSET = "not set"


def profile(
    runner: TrialRunner,
    options: Options,
    choice: Choice,
    *,
    traces: str | None = None,
    announce: Listener = lambda event: None,
) -> Profile:
    """Measures the baseline from the inside and asks every strategy for its prediction.

    Args:
        traces: a folder for a short torch.profiler trace.
        announce: gets what is known before the stages are measured, as soon as it is.

    Raises:
        TrialFailed: the baseline does not train.
    """
    began = time.monotonic()
    first = FirstProcess(runner)
    announce(PhaseStarted(at=0.0, phase="benchmark"))
    sites = first.sites()
    watched = first_steps(sites, time.monotonic() - began) if sites is not None else None
    if watched is not None:
        announce(watched)
    description = first.description()
    announce(EnvironmentRead(at=time.monotonic() - began, environment=description.environment))
    if sites is not None and watched is not None:
        case = _state(runner, options, description.facts, description).case(runner.registry, None, None)
        seen_so_far = opportunities(runner.registry, case, choice, 1 + options.min_gain)
        announce(seen_so_far.model_copy(update={"at": time.monotonic() - began}))
    announce(PhaseStarted(at=time.monotonic() - began, phase="simplify"))
    least, most = options.processes
    check_devices(most, description.environment)
    plan = together(runner, least) if least > 1 else Plan()
    seconds = min(SECONDS, options.budget_seconds / 3)
    seen = least_doubtful(
        lambda: profile_stages(runner, plan, seconds=seconds, advise=True, trace=traces),
        lambda seen: doubt_of(seen, None, model_error(description, seen)),
    )
    round_, pipeline = build_round(description, seen)
    disturbed = reason_to_doubt(seen, watched_step=watched.step_seconds if watched is not None else None)
    text = f"{disturbed}: read its figures as a busy machine's, and profile again on a quiet one"
    predictions = _predictions(runner, options, choice, description, seen, pipeline, plan)
    return Profile(
        autoopt_version=UNSET,
        created=UNSET,
        seconds=time.monotonic() - began,
        workload=WorkloadSummary.model_validate(description.facts.model_dump()),
        environment=description.environment,
        baseline=configuration(plan, description.environment, profile=seen),
        round=round_,
        predictions=predictions,
        advice=(
            *costly_lines(round_, description.facts, sites),
            *seen.advice,
            *(advice_of(sites) if sites is not None else ()),
        ),
        warnings=(*((text,) if disturbed else ()), *seen.missing),
        sites=sites,
    )


def _predictions(
    runner: TrialRunner,
    options: Options,
    choice: Choice,
    description: Description,
    seen: StageProfile,
    pipeline: Pipeline | None,
    baseline: Plan,
) -> tuple[Prediction, ...]:
    state = _state(runner, options, description.facts, description, baseline)
    plan = queue_by(seen, pipeline, state, runner.registry, choice, options.min_gain)
    found = {prediction.strategy: prediction for prediction in plan.predictions}
    for item in plan.skipped:
        found[item.strategy.name] = Prediction(
            strategy=item.strategy.name,
            setting=item.setting,
            predicted=item.predicted,
            applies=item.verdict is not Verdict.NOT_APPLICABLE,
            reason=item.reason,
        )
    return tuple(found[name] for name in runner.registry if name in found)


def _state(
    runner: TrialRunner, options: Options, facts: WorkloadFacts, description: Description, baseline: Plan = NOTHING
) -> SearchState:
    return SearchState(
        facts=facts,
        environment=description.environment,
        objective=objective_of(facts, options),
        planned_steps=facts.max_steps,
        sites=runner.watched(),
        baseline=baseline,
        incumbent=baseline,
        processes=options.processes[1],
    )
