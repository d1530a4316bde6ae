"""What a run checks before it begins, keeps of its options, and clears away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import UsageError, WorkloadError
from autoopt.options import Options
from autoopt.running import profile as profiling
from autoopt.running.optimize import fingerprint_of
from autoopt.script.command import parse
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory
from modules import run_python


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("import torch\nraise RuntimeError('no data')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fails(*_: Any) -> Any:
    raise WorkloadError("the baseline failed")


def test_a_profile_that_fails_leaves_no_directory_and_other_runs_and_one_that_was_named_stay(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "baseline_spec", fails)
    with pytest.raises(WorkloadError):
        profiling.profile_run(parse("train.py"), Options())
    assert [path.name for path in script.iterdir()] == ["train.py"]
    (script / "autoopt-runs" / "earlier").mkdir(parents=True)
    for options in (Options(), Options(out=script / "here")):
        with pytest.raises(WorkloadError):
            profiling.profile_run(parse("train.py"), options)
    assert [path.name for path in (script / "autoopt-runs").iterdir()] == ["earlier"]
    assert list((script / "here").iterdir()) == [], "the user's own folder"


def test_what_a_profile_has_compiled_is_not_kept(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiles(*_: Any) -> Any:
        (script / "here" / "compiler-cache").mkdir()
        fails()

    monkeypatch.setattr(profiling, "baseline_spec", compiles)
    with pytest.raises(WorkloadError):
        profiling.profile_run(parse("train.py"), Options(out=script / "here"))
    assert list((script / "here").iterdir()) == []


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


# Refusals before torch is imported or a directory made.

SCRIPT = """
import contextlib, io, json, pathlib, sys
from autoopt.cli.entry import run
found = []
for words in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as told:
        code = run(words.split())
    files = sorted(map(str, pathlib.Path().rglob("*")))
    found.append([code, told.getvalue(), "torch" in sys.modules, files])
print(json.dumps(found))
"""
REFUSED = {
    "optimize mine": (3, "it has no ':'"),
    "optimize nine.py": (3, "there is no script nine.py"),
    "optimize nine.py:build": (3, "did you mean mine.py?"),
    "profile minee:build": (3, "did you mean 'mine'?"),
    "optimize mine:build --only amq": (2, "did you mean amp?"),
    "profile mine:build --out mine.py": (2, "it is a file"),
    "optimize mine:build --out old": (2, "holds a run already (plan.json)"),
    "train mine.py --plan old/plan.json": (3, "it has no ':'"),
}


def test_a_command_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """One after another in one process, which is slow to start."""
    (tmp_path / "mine.py").write_text("raise AssertionError('imported')\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "plan.json").write_text('{"schema_version": 1, "changes": []}')
    (printed,) = run_python("-c", SCRIPT, *REFUSED, cwd=tmp_path).stdout.splitlines()
    for (words, (code, said)), found in zip(REFUSED.items(), json.loads(printed), strict=True):
        assert (found[0], *found[2:]) == (code, False, ["mine.py", "old", "old/plan.json"]), words
        assert said in found[1], words


# The fingerprint of a script: resume refuses once it, or a file that its command names, was edited.


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "net.py").write_text("width = 4\n")
    (tmp_path / "package" / "train.py").write_text("from package.net import width\n")
    (tmp_path / "train.py").write_text("import package.net\n")
    (tmp_path / "config.yaml").write_text("lr: 0.1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "edited"),
    [
        ("train.py --epochs 3", "train.py"),
        ("python train.py", "package/net.py"),
        ("python -m package.train", "package/net.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 -m package.train", "package/train.py"),
        ("train.py --config config.yaml", "config.yaml"),
        ("train.py --config=config.yaml", "config.yaml"),
    ],
)
def test_an_edited_script_is_not_resumed(project: Path, spec: str, edited: str) -> None:
    (project / "run").mkdir()
    directory = RunDirectory(project / "run")
    Run.create(directory, fingerprint_of(parse(spec), Options()), {}).__exit__(None, None, None)
    with Run.resume(directory) as run:
        assert run.check_fingerprint(fingerprint_of(parse(spec), Options())) == []
        (project / edited).write_text("width = 5\n")
        with pytest.raises(UsageError, match=f"code sources {edited}: "):
            run.check_fingerprint(fingerprint_of(parse(spec), Options()))


def test_what_a_script_does_not_read_may_change(project: Path) -> None:
    before = fingerprint_of(parse("train.py"), Options())
    (project / "config.yaml").write_text("lr: 0.2\n")
    assert fingerprint_of(parse("train.py"), Options()) == before
