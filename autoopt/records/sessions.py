"""sessions.json of a run directory: when its result was measured, and what each session said."""

from __future__ import annotations

from typing import Literal

from autoopt.records.record import Record

SessionKind = Literal["to_target", "per_step", "whole_runs"]


class Session(Record):
    """One session of measurements on one machine.

    ``began``, ``ended``: ISO 8601, UTC. ``value``: speedup, geometric mean over its ``n`` repeats: pairs of trainings
    to the target, pairs of whole runs of a script, or pairs of processes where only a step was measured. ``run``: the
    session of the run itself.
    """

    began: str
    ended: str
    kind: SessionKind
    value: float
    n: int
    run: bool = False


class Sessions(Record):
    """The document."""

    schema_version: Literal[1] = 1
    sessions: tuple[Session, ...] = ()
