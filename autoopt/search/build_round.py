"""Where the time goes and what to expect, without trying anything."""

from __future__ import annotations

import time

from autoopt.options import Options
from autoopt.records import Plan, Prediction, Profile, Round, Verdict, WorkloadSummary
from autoopt.search.baseline import objective_of
from autoopt.search.configuration import configuration
from autoopt.search.planner import Choice, build_queue
from autoopt.search.profile_validity import calmest, doubt_of
from autoopt.search.stage_profile import Examined, Inspection, examine, inspect
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import TrialRunner
from autoopt.simplify.analyse import analyse
from autoopt.simplify.pipeline import Pipeline
from autoopt.simplify.stage_timings import StageTimings

SECONDS = 20.0
UNSET = "not set"


def profile(bench: TrialRunner, options: Options, choice: Choice, *, traces: str | None = None) -> Profile:
    """Measures the baseline from the inside and asks every strategy for its prediction.

    Raises:
        TrialFailed: the baseline does not train.
    """
    began = time.monotonic()
    inspection = inspect(bench)
    seconds = min(SECONDS, options.budget_seconds / 3)
    examined = calmest(
        lambda: examine(bench, Plan(), seconds=seconds, advise=True, trace=traces),
        lambda seen: doubt_of(seen, None, apart(inspection, seen)),
    )
    round_, pipeline = look(inspection, examined)
    predictions = _predictions(bench, options, choice, inspection, examined, pipeline)
    return Profile(
        autoopt_version=UNSET,
        created=UNSET,
        seconds=time.monotonic() - began,
        workload=WorkloadSummary.model_validate(inspection.facts.model_dump()),
        environment=inspection.environment,
        baseline=configuration(Plan(), inspection.environment, examined=examined),
        round=round_,
        predictions=predictions,
        advice=examined.advice,
        warnings=examined.missing,
    )


def apart(inspection: Inspection, examined: Examined) -> float | None:
    """How far the simulated step of a profile is from its measured one (0.1: a tenth longer); None without stages."""
    return look(inspection, examined)[0].simulation_error


def look(inspection: Inspection, examined: Examined, index: int = 0) -> tuple[Round, Pipeline | None]:
    """The round's document and, where stages could be measured, its pipeline graph."""
    if not examined.survey:
        step = examined.block.seconds / max(examined.block.steps, 1)
        return Round(index=index, plan=examined.plan, step_seconds=step, stages=()), None
    survey = StageTimings.model_validate(examined.survey)
    round_ = analyse(index, examined.plan, survey, examined.block, inspection.environment.peaks)
    return round_, Pipeline(round_)


def _predictions(
    bench: TrialRunner,
    options: Options,
    choice: Choice,
    inspection: Inspection,
    examined: Examined,
    pipeline: Pipeline | None,
) -> tuple[Prediction, ...]:
    facts = inspection.facts.model_copy(update={"inspected": examined.inspected})
    search = SearchState(
        facts=facts,
        environment=inspection.environment,
        objective=objective_of(facts, options),
        planned_steps=facts.max_steps,
    )
    plan = build_queue(bench.registry, search.case(bench.registry, pipeline, None), choice, 1 + options.min_gain)
    found = {
        p.strategy.name: Prediction(strategy=p.strategy.name, setting=p.setting, predicted=p.predicted)
        for p in plan.proposals
    }
    for item in plan.skipped:
        found[item.strategy.name] = Prediction(
            strategy=item.strategy.name,
            setting=item.setting,
            predicted=item.predicted,
            applies=item.verdict is not Verdict.NOT_APPLICABLE,
            reason=item.reason,
        )
    return tuple(found[name] for name in bench.registry if name in found)
