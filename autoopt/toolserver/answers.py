"""Documents in the form that a client gets: what decides, in few words; the whole lies in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autoopt.records import Estimate, EstimateKind, JsonDict, Prediction, Profile, Result
from autoopt.records.comparing import Compared

_SITES = {"loader_training", "model", "optimizer", "loss", "evaluation"}


def _fields(record: object, *names: str) -> JsonDict:
    return {name: getattr(record, name) for name in names}


def ratio(estimate: Estimate | None) -> JsonDict | None:
    """A speedup with its interval: above 1 is faster."""
    return None if estimate is None else estimate.model_dump()


def profiled(found: Profile) -> JsonDict:
    """Where the time goes, stage by stage."""
    sites = found.sites.sites if found.sites is not None else ()
    seconds = ("seconds", "exposed_seconds", "ceiling_seconds")
    return {
        "run": _run(found),
        "step_seconds": found.baseline.step_seconds.p50 if found.baseline.step_seconds else None,
        "samples_per_second": found.baseline.samples_per_second,
        "bottleneck": found.round.bottleneck,
        "stages": [{"stage": stage.name, **_fields(stage, *seconds)} for stage in found.round.stages],
        "sites": [_fields(site, "kind", "name", "file", "line") for site in sites if site.kind in _SITES],
        "warnings": list(found.warnings),
    }


def _run(found: Profile) -> str | None:
    directory = found.reproduce.run_directory
    return Path(directory).as_posix() if directory else None


def opportunities(found: Profile) -> JsonDict:
    """Changes to try, the largest predicted gain first; then what only the user can change.

    ``predicted`` is a speedup of the step, not a promise; of the kind ``bound`` it is the most that the ceilings of its
    stages leave, where nothing is predicted: these come last. ``how``: whether ``apply`` can put the change on the
    script, only a plan can, or a user must.
    """

    def rank(each: Prediction) -> tuple[bool, float]:
        known = each.predicted
        return (False, 0.0) if known is None else (known.kind is not EstimateKind.BOUND, known.value)

    able = sorted((each for each in found.predictions if each.applies and not each.reason), key=rank, reverse=True)
    advice = sorted(found.advice, key=lambda each: each.share or 0.0, reverse=True)
    of_change = ("strategy", "setting", "file", "line", "how")
    of_advice = ("title", "evidence", "file", "line", "suggestion")
    return {
        "run": _run(found),
        "changes": [{**_fields(each, *of_change), "predicted": ratio(each.predicted)} for each in able],
        "by_hand": [{**_fields(each, *of_advice), "share_of_step": each.share} for each in advice],
        "not_worth_trying": [
            {"strategy": each.strategy, "reason": each.reason} for each in found.predictions if each.reason
        ],
    }


def compared(found: Compared) -> JsonDict:
    """The answer of a comparison."""
    document: JsonDict = {
        "answer": found.answer,
        "reason": found.reason,
        "speedup_of_a_step": ratio(found.throughput),
        "speedup_of_the_planned_run": ratio(found.planned_run),
        "quality": found.learning.level,
        "quality_detail": found.learning.detail,
        "baseline": found.baseline.given,
        "candidate": found.candidate.given,
        "metric": {
            "name": found.metric,
            "baseline": found.baseline.metric,
            "candidate": found.candidate.metric,
            "difference": found.metric_difference,
            "note": found.metric_note,
        },
        "warnings": list(found.warnings),
    }
    if found.requirement is not None:
        document["required"] = {"what": found.requirement.text, "holds": found.requirement.holds}
    if found.ledger is not None:
        document["ledger"] = found.ledger.model_dump()
    return document


def reported(found: Result, page: str) -> JsonDict:
    """The verdict of a run, and where its report lies."""
    changes: list[Any] = [change.model_dump() for change in found.best.plan.changes]
    return {
        "page": page,
        "kept": changes,
        "headline": _headline(found),
        "speedup_of_time_to_target": ratio(found.speedup.time_to_target),
        "speedup_of_a_step": ratio(found.speedup.throughput),
        "verified_end_to_end": found.speedup.end_to_end_verified,
        "stop": found.stop.model_dump(),
        "diff": found.patch.diff if found.patch is not None else None,
        "warnings": list(found.warnings),
        "notes": list(found.notes),
    }


def _headline(found: Result) -> JsonDict | None:
    """The record of the first screen, with a sentence and the reasons why it is not verified."""
    headline = found.speedup.headline
    if headline is None:
        return None
    doubts = headline.doubts(control_failed=found.noise.failed(found.objective.min_gain))
    return {"text": headline.text, **headline.model_dump(), "not_verified_because": list(doubts)}
