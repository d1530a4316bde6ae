"""The skill for coding agents: how to use the judge, written where each agent of a workspace reads it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from autoopt.errors import EnvironmentLacks, UsageError

SKILL = """\
Use `autoopt judge` before you keep an edit that should make a PyTorch training faster. Do not time runs yourself:
two runs of the same code differ by 5 to 20 %.

1. Commit the code as it is. Edit, one idea at a time.
2. `autoopt judge --baseline HEAD -- python train.py ARGS` (the words that the training is usually run with). It takes a
   minute (`--seconds 60`) and prints one line of JSON.
3. Act on the exit code:
   * 0 keep: faster, and the same training. Commit; that commit is the next baseline.
   * 5 discard: not faster, or it fails. Revert.
   * 6 undecided: `--seconds 180` may decide it, once. Else revert.
   * 7 refused: the edit leaves out work or changes the training. Revert, and read "reason".

"speedup" is [value, low, high]. "error" says what is left of the 5 % error that all asks share: do not ask again about
an edit that was answered. Do not delete the session or its ledger; never edit what measures.
An edit of the model, the batch size, the data or the seeds is another training: `autoopt optimize` decides it.
Where to look first: `autoopt profile -- python train.py ARGS`.
"""

_DESCRIPTION = "Judge edits that should make a PyTorch training faster: keep, discard, undecided or refused."
_BEGIN, _END = "<!-- autoopt: begin -->", "<!-- autoopt: end -->"

_MARKDOWN = f"---\nname: autoopt\ndescription: {_DESCRIPTION}\n---\n\n# autoopt\n\n{SKILL}"
_RULE = f"---\ndescription: {_DESCRIPTION}\nalwaysApply: false\n---\n\n{SKILL}"


@dataclass(frozen=True)
class Agent:
    """A coding agent: ``name``; folders and commands by which it is found; the file that it reads, and its text.

    ``text`` None: a section of a file that holds other instructions as well.
    """

    name: str
    folder: str
    command: str
    file: str
    text: str | None = None


AGENTS = (
    Agent("Claude Code", ".claude", "claude", ".claude/skills/autoopt/SKILL.md", _MARKDOWN),
    Agent("Cursor", ".cursor", "cursor", ".cursor/rules/autoopt.mdc", _RULE),
    Agent("Codex", ".codex", "codex", "AGENTS.md"),
    Agent("OpenCode", ".opencode", "opencode", "AGENTS.md"),
    Agent("Gemini CLI", ".gemini", "gemini", "GEMINI.md"),
)


def found(workspace: Path, home: Path) -> list[Agent]:
    """The agents that are used here: a folder of theirs in the workspace or the home, or a command."""
    folders = (workspace, home)
    return [
        agent
        for agent in AGENTS
        if any((folder / agent.folder).is_dir() for folder in folders) or shutil.which(agent.command)
    ]


def install(workspace: Path, home: Path) -> list[tuple[str, Path]]:
    """Writes the skill for each agent that is found; what is there of other text stays.

    Returns:
        the agents' names with the files.

    Raises:
        EnvironmentLacks: no agent is found, or a file cannot be written.
        UsageError: the workspace is no folder.
    """
    if not workspace.is_dir():
        raise UsageError(f"there is no folder {workspace}", hint="autoopt mcp --install --workspace DIR")
    agents = found(workspace, home)
    if not agents:
        known = ", ".join(f"{agent.name} ({agent.folder})" for agent in AGENTS)
        raise EnvironmentLacks(f"no coding agent was found for {workspace}", hint=f"make the folder of one: {known}")
    written = []
    for agent in agents:
        path = workspace / agent.file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(agent.text or _with_section(path), encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EnvironmentLacks(f"cannot write {path}: {error}") from None
        written.append((agent.name, path))
    return written


def _with_section(path: Path) -> str:
    """The file's text with autoopt's section, in the place of an older one."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    section = f"{_BEGIN}\n## autoopt\n\n{SKILL}{_END}\n"
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if begin and end:
        return before + section + after.removeprefix("\n")
    return f"{text.rstrip()}\n\n{section}".lstrip()
