"""The tools of ``autoopt mcp``, on the official SDK of the Model Context Protocol."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

import autoopt
from autoopt.comparing.ask import TODAY, Ask, requirement_of
from autoopt.errors import AutooptError
from autoopt.options.parsers import parse_duration
from autoopt.records import Change, JsonDict, PlanDocument, Profile
from autoopt.records.comparing import Compared
from autoopt.records.reading import PROFILE_FILE, RESULT_FILE, read_document, read_result
from autoopt.toolserver import answers
from autoopt.toolserver.commands import Commands, Report
from autoopt.toolserver.workspace import Workspace

INSTRUCTIONS = """Measures PyTorch training runs in one workspace and judges changes to them.
profile a script (train.py with its words) or a function (job.py:build) first; opportunities ranks what could be
changed, with predicted gains and file:line; compare measures a change (a plan, a patch, a revision, or the files as
they are now) against a baseline and is never passed by chance: "undecided" is no pass; judge does the same in a loop of
edits, in a minute each: keep, discard, undecided or refused; apply puts changes on the script's files, and takes them
off again with revert. Calls take as long as their budget; they report progress and can be cancelled."""

P = ParamSpec("P")
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def make_server(workspace: Workspace, commands: Commands | None = None) -> MCPServer[Any]:
    """A server whose tools work in the workspace and nowhere else.

    Args:
        workspace: the folder.
        commands: runs autoopt's commands.
    """
    server: MCPServer[Any] = MCPServer("autoopt", instructions=INSTRUCTIONS, version=autoopt.__version__)
    tools = _Tools(workspace, commands or Commands(workspace))
    for tool, hints in (
        (tools.profile, _RUNS),
        (tools.opportunities, _READS),
        (tools.compare, _RUNS),
        (tools.judge, _RUNS),
        (tools.apply, _WRITES),
        (tools.report, _RUNS),
    ):
        server.add_tool(tool, annotations=hints, structured_output=True)
    return server


def _with_errors(tool: Callable[P, Awaitable[JsonDict]]) -> Callable[P, Awaitable[JsonDict]]:
    """The tool; an error of autoopt's is reported as it is, with what to do."""

    @functools.wraps(tool)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> JsonDict:
        try:
            return await tool(*args, **kwargs)
        except AutooptError as error:
            raise ToolError("\n".join(filter(None, (error.message, error.hint)))) from None

    return wrapped


def _options(**given: object) -> list[str]:
    """Options of a command line; those without a value are left out."""
    return [f"--{name}={value}" for name, value in given.items() if value]


