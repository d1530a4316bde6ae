"""Readings so far, one JSON line each, so that a run may go on in slices."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class OutOfTimeError(Exception):
    """The slice has no time for what comes next; the next slice goes on from there."""


class State:
    """The readings of all examples.

    Args:
        path: a file of JSON lines; a last line that was torn is dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        if path.exists():
            whole = path.read_text(encoding="utf-8")
            kept = whole[: whole.rfind("\n") + 1]
            self.records = [json.loads(line) for line in kept.splitlines()]
            if kept != whole:
                path.write_text(kept, encoding="utf-8")

    def of(self, example: str, stage: str) -> list[Record]:
        return [record for record in self.records if record["example"] == example and record["stage"] == stage]

    def one(self, example: str, stage: str) -> Record | None:
        """The latest record of a stage that has one."""
        return next(iter(reversed(self.of(example, stage))), None)

    def add(self, example: str, stage: str, **fields: Any) -> Record:
        record = {"example": example, "stage": stage, "at": round(time.time(), 1), **fields}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.records.append(record)
        return record


def from_document(path: Path, document: Mapping[str, Any], rules: Mapping[str, str]) -> State:
    """A new state with the lattices of a document, so that autoopt runs and races on them anew.

    A document without the seconds of single readings has their sum: each then takes its fixed seconds, and an equal
    share of the rest, which its set-up tells.

    Args:
        path: of the state, where there is none yet.
        document: as ``--write`` makes it.
        rules: of the new race.
    """
    state = State(path)
    for name, found in document["examples"].items():
        rows, whole = found["lattice"], found["seconds"]["lattice"]
        rest = (whole - sum(row["fixed_seconds"] or 0.0 for row in rows)) / max(len(rows), 1)
        shared = any(row.get("seconds") is None for row in rows)
        reported = {"seconds_shared_out": True} if shared else {}
        state.add(name, "setup", **{**found["setup"], "rules": dict(rules), **reported})
        for row in rows:
            known = row.get("seconds")
            seconds = known if known is not None else rest + (row["fixed_seconds"] or 0.0)
            state.add(name, "lattice", **{**row, "seconds": seconds})
        for row in found["again"]:
            state.add(name, "again", **row)
        if found["compile"] is not None:
            state.add(name, "compile", **found["compile"])
    return state
