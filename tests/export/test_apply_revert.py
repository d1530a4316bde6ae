"""The patch of a run, put on the user's files and taken off again by the commands: all of it or nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import sample
from autoopt.cli import main
from autoopt.records import Change
from scripted import PLAIN, THREADS, WORKERS, put, sites_in

RESULT = json.loads(sample.text("win"))


def a_run(folder: Path, runs: Path, *changes: Change) -> Path:
    """The directory of a run on the plain script in this folder."""
    sites = sites_in(folder, PLAIN)
    patch = put(sites, *changes).patch
    document = {**RESULT, "sites": sites.model_dump(), "patch": patch.model_dump()}
    runs.mkdir(exist_ok=True)
    (runs / "result.json").write_text(json.dumps(document))
    return runs


@pytest.mark.parametrize("where", ["alone", "repository", "below"])
def test_apply_and_revert_wherever_the_folder_lies(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    if where != "alone":
        subprocess.run(["git", "init", "-q", folder if where == "repository" else tmp_path], check=True)
    run = a_run(folder, tmp_path / "run", WORKERS, THREADS)
    assert main(["apply", str(run)]) == 0
    assert capsys.readouterr().out == "train.py\n"
    assert "num_workers=2" in (folder / "train.py").read_text()
    assert main(["apply", str(run)]) == 2
    assert "on the files already" in capsys.readouterr().err
    assert main(["revert", str(run)]) == 0
    assert (folder / "train.py").read_text() == PLAIN
    assert main(["revert", str(run)]) == 2
    assert "not on the files" in capsys.readouterr().err


def test_a_file_that_was_changed_since_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path, tmp_path / "run", WORKERS, THREADS)
    theirs = PLAIN.replace("DataLoader(Pictures(), batch_size=32, shuffle=True)", "DataLoader(Others())")
    (tmp_path / "train.py").write_text(theirs)
    assert main(["apply", str(run)]) == 2
    assert "not as the run saw them" in capsys.readouterr().err
    assert (tmp_path / "train.py").read_text() == theirs


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_run_that_kept_nothing_has_no_plan_to_train_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    run = a_run(tmp_path, tmp_path / "run")
    document = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**document, "best": document["baseline"]}))
    assert main([command, str(run)]) == 2
    told = capsys.readouterr().err
    assert "kept no change" in told
    assert "run --plan" not in told


def test_a_run_without_a_patch_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    assert main(["apply", str(tmp_path)]) == 2
    assert "autoopt export RUN" in capsys.readouterr().err
    run = a_run(tmp_path, tmp_path / "run")
    assert main(["apply", str(run)]) == 2
    assert "autoopt run --plan" in capsys.readouterr().err
