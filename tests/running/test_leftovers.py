"""What a profile leaves behind: its documents, the command that made them, and nothing where it found nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import WorkloadError
from autoopt.options import Options
from autoopt.running import profile as profiling


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("import torch\nraise RuntimeError('no data')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fails(*_: Any) -> Any:
    raise WorkloadError("the baseline failed")


def test_a_profile_that_fails_leaves_no_directory(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_profile", fails)
    with pytest.raises(WorkloadError):
        profiling.profile_run("train.py", Options())
    assert [path.name for path in script.iterdir()] == ["train.py"]


def test_other_runs_and_a_directory_that_was_named_stay(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_profile", fails)
    (script / "autoopt-runs" / "earlier").mkdir(parents=True)
    for options in (Options(), Options(out=script / "here")):
        with pytest.raises(WorkloadError):
            profiling.profile_run("train.py", options)
    assert [path.name for path in (script / "autoopt-runs").iterdir()] == ["earlier"]
    assert list((script / "here").iterdir()) == [], "the user's own folder, without what was kept back"


def test_a_profile_keeps_no_space_back_once_it_is_done(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(spec: str, options: Options, registry: Any, directory: Any, *_: Any) -> Any:
        directory.write(directory.path / "profile.json", "{}\n")
        directory.compiler_cache.mkdir()
        return "a profile"

    monkeypatch.setattr(profiling, "_profile", found)
    assert profiling.profile_run("train.py", Options(out=script / "here")) == "a profile"
    assert [path.name for path in (script / "here").iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("spec", "tools", "line"),
    [
        ("train.py --epochs 3", (), "autoopt profile train.py -- --epochs 3"),
        ("train.py", ("torch", "nvml"), "autoopt profile train.py --with torch,nvml"),
        ("python -m pkg.train", (), "autoopt profile -- python -m pkg.train"),
        ("pkg:build", ("torch",), "autoopt profile pkg:build --with torch"),
    ],
)
def test_a_profile_says_the_command_line_that_it_came_from(spec: str, tools: tuple[str, ...], line: str) -> None:
    assert profiling.command(spec, tools) == line
