"""What a profile leaves behind: its documents, the command that made them, and nothing where it found nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import WorkloadError
from autoopt.options import Options
from autoopt.running import profile as profiling
from autoopt.script.command import parse


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
        profiling.profile_run(parse("train.py"), Options())
    assert [path.name for path in script.iterdir()] == ["train.py"]


def test_other_runs_and_a_directory_that_was_named_stay(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_profile", fails)
    (script / "autoopt-runs" / "earlier").mkdir(parents=True)
    for options in (Options(), Options(out=script / "here")):
        with pytest.raises(WorkloadError):
            profiling.profile_run(parse("train.py"), options)
    assert [path.name for path in (script / "autoopt-runs").iterdir()] == ["earlier"]
    assert list((script / "here").iterdir()) == [], "the user's own folder, without what was kept back"


def test_a_profile_keeps_no_space_back_once_it_is_done(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(spec: str, options: Options, registry: Any, directory: Any, *_: Any) -> Any:
        directory.write(directory.path / "profile.json", "{}\n")
        directory.compiler_cache.mkdir()
        return "a profile"

    monkeypatch.setattr(profiling, "_profile", found)
    assert profiling.profile_run(parse("train.py"), Options(out=script / "here")) == "a profile"
    assert [path.name for path in (script / "here").iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("spec", "tools", "line"),
    [
        ("train.py --epochs 3", (), "autoopt profile train.py -- --epochs 3"),
        ("train.py", ("--with torch,nvml",), "autoopt profile train.py --with torch,nvml"),
        ("python -m pkg.train", (), "autoopt profile -- python -m pkg.train"),
        ("pkg:build", ("--with torch",), "autoopt profile pkg:build --with torch"),
    ],
)
def test_options_stand_before_the_words_of_a_script(spec: str, tools: tuple[str, ...], line: str) -> None:
    assert f"autoopt profile {parse(spec).asked(tools)}" == line