class _Tools:
    """The tools; their docstrings are what a client reads."""

    def __init__(self, workspace: Workspace, commands: Commands) -> None:
        self._workspace, self._commands = workspace, commands

    @_with_errors
    async def profile(
        self, target: str, ctx: Context, words: list[str] | None = None, budget: str = "2m", metric: str | None = None
    ) -> dict[str, Any]:
        """Measure where a training's time goes, stage by stage, with the ceiling of each. Changes nothing.

        target: a script (train.py), a module ("-m pkg.train") or a function (job.py:build), in the workspace.
        words: the script's own words, such as ["--epochs", "10"]. budget: such as 2m. metric: the pattern by which
        the script prints its metric, with one group for the number. Returns the run to pass to opportunities.
        """
        options = _options(budget=budget, metric=metric)
        named = self._workspace.workload(target, words or [])
        document = await self._commands.json(["profile", *options, "--json", *named], self._report(ctx, budget))
        return answers.profiled(Profile.model_validate(document))

    @_with_errors
    async def opportunities(self, run: str) -> dict[str, Any]:
        """Rank what could make a profiled training faster: predicted gain, file and line, and what a user must do.

        run: as profile returned it. Predictions are upper bounds: measure with compare before believing one.
        """
        return answers.opportunities(self._profile(run))

    @_with_errors
    async def compare(
        self,
        target: str,
        ctx: Context,
        words: list[str] | None = None,
        baseline: str = TODAY,
        candidate: str = TODAY,
        changes: list[Change] | None = None,
        require: str | None = None,
        ledger: str | None = None,
        budget: str = "5m",
        metric: str | None = None,
    ) -> dict[str, Any]:
        """Judge whether a candidate trains faster than a baseline, and the same. Timed from outside of both.

        target, words, metric: as for profile. baseline, candidate: a git revision (HEAD~1), a plan (.json), a patch
        (.diff), a run, or "." for the files as they are now. changes: instead of a candidate, changes as opportunities
        returns them ({"strategy", "setting"}), put on without touching a file. require: "faster" or "not-slower=3%",
        with ledger: a file in the workspace that spends one error budget over all asks. Answers faster, not_slower,
        slower, no_difference, undecided (no pass), failed or refused.
        """
        other = str(self._plan(changes).relative_to(self._workspace.root)) if changes else candidate
        ask = Ask(
            self._workspace.side(baseline),
            self._workspace.side(other),
            requirement_of(require) if require else None,
            self._workspace.path(ledger) if ledger else None,
        )
        options = _options(**ask.given(budget=budget, metric=metric))
        named = self._workspace.workload(target, words or [])
        document = await self._commands.json(["compare", *options, "--json", *named], self._report(ctx, budget))
        return answers.compared(Compared.model_validate(document))

    @_with_errors
    async def judge(
        self,
        target: str,
        ctx: Context,
        words: list[str] | None = None,
        baseline: str = "HEAD",
        candidate: str = TODAY,
        seconds: float = 60.0,
        head: str | None = None,
    ) -> dict[str, Any]:
        """Decide whether to keep an edit, in a loop of edits: keep, discard, undecided or refused.

        target, words, baseline, candidate: as for compare. The first call measures the baseline, later ones use that
        again; all share an error of 5 %. Commit before an edit, and after a keep. head: of the last answer.
        """
        ask = Ask(self._workspace.side(baseline), self._workspace.side(candidate), head=head)
        options = _options(**ask.given(seconds=f"{seconds:g}"))
        named = self._workspace.workload(target, words or [])
        verdict: JsonDict = await self._commands.json(["judge", *options, *named], self._report(ctx, f"{seconds}s"))
        return verdict

    @_with_errors
    async def apply(
        self, run: str, ctx: Context, changes: list[Change] | None = None, revert: bool = False
    ) -> dict[str, Any]:
        """Put changes on the script's own files, or take them off again: all of them or none.

        run: of a profile, with the changes to make; or of a finished autoopt optimize, whose patch is put on where
        changes is left out. revert: take off what was put on with the same arguments. Returns the files.
        """
        folder = self._workspace.existing(run)
        plan = [f"--plan={self._plan(changes, folder)}"] if changes else []
        words = ["revert" if revert else "apply", *plan, str(folder)]
        files = await self._commands.text(words, self._report(ctx))
        return {"files": files.split("\n")[:-1], "reverted": revert}

    @_with_errors
    async def report(self, run: str, ctx: Context) -> dict[str, Any]:
        """Tell the verdict of a finished run (or the profile of a profiled one), and where its page lies."""
        folder = self._workspace.existing(run)
        if not (folder / RESULT_FILE).exists():
            page = folder / "profile.html"
            return {"page": str(page) if page.exists() else None, **answers.profiled(self._profile(run))}
        page = Path((await self._commands.text(["report", str(folder)], self._report(ctx))).strip())
        return answers.reported(read_result(folder), str(page))

    def _profile(self, run: str) -> Profile:
        folder = self._workspace.existing(run)
        return read_document(folder / PROFILE_FILE if folder.is_dir() else folder, Profile)

    def _plan(self, changes: list[Change], folder: Path | None = None) -> Path:
        """A file with these changes, named by what they are, so that the same ones are found again."""
        document = PlanDocument(changes=tuple(changes))
        place = folder or self._workspace.root / "autoopt-runs" / "asked"
        place.mkdir(parents=True, exist_ok=True)
        digits = hashlib.sha256(document.model_dump_json().encode()).hexdigest()[:8]
        file = place / f"plan-{digits}.json"
        file.write_text(document.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return file

    @staticmethod
    def _report(ctx: Context, budget: str | None = None) -> Report:
        began, total = time.monotonic(), parse_duration(budget) if budget else None

        async def report(line: str) -> None:
            await ctx.report_progress(time.monotonic() - began, total, line)

        return report
