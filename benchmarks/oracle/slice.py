"""Readings so far, one JSON line each, so that a run may go on in slices; and one example in one invocation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoopt.benchmark.target import Parts
from autoopt.records import Plan
from benchmarks.oracle import space
from benchmarks.oracle.trials import Trials

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


def from_document(path: Path, document: Mapping[str, Any]) -> State:
    """A new state with the lattices of a document, so that autoopt runs and races on them anew.

    Args:
        path: of the state, where there is none yet.
        document: as ``--write`` makes it.
    """
    state = State(path)
    for name, found in document["examples"].items():
        state.add(name, "setup", **found["setup"])
        for stage in ("lattice", "again"):
            for row in found[stage]:
                state.add(name, stage, **row)
    return state


@dataclass
class Slice:
    """One example in one invocation.

    Args:
        example: its name under ``examples``.
        state: all that was measured so far.
        trials: readings.
        deadline: on ``clock``; nothing starts that would end after it.
    """

    example: str
    state: State
    trials: Trials
    deadline: float
    clock: Callable[[], float] = time.monotonic

    def add(self, stage: str, **fields: Any) -> Record:
        return self.state.add(self.example, stage, **fields)

    def of(self, stage: str) -> list[Record]:
        return self.state.of(self.example, stage)

    @property
    def setup(self) -> Record:
        found = self.state.one(self.example, "setup")
        assert found is not None, "the set-up comes first"
        return found

    def spare(self, seconds: float) -> None:
        """Whether so many seconds are left.

        Raises:
            OutOfTimeError: they are not.
        """
        if self.clock() + seconds > self.deadline:
            raise OutOfTimeError

    def plan(self, point: space.Point) -> Plan:
        return space.plan_of(point, self.setup["knobs"], self.trials.registry)


def seconds_to_target(setup: Record, fixed: float, step: float) -> float:
    """Of a change that takes the baseline's steps and evaluations."""
    parts = Parts(fixed, step, setup["steps"], setup["evaluation_seconds"], setup["evaluate_every"])
    return parts.seconds
