"""MLflow: a run of the experiment ``autoopt`` with one child run a trial."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from autoopt.events import BaselineMeasured, Event, Kept, Noted, RunEnded, RunStarted, TrialEnded, Warned
from autoopt.records import Trial
from autoopt.trackers.values import FILES, Memory, name_of, of_configuration, of_result, of_trial

EXPERIMENT = "autoopt"
_PARENT = "mlflow.parentRunId"
_WORDS = 500
"""MLflow's limit on the length of a parameter."""


class _Mlflow:
    def __init__(self) -> None:
        self._client = MlflowClient()
        self._experiment = ""
        self._run: str | None = None
        self._memory: Memory | None = None
        self._kept = 0
        self._reopened = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            directory = Path(event.run_directory)
            self._memory = Memory(directory, "mlflow")
            self._open(directory.name, {"workload": event.spec, "device": event.device_name})
            return
        self._kept += isinstance(event, Kept)
        if not (event.replayed and self._reopened):
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if isinstance(event, BaselineMeasured):
            self._metrics(self._run, of_configuration("baseline", event.baseline))
        elif isinstance(event, TrialEnded):
            self._trial(event.trial)
        elif isinstance(event, Kept):
            self._metrics(self._run, of_configuration("best", event.best), self._kept)
        elif isinstance(event, Warned) and self._run:
            self._client.set_tag(self._run, "warning", event.text[:_WORDS])
        elif isinstance(event, Noted) and self._run:
            self._client.set_tag(self._run, "note", event.text[:_WORDS])
        elif isinstance(event, RunEnded) and self._run:
            self._metrics(self._run, of_result(event.result), self._kept + 1)
            self._client.set_tag(self._run, "stopped", event.result.stop.reason.value)
            for name in FILES:
                self._artifact(Path(event.run_directory) / name)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if self._run is None:
            self._open("train", {})
        self._metrics(self._run, values, step)

    def finish(self, report: Path | None = None) -> None:
        if self._run is None:
            return
        if report is not None:
            self._artifact(report)
        self._client.set_terminated(self._run)
        self._run = None

    def _open(self, name: str, words: dict[str, str]) -> None:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        known = self._memory.run if self._memory else None
        self._reopened = known is not None and self._reopen(known)
        if self._reopened:
            self._run = known
            return
        self._run = self._client.create_run(self._experiment, run_name=name).info.run_id
        if self._memory:
            self._memory.begin(self._run)
        self._parameters(self._run, words)

    def _reopen(self, run: str) -> bool:
        """Opens the run of an interrupted search once more; False where this server does not know it."""
        try:
            self._client.update_run(run, status="RUNNING")
        except MlflowException:
            return False
        return True

    def _trial(self, trial: Trial) -> None:
        words, numbers = of_trial(trial)
        if self._run is None or self._memory is None:
            return
        name = name_of(trial)
        run = self._memory.child(name)
        if run is None:
            run = self._client.create_run(self._experiment, run_name=name, tags={_PARENT: self._run}).info.run_id
            self._memory.keep_child(name, run)
            self._parameters(run, words)
        self._client.set_tag(run, "verdict", str(trial.verdict))
        self._metrics(run, numbers)
        self._client.set_terminated(run, "FAILED" if trial.verdict == "failed" else "FINISHED")

    def _parameters(self, run: str, words: dict[str, str]) -> None:
        self._client.log_batch(run, params=[Param(name, value[:_WORDS]) for name, value in words.items()])

    def _metrics(self, run: str | None, numbers: dict[str, float], step: int = 0) -> None:
        if run is not None:
            now = int(1000 * time.time())
            self._client.log_batch(run, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])

    def _artifact(self, path: Path) -> None:
        if self._run and path.is_file():
            self._client.log_artifact(self._run, str(path))


def make() -> Any:
    return _Mlflow()
