"""Trackers against the real libraries: what was logged is read back with their own readers."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autoopt.events import Announcer, BaselineMeasured, Kept, Listener, RunEnded, RunStarted, TrialEnded, Warned
from autoopt.records import Result
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory
from autoopt.trackers import Tracker, tracker
from autoopt.trackers.values import Memory, name_of
from sample import win

pytestmark = pytest.mark.usefixtures("their_warnings")


@pytest.fixture
def result() -> Result:
    return win()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "photos-2026"
    folder.mkdir()
    for name in ("result.json", "plan.json", "optimized_train.py", "report.html"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture(scope="module")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that mlflow has set up: that takes it seconds, and a copy of it none."""
    mlflow = pytest.importorskip("mlflow")
    path: Path = tmp_path_factory.mktemp("mlflow") / "fresh.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.set_tracking_uri(f"sqlite:///{path}")
        mlflow.MlflowClient().search_experiments()
    return path


@pytest.fixture
def mlflow(tmp_path: Path, fresh_database: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, with a database of its own."""
    library = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    library.set_tracking_uri(f"sqlite:///{shutil.copy(fresh_database, tmp_path / 'mlflow.db')}")
    return library


@contextmanager
def announcer(made: Tracker, directory: Path) -> Iterator[Announcer]:
    """Of a run with a journal: the first call starts it, a later one resumes it."""
    files = RunDirectory(directory)
    with Run.resume(files) if files.journal.exists() else Run.create(files, {}, {}) as run:
        announce = Announcer(run.announced)
        announce.subscribe(made)
        announce.subscribe(run.note)
        yield announce


def begin(made: Listener, result: Result, directory: Path, trials: int) -> None:
    """Events of a run up to some trial."""
    made(RunStarted(spec="photos:build", device_name="cpu", budget_seconds=60, run_directory=str(directory)))
    made(BaselineMeasured(baseline=result.baseline))
    for trial in result.trials[:trials]:
        made(TrialEnded(trial=trial))


def follow(made: Tracker, result: Result, directory: Path) -> None:
    """Events of a whole run."""
    with announcer(made, directory) as announce:
        begin(announce, result, directory, len(result.trials))
        announce(Kept(plan=result.best.plan, best=result.best, speedup=result.speedup))
        announce(Warned(text="a doubt"))
        announce(RunEnded(result=result, run_directory=str(directory)))
    made.finish(directory / "report.html")


def test_mlflow(result: Result, directory: Path, tmp_path: Path, mlflow: Any) -> None:
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
    assert child.data.metrics["throughput"] == kept.throughput.value
    verdicts = {run.info.run_name: run.data.tags["verdict"] for run in children}
    assert verdicts == {name_of(trial): str(trial.verdict) for trial in result.trials}
    failed = {run.info.run_name for run in children if run.info.status == "FAILED"}
    assert failed == {name_of(trial) for trial in result.trials if trial.verdict == "failed"}
    assert parents[0].data.params["workload"] == "photos:build"
    assert parents[0].data.metrics["speedup/throughput"] == result.speedup.throughput.value  # type: ignore[union-attr]
    assert parents[0].data.tags["warning"] == "a doubt"
    report = client.download_artifacts(parents[0].info.run_id, "report.html", str(tmp_path))
    assert Path(report).read_text() == "report.html"


def test_mlflow_goes_on_in_the_same_run(
    result: Result, directory: Path, tmp_path: Path, fresh_database: Path, mlflow: Any
) -> None:
    few = result.model_copy(update={"trials": result.trials[:4]})
    first = tracker("mlflow")
    with announcer(first, directory) as announce:
        begin(announce, few, directory, 2)
    first.finish(None)
    follow(tracker("mlflow"), few, directory)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("autoopt")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(runs) == 1 + 4
    assert parent.info.status == "FINISHED"
    # the baseline: when it was measured and with the result, once each
    assert len(client.get_metric_history(parent.info.run_id, "baseline/samples_per_second")) == 2
    mlflow.set_tracking_uri(f"sqlite:///{shutil.copy(fresh_database, tmp_path / 'another.db')}")
    follow(tracker("mlflow"), few, directory)  # a server that does not know the run: all is told anew
    experiment = mlflow.MlflowClient().get_experiment_by_name("autoopt")
    assert len(mlflow.MlflowClient().search_runs([experiment.experiment_id])) == 1 + 4


def test_tensorboard_is_told_nothing_twice(result: Result, directory: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = tracker("tensorboard")
    with announcer(first, directory) as announce:
        begin(announce, result, directory, 2)
    first.finish(None)
    follow(tracker("tensorboard"), result, directory)
    events = reader.EventAccumulator(str(directory / "tensorboard")).Reload()
    assert len(events.Scalars("baseline/samples_per_second")) == 2
    assert events.Scalars("best/samples_per_second")[-1].value == pytest.approx(
        result.best.samples_per_second, rel=1e-6
    )
    folders = [item for item in (directory / "tensorboard").iterdir() if item.is_dir()]
    assert len(folders) == len(result.trials)
    assert all(len(list(folder.iterdir())) == 1 for folder in folders)
    measured = next(t for t in result.trials if t.throughput is not None)
    folder = next(f for f in folders if f.name.startswith(f"trial-{measured.id:04d}-"))
    child = reader.EventAccumulator(str(folder)).Reload()
    assert child.Scalars("trial/throughput")[0].value == pytest.approx(measured.throughput.value, rel=1e-6)


def test_a_damaged_memory_is_an_empty_one(directory: Path) -> None:
    memory = Memory(directory, "mlflow")
    memory.begin("a")
    memory.keep_child("3", "b")
    again = Memory(directory, "mlflow")
    assert (again.run, again.child("3"), again.child("4")) == ("a", "b", None)
    assert Memory(directory, "wandb").run is None
    for damage in ("", "[1]", '{"mlflow": 3}'):
        (directory / "trackers.json").write_text(damage)
        assert Memory(directory, "mlflow").run is None


def test_wandb_offline(result: Result, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    few = result.model_copy(update={"trials": result.trials[:1]})
    follow(tracker("wandb"), few, directory)
    runs = list((directory / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    known = json.loads((directory / "trackers.json").read_text())["wandb"]
    assert {run.name.rpartition("-")[2] for run in runs} == {known["run"], *known["children"].values()}
    files = {path.name for run in runs for path in run.rglob("*") if path.is_file() or path.is_symlink()}
    assert "report.html" in files
    assert sum(path.suffix == ".wandb" for run in runs for path in run.iterdir()) == 2
