"""Weights & Biases: one run of the project ``autoopt``, its trials as runs of the same group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wandb

from autoopt.events import BaselineMeasured, Event, Kept, RunEnded, RunStarted, TrialEnded
from autoopt.records import Trial
from autoopt.trackers.values import FILES, Memory, name_of, of_configuration, of_result, of_trial

PROJECT = "autoopt"


class _Wandb:
    def __init__(self) -> None:
        self._run: Any = None
        self._group = "train"
        self._directory = Path()
        self._memory: Memory | None = None
        self._reopened = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._directory = Path(event.run_directory)
            self._group = self._directory.name
            self._memory = Memory(self._directory, "wandb")
            words = {"workload": event.spec, "device": event.device_name}
            self._run = self._open(self._group, "run", words, self._memory.run)
            self._reopened = self._memory.run is not None
            if not self._reopened:
                self._memory.begin(self._run.id)
        elif not (event.replayed and self._reopened):
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if isinstance(event, BaselineMeasured):
            self._run.summary.update(of_configuration("baseline", event.baseline))
        elif isinstance(event, TrialEnded):
            self._trial(event.trial)
        elif isinstance(event, Kept):
            self._run.log(of_configuration("best", event.best))
        elif isinstance(event, RunEnded):
            self._run.summary.update(of_result(event.result))
            for name in FILES:
                self._keep(Path(event.run_directory) / name)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if self._run is None:
            self._run = self._open("train", "train", {})
        self._run.log(values, step=step)

    def finish(self, report: Path | None = None) -> None:
        if self._run is None:
            return
        if report is not None:
            self._keep(report)
        self._run.finish()
        self._run = None

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

    def _trial(self, trial: Trial) -> None:
        words, numbers = of_trial(trial)
        if self._memory is None:
            return
        name = name_of(trial)
        child = self._open(f"{self._group}/{name}", "trial", words, self._memory.child(name))
        self._memory.keep_child(name, child.id)
        child.summary.update({**numbers, "verdict": str(trial.verdict)})
        child.finish(exit_code=int(trial.verdict == "failed"))

    def _keep(self, path: Path) -> None:
        if path.is_file():
            self._run.save(str(path), base_path=str(path.parent), policy="now")


def make() -> Any:
    return _Wandb()
