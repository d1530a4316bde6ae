"""The history of a user's runs: the plan that was found for each workload on each device, in one readable file.

A later search of the same workload tries that plan first. It is never taken as evidence. How much processes of one
program differed on a device is remembered next to it: a later run's first guess.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TypeVar

from autoopt.records import JsonDict, Plan, Record, ValidationError
from autoopt.records.writing import write_whole

VARIABLE = "AUTOOPT_HISTORY"
"""Environment variable: another file, or ``off``."""
SCHEMA_VERSION = 1
MOST_ENTRIES = 200
"""Workloads that are remembered; the oldest goes first."""


class Remembered(Record):
    """The plan of an earlier run with its speedup, of the time to the target or else of throughput.

    An empty plan: nothing is known.
    """

    plan: Plan = Plan()
    speedup: float | None = None
    finished: str | None = None


class KnownNoise(Record):
    """Between-process variance of a device in an earlier run: its standard deviation (log), and the pairs behind it."""

    process_sd: float | None = None
    pairs: float | None = None


Entry = TypeVar("Entry", Remembered, KnownNoise)
_SECTIONS: dict[type[Record], str] = {Remembered: "workloads", KnownNoise: "noise"}


class History:
    """The file. Where it cannot be read or written, nothing is remembered: a search needs none.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_user(cls) -> History | None:
        """The user's own, in their cache folder; None where it is switched off."""
        named = os.environ.get(VARIABLE)
        if named == "off":
            return None
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(Path(named) if named else cache / "autoopt" / "history.json")

    def recall(self, key: str, kind: type[Entry]) -> Entry:
        """The entry of a workload on a device, or of a device; an empty one where there is none that can be read."""
        try:
            return kind.model_validate(self._entries(_SECTIONS[kind]).get(key, {}))
        except ValidationError:
            return kind()

    def remember(self, key: str, found: Remembered | KnownNoise) -> None:
        """Replaces the entry."""
        sections = {name: self._entries(name) for name in _SECTIONS.values()}
        section = _SECTIONS[type(found)]
        sections[section].pop(key, None)
        sections[section][key] = found.model_dump()
        sections[section] = dict(list(sections[section].items())[-MOST_ENTRIES:])
        with contextlib.suppress(OSError):
            write_whole(self.path, json.dumps({"schema_version": SCHEMA_VERSION, **sections}, indent=2) + "\n")

    def _entries(self, section: str) -> JsonDict:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        entries = document.get(section) if isinstance(document, dict) else None
        return entries if isinstance(entries, dict) and document.get("schema_version") == SCHEMA_VERSION else {}
