"""Findings of a verification, and when two estimates of one ratio agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from autoopt.errors import DocumentError, UsageError
from autoopt.records import Estimate, Record, Result, ValidationError
from autoopt.records.base import Z
from autoopt.records.headline import Headline, Session, Sessions
from autoopt.records.writing import write_whole
from autoopt.search.accept.trainings import next_session


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
    allowed = max(Z * math.hypot(measured.log_sd, reported.log_sd), margin)
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
    allowed = Z * math.hypot(now.log_sd, before.log_sd)
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


FILE = "sessions.json"
SAME = timedelta(hours=1)
"""What begins within an hour of a session's end belongs to it: the machine is likely in the same state, so that it
says nothing of how sessions differ."""
_WHAT = {"to_target": "faster to target", "whole_runs": "faster in whole runs", "per_step": "faster a step"}


def session_of(
    result: Result, headline: Estimate | Headline | None, throughput: Estimate | None, **when: object
) -> Session | None:
    """A session of a run or of its verification; None where it measured nothing.

    Args:
        headline: the speedup of its trainings to the target; of a script, of its whole runs.
        throughput: that of steps, which counts where the run has no target.
        when: ``began`` and ``ended``; ``run`` where it is that of the run itself.
    """
    kind = "to_target" if result.objective.target is not None else "per_step"
    kind = kind if result.sites is None else "whole_runs"
    found = throughput if kind == "per_step" else headline
    return None if found is None else Session.model_validate({"kind": kind, "value": found.value, "n": found.n, **when})


def added(run: Path, result: Result, new: Session | None) -> tuple[Session, ...]:
    """The sessions of a run, the new one among them; written into its directory.

    Raises:
        DocumentError: the file that is there cannot be read.
    """
    path = run / FILE
    try:
        known = Sessions.model_validate_json(path.read_bytes()).sessions if path.is_file() else ()
    except ValidationError as error:
        hint = "move it away to begin a new account"
        raise DocumentError(f"{path} is not a document of sessions", detail=str(error), hint=hint) from error
    if not known and result.sites is None:  # a script's trainings were listened to: they are no whole runs
        headline = result.speedup.headline
        trained = headline is not None and headline.kind == "to_target" and headline.source == "trained"
        when = {"began": result.created, "ended": result.finished or result.created, "run": True}
        own = session_of(result, headline if trained else None, result.speedup.throughput, **when)
        known = (own,) if own is not None else ()
    if new is None:
        return known
    sessions = joined(known, new)
    write_whole(path, Sessions(sessions=sessions).model_dump_json(indent=1) + "\n")
    return sessions


def joined(known: Sequence[Session], new: Session) -> tuple[Session, ...]:
    """With one more session, or with its repeats in the last one where it began soon after that."""
    last = known[-1] if known else None
    time = datetime.fromisoformat
    if last is None or last.kind != new.kind or time(new.began) - time(last.ended) > SAME:
        return (*known, new)
    n = last.n + new.n
    value = math.exp((last.n * math.log(last.value) + new.n * math.log(new.value)) / n)
    return (*known[:-1], last.model_copy(update={"ended": new.ended, "value": value, "n": n}))


def prediction(sessions: Sequence[Session], process_sd: float | None) -> Estimate | None:
    """The speedup that the next session is expected to measure; None with fewer than two sessions of one kind."""
    alike = [session for session in sessions if session.kind == sessions[-1].kind]
    if len(alike) < 2:
        return None
    return next_session([math.log(session.value) for session in alike], process_sd)


def sessions_text(sessions: Sequence[Session], process_sd: float | None) -> str:
    """A sentence on the sessions so far, and on the next one from two on."""
    if not sessions:
        return ""
    found = prediction(sessions, process_sd)
    what = _WHAT[sessions[-1].kind]
    if found is None:
        return "one session so far, so the intervals are those of this machine and this hour; verify on another day"
    return (
        f"{found.n} sessions; the next one is expected to measure {found.value:.2f}x {what} "
        f"(95 % prediction interval {found.low:.2f} to {found.high:.2f})"
    )
