"""Stubs brought to the pace at which the training ran, so that their sum can be its step. Pure."""

from __future__ import annotations

from typing import Any

from autoopt.records import Deeper
from autoopt.simplify.survey import InputSurvey, Survey, Timing


def at_running_pace(survey: Survey) -> Survey:
    """Every stub as it would have been at the pace of the running steps; as it was where no pace is known."""
    return survey if survey.pace is None else at_pace(survey, survey.pace)


def at_pace(survey: Survey, pace: float) -> Survey:
    """Every stub as it would have been at another pace; what was not paced (a device, old documents) stays."""
    found = _timings(survey, pace)
    deeper = {
        stage: _scaled(chain, ratio(getattr(survey, stage, None), pace)) for stage, chain in survey.deeper.items()
    }
    inputs = survey.inputs
    below = {
        "deeper": _scaled(inputs.deeper, ratio(inputs.sample, pace)),
        "collating": _scaled(inputs.collating, ratio(inputs.collate, pace)),
    }
    changed = inputs.model_copy(update={**_timings(inputs, pace), **below})
    return survey.model_copy(update={**found, "inputs": changed, "deeper": deeper, "pace": pace})


def ratio(timing: Timing | None, pace: float) -> float:
    """Seconds at that pace over seconds as they were measured."""
    if timing is None or not timing.pace or timing.sensitivity is None:
        return 1.0
    return 1.0 + timing.sensitivity * (pace / timing.pace - 1.0)


def _timings(of: Survey | InputSurvey, pace: float) -> dict[str, Any]:
    return {name: _brought(value, pace) for name, value in of if isinstance(value, Timing)}


def _brought(timing: Timing, pace: float) -> Timing:
    """A core's work changes with the pace, and waiting does not."""
    times = ratio(timing, pace)
    if times == 1.0:
        return timing
    change = timing.seconds * (times - 1.0)
    cpu = None if timing.cpu_seconds is None else max(0.0, timing.cpu_seconds + change)
    return timing.model_copy(
        update={
            "seconds": timing.seconds + change,
            "low": timing.low * times,
            "high": timing.high * times,
            "cpu_seconds": cpu,
            "pace": pace,
        }
    )


def _scaled(chain: tuple[Deeper, ...], times: float) -> tuple[Deeper, ...]:
    return chain if times == 1.0 else tuple(d.model_copy(update={"seconds": d.seconds * times}) for d in chain)
