"""MLflow: a run of the experiment ``autoopt`` with one child run a trial."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from autoopt.events import Event, Noted, RunEnded, RunStarted, Warned
from autoopt.records import Trial
from autoopt.trackers import Tracker
from autoopt.trackers.values import name_of

EXPERIMENT = "autoopt"
_PARENT = "mlflow.parentRunId"
_WORDS = 500
"""MLflow's limit on the length of a parameter."""


class Follower(Tracker):
    def __init__(self) -> None:
        super().__init__()
        self._client = MlflowClient()
        self._experiment = ""

    def _begin(self, directory: Path, event: RunStarted) -> bool:
        return self._open(directory.name, {"workload": event.spec, "device": event.device_name})

    def _follow(self, event: Event) -> None:
        super()._follow(event)
        if self._run and isinstance(event, (Warned, Noted)):
            self._client.set_tag(self._run, "warning" if isinstance(event, Warned) else "note", event.text[:_WORDS])
        elif self._run and isinstance(event, RunEnded):
            self._client.set_tag(self._run, "stopped", event.result.stop.reason.value)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if self._run is None:
            self._open("train", {})
        self._metrics(self._run, values, step)

    def _close(self) -> None:
        self._client.set_terminated(self._run)

    def _open(self, name: str, words: dict[str, str]) -> bool:
        """Opens the run of an interrupted search once more, where this server knows it; else another one."""
        found = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        known = self._memory.run if self._memory else None
        if known is not None:
            with suppress(MlflowException):
                self._client.update_run(known, status="RUNNING")
                self._run = known
                return True
        self._run = self._client.create_run(self._experiment, run_name=name).info.run_id
        if self._memory:
            self._memory.begin(self._run)
        self._parameters(self._run, words)
        return False

    def _child(self, trial: Trial, words: dict[str, str], numbers: dict[str, float]) -> None:
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

    def _metrics(self, run: str, numbers: dict[str, float], step: int = 0) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(run, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])

    def _file(self, path: Path) -> None:
        if self._run and path.is_file():
            self._client.log_artifact(self._run, str(path))
