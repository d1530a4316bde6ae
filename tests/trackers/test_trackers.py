"""Trackers against the real libraries: what was logged is read back with their own readers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoopt.errors import UsageError
from autoopt.events import BaselineMeasured, Kept, RunEnded, RunStarted, TrialEnded, Warned
from autoopt.records import Result
from autoopt.trackers import Tracker, tracker

GOLDEN = Path(__file__).parents[1] / "golden" / "win.json"


@pytest.fixture
def result() -> Result:
    return Result.model_validate(json.loads(GOLDEN.read_text()))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "photos-2026"
    folder.mkdir()
    for name in ("result.json", "plan.json", "optimized_train.py", "report.html"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture(autouse=True)
def their_warnings() -> Iterator[None]:
    """What the libraries warn of is theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def follow(made: Tracker, result: Result, directory: Path) -> None:
    """What a run announces."""
    made(RunStarted(spec="photos:build", device_name="cpu", budget_seconds=60, run_directory=str(directory)))
    made(BaselineMeasured(baseline=result.baseline))
    for trial in result.trials:
        made(TrialEnded(trial=trial))
    made(Kept(plan=result.best.plan, best=result.best, speedup=result.speedup))
    made(Warned(text="a doubt"))
    made(RunEnded(result=result, run_directory=str(directory)))
    made.finish(directory / "report.html")


def test_unknown_tracker_is_refused() -> None:
    with pytest.raises(UsageError, match="mlflow, tensorboard, wandb"):
        tracker("papertrail")


def test_mlflow(result: Result, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    follow(tracker("mlflow"), result, directory)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("autoopt")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(parents) == 1
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    assert len(children) == len(result.trials)
    assert parents[0].data.metrics["best/samples_per_second"] == result.best.samples_per_second
    kept = next(trial for trial in result.trials if trial.verdict == "kept")
    child = next(run for run in children if run.info.run_name == f"{kept.id} {kept.strategy}")
    assert kept.throughput is not None
    assert child.data.metrics["throughput"] == kept.throughput.value
    assert "report.html" in {item.path for item in client.list_artifacts(parents[0].info.run_id)}


def test_tensorboard(result: Result, directory: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    follow(tracker("tensorboard"), result, directory)
    events = reader.EventAccumulator(str(directory / "tensorboard")).Reload()
    best = events.Scalars("best/samples_per_second")
    assert best[-1].value == pytest.approx(result.best.samples_per_second, rel=1e-6)
    folders = sorted(item for item in (directory / "tensorboard").iterdir() if item.is_dir())
    assert len(folders) == len(result.trials)
    measured = next(t for t in result.trials if t.throughput is not None)
    assert measured.throughput is not None
    folder = next(f for f in folders if f.name.startswith(f"trial-{measured.id:04d}-"))
    child = reader.EventAccumulator(str(folder)).Reload()
    assert child.Scalars("trial/throughput")[0].value == pytest.approx(measured.throughput.value, rel=1e-6)


def test_wandb_offline(result: Result, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    few = result.model_copy(update={"trials": result.trials[:2]})
    follow(tracker("wandb"), few, directory)
    runs = list((directory / "wandb").glob("offline-run-*"))
    assert len(runs) == 3
    files = {path.name for run in runs for path in run.rglob("*") if path.is_file() or path.is_symlink()}
    assert "report.html" in files
    assert sum(path.suffix == ".wandb" for run in runs for path in run.iterdir()) == 3
