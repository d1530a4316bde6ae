"""The skill for coding agents: written for those that are found, beside what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.cli import main
from autoopt.toolserver import skill


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace of a user without any agent."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(skill.shutil, "which", lambda name: None)
    workspace = tmp_path / "work"
    workspace.mkdir()
    return workspace


def test_it_is_written_for_the_agents_that_are_found(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nowhere / ".claude").mkdir()
    (nowhere / ".codex").mkdir()
    (nowhere / "AGENTS.md").write_text("# Ours\n\nUse tabs.\n")
    for _ in range(2):
        assert main(["mcp", "--install", "--workspace", str(nowhere)]) == 0
    wrote = capsys.readouterr().out.splitlines()
    file = nowhere / ".claude/skills/autoopt/SKILL.md"
    assert wrote[:2] == [f"Claude Code: wrote {file}", f"Codex: wrote {nowhere / 'AGENTS.md'}"]
    assert file.read_text().startswith("---\nname: autoopt\n")
    section = (nowhere / "AGENTS.md").read_text()
    assert section.startswith("# Ours\n\nUse tabs.\n")
    assert section.count("autoopt judge --baseline HEAD") == 1
    assert not (nowhere / "GEMINI.md").exists()


def test_no_agent_is_said(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--install", "--workspace", str(nowhere)]) == 4
    assert "no coding agent was found" in capsys.readouterr().err
    assert list(nowhere.iterdir()) == []
    assert main(["mcp", "--install", "--workspace", str(nowhere / "missing")]) == 2
