"""Checkpoints that are written while training goes on: the same files, found in a script, and in its patch."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autoopt.benchmark import saving
from autoopt.records import Change, RunParts, Site, Sites
from autoopt.registry import load_strategies
from autoopt.strategy import Case
from autoopt.testing.strategies import sample_case
from scripted import PLAIN, changed_lines, patched, sites_in
from tests.strategies.stand_ins import promised

STRATEGY = load_strategies()["checkpoints"]
SAVE = "torch.save(model.state_dict(), 'a.pt')"
SAVING = PLAIN.replace("        optimizer.step()\n", f"        optimizer.step()\n        {SAVE}\n")
RESUMING = SAVING.replace("    # the data\n", "    torch.load('a.pt')\n")


def test_what_is_written_is_what_was_there_at_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, go_on, save = torch.ones(3, requires_grad=True), threading.Event(), torch.save
    monkeypatch.setattr(torch, "save", lambda *args: (go_on.wait(30), save(*args)))
    shared = {"a": weight, "b": weight, "step": 1}
    saving.save_in_background(shared, tmp_path / "a.pt")
    with torch.no_grad():
        weight.zero_()
    assert not (tmp_path / "a.pt").exists(), "a reader finds the whole file or none"
    go_on.set()
    found = saving.load_saved(tmp_path / "a.pt")
    assert found["a"].tolist() == [1.0, 1.0, 1.0]
    assert found["a"].data_ptr() == found["b"].data_ptr(), "what was one tensor is one"
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_what_cannot_be_copied_is_saved_at_once(tmp_path: Path) -> None:
    within_graph = torch.ones(2, requires_grad=True) * 2
    saving.save_in_background(within_graph, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt").tolist() == [2.0, 2.0]
    with (tmp_path / "b.pt").open("wb") as file:
        saving.save_in_background(torch.ones(1), file)
        assert file.tell() > 0


def test_a_write_that_fails_is_told_at_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    saving.save_in_background(torch.ones(1), tmp_path / "nowhere" / "a.pt")
    with pytest.raises((OSError, RuntimeError), match="nowhere"):
        saving.save_in_background(torch.ones(1), tmp_path / "a.pt")
    saving.save_in_background(torch.ones(1), tmp_path / "a.pt")
    assert saving.load_saved(tmp_path / "a.pt").tolist() == [1.0]


def case_of(folder: Path, *sites: Site, run: RunParts | None = None) -> Case:
    found = Sites(command=("train.py",), cwd=str(folder), sites=sites)
    case = sample_case()
    return replace(case, sites=found, workload=case.workload.model_copy(update={"run": run}))


def site(line: int = 3, **changed: Any) -> Site:
    seen = {"kind": "checkpoint", "file": "train.py", "line": line, "end_line": line, "call": "torch.save", **changed}
    return Site.model_validate(seen)


@pytest.mark.parametrize(
    ("text", "sites", "reason"),
    [
        ("torch.save(a, b)\n", (site(),), ""),
        ("torch.save(a, b)\n", (), "not seen to save"),
        ("torch.save(a, b)\n", (site(direct=False),), "a library saves"),
        ("import shutil\nshutil.copy('a.pt', 'b.pt')\n", (site(),), "works on files"),
        ("os.replace('a.pt', 'b.pt')\n", (site(),), "works on files"),
        ("def (", (site(),), "works on files"),
    ],
)
def test_it_applies_to_the_script_s_own_lines(text: str, sites: tuple[Site, ...], reason: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    told = STRATEGY.applies(case_of(tmp_path, *sites))
    assert bool(told) is not bool(reason), told.reason
    assert reason in told.reason


def test_a_copy_is_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("torch.save(a, b)\n")
    case = case_of(tmp_path, site(), run=RunParts(checkpoint_seconds=2.0, checkpoint_every=200.0))
    (setting,) = STRATEGY.settings(case)
    assert setting == {"lines": ["train.py:3"], "loads": []}
    told = promised(STRATEGY, case, setting)
    assert told.value > 1.0
    assert told.kind == "declared"


def test_the_patch_saves_beside_and_waits_where_it_loads(tmp_path: Path) -> None:
    sites = sites_in(tmp_path, RESUMING, checkpoint="torch.save(")
    (setting,) = STRATEGY.settings(replace(sample_case(), sites=sites))
    _, patch = patched(tmp_path, RESUMING, Change(strategy="checkpoints", setting=setting), sites=sites)
    assert [change.how for change in patch.changes] == ["patched"], patch.changes[0].reason
    lines = changed_lines(patch.diff)
    assert "+        save_in_background(model.state_dict(), 'a.pt')" in lines
    assert "+    load_saved('a.pt')" in lines
    assert "+def wait_until_saved():" in lines
    assert "autoopt" not in "".join(line for line in lines if line.startswith("+"))
