"""The account of sessions of a result: each ``autoopt verify`` on another day adds one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from autoopt.errors import DocumentError
from autoopt.records import Estimate, Result, ValidationError
from autoopt.records.sessions import Session, Sessions
from autoopt.search.accept.trainings import next_session

FILE = "sessions.json"
SAME = timedelta(hours=1)
"""What begins within an hour of a session's end belongs to it: the machine is likely in the same state, so that it
says nothing of how sessions differ."""
_WHAT = {"to_target": "faster to target", "whole_runs": "faster in whole runs", "per_step": "faster a step"}


def session_of(result: Result) -> Session | None:
    """The session of the run itself; None where it measured nothing that can be measured again."""
    headline, throughput = result.speedup.headline, result.speedup.throughput
    if result.sites is not None:
        return None  # its trainings were listened to: no whole runs
    if headline is not None and headline.kind == "to_target" and headline.source == "trained":
        kind, value, n = "to_target", headline.value, headline.n
    elif throughput is not None and result.objective.target is None:
        kind, value, n = "per_step", throughput.value, throughput.n
    else:
        return None
    ended = result.finished or result.created
    known = {"began": result.created, "ended": ended, "kind": kind, "value": value, "n": n, "run": True}
    return Session.model_validate(known)


def measured_session(
    result: Result, headline: Estimate | None, throughput: Estimate | None, *, began: str, ended: str
) -> Session | None:
    """The session of a verification; None where it measured nothing.

    Args:
        headline: the speedup of its trainings to the target; of a script, of its whole runs.
        throughput: that of steps, which counts where the run has no target.
    """
    of_runs = result.sites is not None
    found = headline if of_runs or result.objective.target is not None else throughput
    if found is None:
        return None
    kind = "whole_runs" if of_runs else "to_target" if result.objective.target is not None else "per_step"
    return Session.model_validate({"began": began, "ended": ended, "kind": kind, "value": found.value, "n": found.n})


def added(run: Path, result: Result, new: Session | None) -> tuple[Session, ...]:
    """The sessions of a run, the new one among them; written into its directory.

    Raises:
        DocumentError: the file that is there cannot be read.
    """
    path = run / FILE
    known = _read(path)
    if not known:
        own = session_of(result)
        known = (own,) if own is not None else ()
    if new is None:
        return known
    sessions = joined(known, new)
    part = path.with_suffix(".part")
    part.write_text(Sessions(sessions=sessions).model_dump_json(indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return sessions


def joined(known: Sequence[Session], new: Session) -> tuple[Session, ...]:
    """With one more session, or with its repeats in the last one where it began soon after that."""
    last = known[-1] if known else None
    if last is None or last.kind != new.kind or _time(new.began) - _time(last.ended) > SAME:
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


def told(sessions: Sequence[Session], process_sd: float | None) -> str:
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


def _read(path: Path) -> tuple[Session, ...]:
    try:
        return Sessions.model_validate_json(path.read_bytes()).sessions
    except FileNotFoundError:
        return ()
    except ValidationError as error:
        hint = "move it away to begin a new account"
        raise DocumentError(f"{path} is not a document of sessions", detail=str(error), hint=hint) from error


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
