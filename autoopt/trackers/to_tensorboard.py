"""TensorBoard: scalars of the run, and each trial as a run below it, in ``tensorboard/`` of the run directory."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from autoopt.events import RunStarted
from autoopt.records import Trial
from autoopt.trackers import Tracker

FOLDER = "tensorboard"


class Follower(Tracker):
    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(FOLDER)

    def _begin(self, directory: Path, event: RunStarted) -> bool:
        self._folder = directory / FOLDER
        there = any(self._folder.glob("events.*"))
        self._run = SummaryWriter(log_dir=str(self._folder))
        if not there:
            self._run.add_text("workload", f"{event.spec} on {event.device_name}")
        return there

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if self._run is None:
            self._run = SummaryWriter(log_dir=str(self._folder))
        for name, value in values.items():
            self._run.add_scalar(name, value, step)

    def _file(self, path: Path) -> None:
        if path.suffix == ".html":  # it has no place for files: the path of the report
            self._run.add_text("report", str(path))

    def _close(self) -> None:
        self._run.close()

    def _child(self, trial: Trial, words: dict[str, str], numbers: dict[str, float]) -> None:
        """A folder of its own, which TensorBoard shows as a run."""
        folder = self._folder / f"trial-{trial.id:04d}-{trial.strategy}"
        with SummaryWriter(log_dir=str(folder)) as writer:
            writer.add_text("trial", "\n".join(f"* {name}: {value}" for name, value in words.items()))
            for name, value in numbers.items():
                writer.add_scalar(f"trial/{name}", value, trial.id)
