"""The fingerprint of a script: resume refuses once it, or a file that its command names, was edited."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.errors import UsageError
from autoopt.options import Options
from autoopt.running.saved_options import fingerprint_of
from autoopt.script.command import parse
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory


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
    Run.resume(directory, fingerprint_of(parse(spec), Options())).__exit__(None, None, None)
    (project / edited).write_text("width = 5\n")
    with pytest.raises(UsageError, match=f"code sources {edited}: "):
        Run.resume(directory, fingerprint_of(parse(spec), Options()))


def test_what_a_script_does_not_read_may_change(project: Path) -> None:
    before = fingerprint_of(parse("train.py"), Options())
    (project / "config.yaml").write_text("lr: 0.2\n")
    assert fingerprint_of(parse("train.py"), Options()) == before
