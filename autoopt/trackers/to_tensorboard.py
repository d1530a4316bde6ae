"""TensorBoard: scalars of the run, and each trial as a run below it, in ``tensorboard/`` of the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from autoopt.events import BaselineMeasured, Event, Kept, RunEnded, RunStarted, TrialEnded
from autoopt.records import Trial
from autoopt.trackers.values import of_configuration, of_result, of_trial

FOLDER = "tensorboard"


class _TensorBoard:
    def __init__(self) -> None:
        self._writer: Any = None
        self._folder = Path(FOLDER)
        self._kept = 0
        self._reopened = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._folder = Path(event.run_directory) / FOLDER
            self._reopened = any(self._folder.glob("events.*"))
            self._open(self._folder)
            if not self._reopened:
                self._writer.add_text("workload", f"{event.spec} on {event.device_name}")
            return
        self._kept += isinstance(event, Kept)
        if not (event.replayed and self._reopened):
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if isinstance(event, BaselineMeasured):
            self.scalars(0, of_configuration("baseline", event.baseline))
        elif isinstance(event, TrialEnded):
            self._trial(event.trial)
        elif isinstance(event, Kept):
            self.scalars(self._kept, of_configuration("best", event.best))
        elif isinstance(event, RunEnded):
            self.scalars(self._kept + 1, of_result(event.result))
            self._writer.flush()

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            self._open(self._folder)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, report: Path | None = None) -> None:
        if self._writer is None:
            return
        if report is not None:
            self._writer.add_text("report", str(report))
        self._writer.close()
        self._writer = None

    def _open(self, folder: Path) -> None:
        self._writer = SummaryWriter(log_dir=str(folder))

    def _trial(self, trial: Trial) -> None:
        """A child: a folder of its own, which TensorBoard shows as a run."""
        words, numbers = of_trial(trial)
        folder = self._folder / f"trial-{trial.id:04d}-{trial.strategy}"
        with SummaryWriter(log_dir=str(folder)) as writer:
            writer.add_text("trial", "\n".join(f"* {name}: {value}" for name, value in words.items()))
            for name, value in numbers.items():
                writer.add_scalar(f"trial/{name}", value, trial.id)


def make() -> Any:
    return _TensorBoard()
