"""Whole commands within a time: what is not done in it goes on when the same command is given again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.documents import ROOT, load, save

LATE = 60.0
"""Seconds in which a command that was interrupted must have ended."""


class UnfinishedError(Exception):
    """The time of this call is up; the message says what was left."""


class Piece:
    """One call's time, and the folder in which what is done is kept.

    Args:
        folder: of one benchmark.
        seconds: of this call.
        clock: seconds.
    """

    def __init__(self, folder: Path, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.clock = folder, clock
        self.ends = clock() + seconds
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        return self.ends - self.clock()

    def need(self, seconds: float, what: str) -> None:
        """Raises ``UnfinishedError`` where less is left."""
        if self.left < seconds:
            raise UnfinishedError(
                f"{what} takes about {seconds:.0f} s, {max(self.left, 0):.0f} s are left of this call"
            )

    def once(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A document that is measured once and kept in the folder."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            save(path, measure())
        return load(path)

    def optimized(self, workload: str, budget: float, *words: str, **environment: str) -> dict[str, Any]:
        """The result of ``autoopt optimize``, kept in the folder; an interrupted run is resumed."""
        folder = self.folder / "run"
        asked = ("optimize", workload, *words, "--budget", f"{budget:g}s", "--out", str(folder))
        if (folder / "journal.jsonl").exists():
            asked = ("resume", str(folder))
        return self.once("result", lambda: self.autoopt(*asked, "--quiet", **environment))

    def autoopt(self, *words: str, **environment: str) -> dict[str, Any]:
        """A command with ``--json``, from the project's folder; 5 is an answer, too.

        Raises:
            UnfinishedError: it was interrupted when the time was up.
        """
        command = [sys.executable, "-m", "autoopt", *words, "--json"]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        try:
            out, errors = process.communicate(timeout=max(self.left, 1.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=LATE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            raise UnfinishedError(f"autoopt {words[0]} was interrupted") from None
        if process.returncode not in (0, 5):
            raise SystemExit(f"{' '.join(command)}\n{errors[-3000:]}")
        document: dict[str, Any] = json.loads(out)
        return document
