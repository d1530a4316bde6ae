"""The names that a tracker gave a run and its trials, so that a resumed run goes on in the same ones."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

FILE = "trackers.json"


class Memory:
    """One tracker's part of ``trackers.json`` in a run directory.

    A file that is missing or damaged is an empty one: the tracker then begins another run.

    Args:
        directory: of the run.
        kind: of tracker.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._path, self._kind = directory / FILE, kind
        self._mine: dict[str, Any] = _read(self._path).get(kind, {})

    @property
    def run(self) -> str | None:
        """The tracker's own name of the run; None before it has one."""
        return self._mine.get("run")

    def begin(self, run: str) -> None:
        """Another run of the tracker."""
        self._mine = {"run": run}
        self._save()

    def child(self, name: str) -> str | None:
        """The tracker's own name of a trial's run."""
        found = self._mine.get("children", {}).get(name)
        return None if found is None else str(found)

    def keep_child(self, name: str, run: str) -> None:
        self._mine.setdefault("children", {})[name] = run
        self._save()

    def _save(self) -> None:
        part = self._path.with_name(f".{FILE}.part")
        with contextlib.suppress(OSError):  # a full disk: a resumed run begins another of the tracker, the run goes on
            part.write_text(json.dumps({**_read(self._path), self._kind: self._mine}, indent=1), encoding="utf-8")
            part.replace(self._path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(found, dict) and all(isinstance(part, dict) for part in found.values())
    return found if whole else {}
