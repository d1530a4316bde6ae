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

VARIABLE = "AUTOOPT_HISTORY"
"""Environment variable: another file, or ``off``."""
SCHEMA_VERSION = 1
MOST_ENTRIES = 200
"""Workloads that are remembered; the oldest goes first."""


Entry = TypeVar("Entry", bound=Record)


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

    def recall(self, key: str) -> Remembered:
        """The entry of a workload on a device; an empty one where there is none, or it cannot be read."""
        return self._get("workloads", key, Remembered)

    def remember(self, key: str, found: Remembered) -> None:
        """Replaces the entry; the file is replaced at once, so that nobody reads half of it."""
        self._put("workloads", key, found)

    def noise(self, device: str) -> KnownNoise:
        """Known noise of a device; empty where there is none, or it cannot be read."""
        return self._get("noise", device, KnownNoise)

    def remember_noise(self, device: str, found: KnownNoise) -> None:
        """Replaces what is known of a device."""
        self._put("noise", device, found)

    def _get(self, section: str, key: str, kind: type[Entry]) -> Entry:
        try:
            return kind.model_validate(self._entries(section).get(key, {}))
        except ValidationError:
            return kind()

    def _put(self, section: str, key: str, found: Record) -> None:
        sections = {name: self._entries(name) for name in ("workloads", "noise")}
        entries = sections[section]
        entries.pop(key, None)
        entries[key] = found.model_dump()
        sections[section] = dict(list(entries.items())[-MOST_ENTRIES:])
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"schema_version": SCHEMA_VERSION, **sections}, indent=2) + "\n", "utf-8")
            part.replace(self.path)

    def _entries(self, section: str) -> JsonDict:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        entries = document.get(section) if isinstance(document, dict) else None
        return entries if isinstance(entries, dict) and document.get("schema_version") == SCHEMA_VERSION else {}
