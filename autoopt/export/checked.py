"""Findings of a verification, and when two estimates of one ratio agree."""

from __future__ import annotations

import math
from typing import Literal

from autoopt.errors import UsageError
from autoopt.records import Estimate, Record, Result
from autoopt.records.sessions import Session

_Z = 1.96


class Checked(Record):
    """Findings of a verification.

    ``measured``, ``reported``: speedups of throughput over the baseline. ``headline_measured``, ``headline_reported``:
    of the time to the target, or of whole runs of a script; None where it was not measured. ``sessions``: all in which
    the result was measured, this one included; ``next_session``: what the next one is expected to measure, with a 95 %
    prediction interval, from two sessions on.
    """

    holds: bool
    detail: str
    measured: Estimate | None = None
    reported: Estimate | None = None
    headline_measured: Estimate | None = None
    headline_reported: Estimate | None = None
    against: str | None = None
    kind: Literal["script", "runs", "whole_runs"] = "script"
    seconds: float | None = None
    sessions: tuple[Session, ...] = ()
    next_session: Estimate | None = None


def judged(measured: Estimate, reported: Estimate, seconds: float | None = None, *, margin: float = 0.0) -> Checked:
    """Whether two estimates of one ratio agree: their difference is within what their intervals allow.

    Args:
        margin: in log speedup, that is allowed in any case.
    """
    apart = abs(math.log(measured.value) - math.log(reported.value))
    allowed = max(_Z * math.hypot(_error(measured), _error(reported)), margin)
    inside = reported.low <= measured.value <= reported.high
    holds = inside or apart <= allowed
    where = (
        "inside the reported interval" if inside else "outside it, within the noise of both" if holds else "outside it"
    )
    return Checked(
        holds=holds,
        detail=f"measured {_shown(measured)}, reported {_shown(reported)}: {where}",
        measured=measured,
        reported=reported,
        seconds=seconds,
    )


def _error(estimate: Estimate) -> float:
    return math.log(estimate.high / estimate.low) / (2 * _Z)


def _shown(estimate: Estimate) -> str:
    sure = f"{100 * estimate.confidence:.0f} % CI " if estimate.confidence is not None else ""
    return f"{estimate.value:.2f}x ({sure}{estimate.low:.2f}-{estimate.high:.2f})"


def compare_runs(result: Result, other: Result, name: str) -> Checked:
    """Whether a run is no worse than an earlier one of the same workload on the same machine.

    Each speedup is over its own baseline, so that the load of the machine on two days does not decide.

    Raises:
        UsageError: they are not of the same workload and device.
    """
    for what, one, two in (
        ("workload", result.workload.spec, other.workload.spec),
        ("device", result.environment.device_name or result.environment.device,
         other.environment.device_name or other.environment.device),
    ):  # fmt: skip
        if one != two:
            raise UsageError(f"the two runs have another {what}: {one} and {two}", hint="compare runs of one workload")
    now, before = throughput_of(result), throughput_of(other)
    lost = math.log(before.value) - math.log(now.value)
    allowed = _Z * math.hypot(_error(now), _error(before))
    holds = lost <= allowed
    return Checked(
        holds=holds,
        detail=f"speedup {_shown(now)}, that of {name} {_shown(before)}: {'no worse' if holds else 'worse'}",
        measured=now,
        reported=before,
        against=name,
        kind="runs",
    )


def throughput_of(result: Result) -> Estimate:
    """The reported speedup of throughput; 1 within the noise floor where nothing was kept."""
    if result.speedup.throughput is not None:
        return result.speedup.throughput
    floor = 1 + (result.noise.floor or 0.05)
    return Estimate(value=1.0, low=1 / floor, high=floor, n=1)
