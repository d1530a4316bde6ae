"""Weights & Biases: one run of the project ``autoopt``, its trials as runs of the same group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wandb

from autoopt.events import RunStarted
from autoopt.records import Trial
from autoopt.trackers import Tracker
from autoopt.trackers.values import name_of

PROJECT = "autoopt"


class Follower(Tracker):
    def __init__(self) -> None:
        super().__init__()
        self._group = "train"
        self._directory = Path()

    def _begin(self, directory: Path, event: RunStarted) -> bool:
        self._directory, self._group = directory, directory.name
        memory, words = self._memory, {"workload": event.spec, "device": event.device_name}
        assert memory is not None
        there = memory.run is not None
        self._run = self._open(self._group, "run", words, memory.run)
        if not there:
            memory.begin(self._run.id)
        return there

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if self._run is None:
            self._run = self._open("train", "train", {})
        self._run.log(values, step=step)

    def _close(self) -> None:
        self._run.finish()

    def _open(self, name: str, kind: str, words: dict[str, Any], known: str | None = None) -> Any:
        return wandb.init(
            id=known,
            resume="allow" if known else None,
            project=PROJECT,
            name=name,
            group=self._group,
            job_type=kind,
            config=words,
            dir=str(self._directory),
            reinit="create_new",  # the parent stays open while its trials come and go
            settings=wandb.Settings(silent=True, console="off"),
        )

    def _child(self, trial: Trial, words: dict[str, str], numbers: dict[str, float]) -> None:
        if self._memory is None:
            return
        name = name_of(trial)
        child = self._open(f"{self._group}/{name}", "trial", words, self._memory.child(name))
        self._memory.keep_child(name, child.id)
        child.summary.update({**numbers, "verdict": str(trial.verdict)})
        child.finish(exit_code=int(trial.verdict == "failed"))

    def _file(self, path: Path) -> None:
        if path.is_file():
            self._run.save(str(path), base_path=str(path.parent), policy="now")
