"""The fingerprint: changes with what is measured, and only with that."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from autoopt.benchmark.environment import git_commit
from autoopt.storage.fingerprint import differences, fingerprint, source_hashes


def sources(folder: Path) -> Path:
    (folder / "package" / "deep").mkdir(parents=True)
    (folder / "train.py").write_text(
        "import os, numpy\nimport helper\nfrom package import part\nfrom package.deep import x\n"
    )
    (folder / "helper.py").write_text("import train\n")
    (folder / "unused.py").write_text("raise SystemExit\n")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "part.py").write_text("from .deep import x\nfrom . import other\n")
    (folder / "package" / "other.py").write_text("")
    (folder / "package" / "deep" / "__init__.py").write_text("x = 1\n")
    return folder / "train.py"


def test_all_that_a_module_imports_beside_it_counts_and_nothing_runs(tmp_path: Path) -> None:
    file = sources(tmp_path)
    assert sorted(source_hashes(file)) == [
        "helper.py",
        "package/__init__.py",
        "package/deep/__init__.py",
        "package/other.py",
        "package/part.py",
        "train.py",
    ]


def test_a_changed_helper_is_named(tmp_path: Path) -> None:
    file = sources(tmp_path)
    before = fingerprint("train.py:build", file)
    (tmp_path / "unused.py").write_text("changed")
    assert differences(before, fingerprint("train.py:build", file)) == []
    (tmp_path / "helper.py").write_text("import train  # changed\n")
    (line,) = differences(before, fingerprint("train.py:build", file))
    assert line.startswith("code sources helper.py: ")


def test_source_that_is_no_python_still_has_a_hash(tmp_path: Path) -> None:
    for number, text in enumerate(["def (", "\0", "import 1"]):
        (tmp_path / f"m{number}.py").write_text(text)
        assert list(source_hashes(tmp_path / f"m{number}.py")) == [f"m{number}.py"]
    assert source_hashes(tmp_path / "missing.py") == {}


def test_the_commit_is_that_of_the_workload(tmp_path: Path) -> None:
    assert git_commit(tmp_path / "nowhere") is None
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    commit = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40


nested = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), nested, max_size=4))
def test_a_document_differs_from_itself_in_nothing(document: dict) -> None:
    assert differences(document, document) == []


@given(st.dictionaries(st.text(max_size=3), st.integers(), min_size=1), st.data())
def test_every_changed_leaf_is_a_line(document: dict, data: st.DataObject) -> None:
    changed = data.draw(st.sets(st.sampled_from(sorted(document))))
    other = {name: value + (name in changed) for name, value in document.items()}
    assert len(differences(document, other)) == len(changed)
