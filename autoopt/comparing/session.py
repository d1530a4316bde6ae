"""A session of asks: what is known of the baseline is used again while its code and the machine stay the same.

The file holds the noise of the baseline against itself, and the head of the ledger after the last answer. A ratio is
made of blocks of its own ask alone: what is used again shows how processes of this baseline differ, and its facts.
"""

from __future__ import annotations

import hashlib
import json
import os
from math import log, sqrt
from pathlib import Path

from autoopt.comparing.sides import Side
from autoopt.records import Environment, JsonDict, Noise, Record, Sites
from autoopt.records.facts import WorkloadFacts
from autoopt.records.reading import read_document
from autoopt.records.writing import user_cache, write_whole, writing
from autoopt.storage.fingerprint import fingerprint


class KnownBaseline(Record):
    """A baseline as earlier asks have measured it.

    ``noise``: of it against itself, and of later asks; ``again``: how far it repeats its own steps;
    ``step_seconds``: of the latest ask.
    """

    fingerprint: JsonDict
    facts: WorkloadFacts
    environment: Environment
    sites: Sites | None = None
    noise: Noise
    again: float | None = None
    step_seconds: float

    def drifted(self, step_seconds: float) -> bool:
        """Whether its step now takes longer, or less long, than its processes differ by."""
        # three standard deviations of a difference of two
        return abs(log(step_seconds / self.step_seconds)) > 3 * sqrt(2) * (self.noise.process_sd or 0.0)


class Session(Record):
    """The file: the baseline, and the ``head`` of the ledger; None before the first of either."""

    schema_version: int = 1
    baseline: KnownBaseline | None = None
    head: str | None = None


def read(path: Path) -> Session:
    """The session of a file; an empty one where there is none.

    Raises:
        DocumentError: it is no session, or of a newer schema.
    """
    return read_document(path, Session) if path.exists() else Session()


def write(path: Path, session: Session) -> None:
    """Writes it, whole or not at all.

    Raises:
        EnvironmentLacks: it cannot be written.
    """
    with writing(path, "the session"):
        write_whole(path, session.model_dump_json() + "\n")


def default_path(spec: str) -> Path:
    """The session of a command in this folder, in the user's cache: outside of what a candidate may change."""
    name = hashlib.sha256(json.dumps([os.getcwd(), spec]).encode()).hexdigest()[:16]
    return user_cache() / "autoopt" / "judge" / f"{name}.json"


def fingerprint_of(baseline: Side, device: str) -> JsonDict:
    """What must be the same for a baseline's figures to be used again."""
    found = fingerprint(baseline.workload.spec, None, options={"device": device, "plan": baseline.plan.key})
    return {**found, "sources": baseline.sources, "command": list(baseline.command or ())}
