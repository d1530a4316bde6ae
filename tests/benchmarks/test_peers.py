"""Other people's scripts and the tools: what is pinned, what a tool leaves behind, and what the page then says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import page
from benchmarks.peers.fetching import OURS, fetch
from benchmarks.peers.scripts import ORIGINS, PEERS
from benchmarks.whole_runs import tools
from benchmarks.whole_runs.cases import Case, CaseError
from benchmarks.whole_runs.tools import PUT_ON, RIVALS, TOOLS


def test_every_script_is_named_by_a_revision_and_by_its_content() -> None:
    for name, case in PEERS.cases.items():
        origin = ORIGINS[name]
        if origin.source != OURS:
            assert re.fullmatch(r"[0-9a-f]{40}", origin.source[1]), name
            assert re.fullmatch(r"[0-9a-f]{40}", origin.blob), name
        assert re.compile(case.metric).groups == 1, name


def test_a_repository_without_the_revision_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "karpathy+nanoGPT" / "repo"], check=True)
    monkeypatch.setenv("PEERS_MIRROR", str(tmp_path))
    one = Case("nanogpt", "", "", False, 0.0, "", home=tmp_path / "scratch", below=".", script="train.py")
    with pytest.raises(CaseError, match=ORIGINS["nanogpt"].source[1]):
        fetch(one, ORIGINS["nanogpt"])
    assert not one.folder.exists()


def work_of(folder: Path) -> tools.Work:
    """A tool's work on a script that prints its metric."""
    (folder / "case").mkdir()
    (folder / "case" / "train.py").write_text("print('final metric: 1')\n", encoding="utf-8")
    case = Case("case", "final metric", "metric", True, 0.0, "", home=folder)
    work = tools.Work(case, folder, 1, 1.0, folder / "work")
    work.copy(work.tree)
    return work


TOOL = """
import json, pathlib, sys, time
assert sys.argv[1:3] == {words}, sys.argv
assert sys.argv[-5:] == ["train.py", "--data", {data!r}, "--seed", "1"], sys.argv
{does}
"""
REPORT = (
    "pathlib.Path('../runs/a').mkdir(parents=True); pathlib.Path('../runs/a/autopilot_report.json').write_text({!r})"
)


@pytest.mark.parametrize(
    ("tool", "does", "status", "left"),
    [
        ("train-doctor", "print('no proven win')", "nothing", {}),
        ("train-doctor", "raise SystemExit(1)", "failed", {}),
        ("train-doctor", "print('ended before its first measured step'); raise SystemExit(1)", "cannot", {}),
        (
            "train-doctor",
            "pathlib.Path('.train-doctor').mkdir(); pathlib.Path('.train-doctor/a.patch').write_text('--- a')",
            "result",
            {"patch": "--- a"},
        ),
        ("fournex", "pass", "failed", {}),
        ("fournex", REPORT.format(json.dumps({"improved": False, "winner": None})), "nothing", {}),
        (
            "fournex",
            REPORT.format(json.dumps({"improved": True, "winner": {"env_vars": {"FRX_NUM_WORKERS": "2"}}})),
            "result",
            {"variables": {"FRX_NUM_WORKERS": "2"}},
        ),
    ],
)
def test_what_a_tool_leaves_is_read(
    tool: str, does: str, status: str, left: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = work_of(tmp_path)
    words = {"train-doctor": ["fix", "--no-card"], "fournex": ["tune", "--safe"]}[tool]
    command = tmp_path / {"train-doctor": "train-doctor", "fournex": "frx"}[tool]
    text = TOOL.format(words=words, data=str(tmp_path), does=does)
    command.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setattr(tools, "installed", lambda _: tmp_path)
    found = TOOLS[tool](work)
    assert found["status"] == status, found
    assert {key: found[key] for key in left} == left


def test_a_tool_is_interrupted_after_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "GRACE", -0.5)
    work = work_of(tmp_path)
    code, stopped, _ = work.run([sys.executable, "-c", "import time; time.sleep(60)"], {})
    assert stopped
    assert code != 0


def test_loadtunes_settings_become_changes() -> None:
    knobs = {"num_workers": 2, "persistent_workers": 1, "prefetch_factor": None, "num_threads": 1}
    assert tools.loadtunes_plan({**knobs, "amp": False, "compile": False}) == [
        {"strategy": "workers", "setting": {"num_workers": 2, "persistent_workers": True}},
        {"strategy": "threads", "setting": {"threads": 1}},
    ]


def test_every_rival_is_a_tool() -> None:
    assert {"autoopt", *RIVALS} == {*TOOLS, *PUT_ON}


def document(
    tool: str, status: str, seconds: float | None, metric: float = 1.0, patch: str = "--- a"
) -> dict[str, Any]:
    """One script that autoopt makes twice as fast, and a tool's result beside it."""
    searches = [
        {"case": "vae", "tool": name, "revision": "abc", "status": state, "patch": text, "refused": None}
        | {"claim": None, "changes": []}
        for name, state, text in (("autoopt", "result", "--- a"), (tool, status, patch))
    ]
    runs = []
    for side, took, value in (("untouched", 20.0, 1.0), ("patched", 10.0, 1.0), (tool, seconds, metric)):
        if took is not None:
            one = {"side": side, "seconds": took, "first_seconds": 4.0, "metric": value, "error": None}
            runs += [{**one, "round": index} for index in range(2)]
    row = {"case": "vae", "revision": "abc", "patched": "search", "tools": ["autoopt", tool], "words": [], "runs": runs}
    return {"searches": searches, "judgements": [row]}


@pytest.mark.parametrize(
    ("found", "cell", "ahead"),
    [
        (document("tips", "result", 40.0), "0.50× [0.50, 0.50]", "4.00×"),
        (document("tips", "result", 5.0, metric=9.0), "metric lost (4.00× [4.00, 4.00])", "2.00×"),
        (document("tips", "nothing", None, patch=""), "no change", "2.00×"),
        (document("tips", "stopped", None, patch=""), "no result in time", "2.00×"),
        (document("tips", "cannot", None, patch=""), "cannot", "-"),
    ],
    ids=["a loss is told as a win", "another metric", "nothing", "stopped", "cannot"],
)
def test_a_result_is_told_as_it_is(found: dict[str, Any], cell: str, ahead: str) -> None:
    text = page.render(found)
    row = next(line for line in text.splitlines() if line.startswith("| vae |"))
    assert f"| vae | 2.00× [2.00, 2.00] | - | {cell} |" in row
    mean = next(line for line in text.splitlines() if line.startswith("| tips |"))
    assert mean.split(" | ")[2].startswith(ahead)
