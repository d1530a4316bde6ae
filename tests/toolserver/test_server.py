"""The server of tools, asked by the SDK's own client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from autoopt.records import Change, Estimate, Prediction
from autoopt.toolserver.commands import Commands
from autoopt.toolserver.workspace import Workspace
from sample import profile, win
from tests.comparing.conftest import a_comparison, slow_script

COMPARED = a_comparison(
    answer="faster", throughput=Estimate(value=1.2, low=1.1, high=1.3, n=4), metric="val acc", metric_difference=-0.01
)
TOOLS = {"profile", "opportunities", "compare", "judge", "apply", "report"}


class Asked(Commands):
    """Answers with documents that are there, and keeps the words that it was asked for."""

    def __init__(self, workspace: Workspace, answers: dict[str, str]) -> None:
        super().__init__(workspace)
        self.answers, self.words = answers, list[list[str]]()

    async def text(self, words: Any, report: Any) -> str:
        self.words.append(list(words))
        await report(f"{words[0]} begins")
        return self.answers[words[0]]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "train.py").touch()
    run = tmp_path / "autoopt-runs" / "one"
    run.mkdir(parents=True)
    (run / "result.json").write_text(win().model_dump_json())
    found = profile()
    gains = [("workers", 1.5, "train.py", 4), ("amp", 2.5, "train.py", 9), ("compile", 1.1, None, None)]
    predictions = [
        Prediction(strategy=name, predicted=Estimate(value=gain, low=1.0, high=gain, n=1), file=file, line=line)
        for name, gain, file, line in gains
    ]
    refused = Prediction(strategy="fused_optimizer", applies=False, reason="the optimizer has no fused form")
    document = found.model_copy(update={"predictions": (*predictions, refused)})
    other = tmp_path / "autoopt-runs" / "profiled"
    other.mkdir()
    (other / "profile.json").write_text(document.model_dump_json())
    return Workspace(tmp_path)


def session(
    workspace: Workspace, work: Callable[[Any], Awaitable[Any]], commands: Commands | None = None, mode: str = "auto"
) -> Any:
    mcp = pytest.importorskip("mcp")
    from autoopt.toolserver.server import make_server

    async def main() -> Any:
        async with mcp.Client(make_server(workspace, commands), mode=mode) as client:
            return await work(client)

    return anyio.run(main)


def called(workspace: Workspace, commands: Commands | None, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The answers of tools."""

    async def work(client: Any) -> Any:
        return [await client.call_tool(tool, arguments) for tool, arguments in calls]

    return list(session(workspace, work, commands))


def content(result: Any) -> Any:
    assert not result.is_error, result.content[0].text
    return result.structured_content


def test_the_tools_are_told_with_their_arguments(workspace: Workspace) -> None:
    async def work(client: Any) -> Any:
        return (await client.list_tools()).tools

    found = {tool.name: tool for tool in session(workspace, work)}
    assert found.keys() == TOOLS
    assert all(tool.description for tool in found.values())
    assert set(found["compare"].input_schema["required"]) == {"target"}
    assert "ctx" not in found["compare"].input_schema["properties"]
    assert found["opportunities"].annotations.read_only_hint


def test_a_call_is_a_command_with_progress_and_a_short_answer(workspace: Workspace) -> None:
    asked = Asked(workspace, {"profile": profile().model_dump_json(), "compare": COMPARED.model_dump_json()})
    lines: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        lines.append(f"{message} of {total}")

    async def work(client: Any) -> Any:
        one = await client.call_tool("profile", {"target": "train.py", "words": ["--epochs", "3"], "budget": "30s"})
        change = {"strategy": "workers", "setting": {"num_workers": 1}}
        arguments = {"target": "train.py", "changes": [change], "require": "faster", "ledger": "asks.jsonl"}
        return one, await client.call_tool("compare", arguments, progress_callback=note)

    profiled, compared = map(content, session(workspace, work, asked))
    assert asked.words[0] == ["profile", "--budget=30s", "--json", "train.py", "--", "--epochs", "3"]
    assert profiled["stages"]
    (candidate,) = (word for word in asked.words[1] if word.startswith("--candidate="))
    plan = json.loads((workspace.root / candidate.removeprefix("--candidate=")).read_text())
    assert plan["changes"] == [{"strategy": "workers", "setting": {"num_workers": 1}}]
    assert f"--ledger={workspace.root / 'asks.jsonl'}" in asked.words[1]
    assert compared["answer"] == "faster"
    assert compared["speedup_of_a_step"]["low"] == 1.1
    assert (compared["metric"]["name"], compared["metric"]["difference"]) == ("val acc", -0.01)
    assert lines == ["compare begins of 300.0"]


def test_opportunities_are_ranked_with_file_and_line(workspace: Workspace) -> None:
    (found,) = map(content, called(workspace, None, ("opportunities", {"run": "autoopt-runs/profiled"})))
    assert [each["strategy"] for each in found["changes"]] == ["amp", "workers", "compile"]
    assert (found["changes"][0]["file"], found["changes"][0]["line"]) == ("train.py", 9)
    assert found["changes"][0]["predicted"]["value"] == 2.5
    assert found["not_worth_trying"] == [{"strategy": "fused_optimizer", "reason": "the optimizer has no fused form"}]


def test_a_report_is_told_of_a_run_and_of_a_profile(workspace: Workspace) -> None:
    asked = Asked(workspace, {"report": "autoopt-runs/one/report.html\n"})
    runs = [("report", {"run": run}) for run in ("autoopt-runs/one", "autoopt-runs/profiled")]
    one, other = map(content, called(workspace, asked, *runs))
    assert one["page"] == "autoopt-runs/one/report.html"
    assert one["kept"] == [Change.model_validate(each).model_dump() for each in one["kept"]] != []
    assert other["stages"]


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("profile", {"target": "../secret.py"}, "lies outside of the workspace"),
        ("profile", {"target": "train.py", "words": ["--data=/etc"]}, "names a file outside"),
        ("profile", {"target": "train.py", "budget": "5"}, "5"),
        ("compare", {"target": "train.py", "candidate": "python other.py"}, "is no side"),
        ("compare", {"target": "train.py", "candidate": "HEAD", "ledger": "/tmp/asks"}, "lies outside"),
        ("opportunities", {"run": "/tmp"}, "lies outside"),
        ("opportunities", {"run": "autoopt-runs/none"}, "there is no autoopt-runs/none"),
        ("apply", {"run": ".."}, "lies outside"),
        ("report", {"run": "../other"}, "lies outside"),
    ],
)
def test_what_is_refused_is_said_and_nothing_is_run(
    workspace: Workspace, tool: str, arguments: dict[str, Any], said: str
) -> None:
    asked = Asked(workspace, {})
    (result,) = called(workspace, asked, (tool, arguments))
    assert result.is_error
    assert said in result.content[0].text
    assert asked.words == []


def test_the_judge_answers_whatever_its_verdict_is(workspace: Workspace) -> None:
    """The words are those of the command; a verdict that is no ``keep`` has an exit code of its own."""
    script = "import json, sys; print(json.dumps({'verdict': 'refused', 'words': sys.argv[1:]})); sys.exit(7)"
    commands = Commands(workspace, (sys.executable, "-c", script))
    judged = ("judge", {"target": "train.py", "words": ["3"], "seconds": 30, "head": "ab12"})
    (found,) = map(content, called(workspace, commands, judged))
    assert found["verdict"] == "refused"
    options = ["--baseline=HEAD", "--candidate=.", "--head=ab12", "--seconds=30"]
    assert found["words"] == ["judge", *options, "train.py", "--", "3"]


def test_no_module_of_the_workspace_takes_the_place_of_an_installed_one(workspace: Workspace) -> None:
    (workspace.root / "click.py").write_text("raise SystemExit('a file of the candidate was imported')")

    async def version() -> str:
        async def report(line: str) -> None:
            """Nobody listens."""

        return await Commands(workspace).text(["--version"], report)

    assert anyio.run(version)


ENDLESS = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("stopped").touch()
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("it has begun", file=sys.stderr, flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_call_that_nobody_waits_for_ends_its_command(workspace: Workspace) -> None:
    commands = Commands(workspace, (sys.executable, "-c", ENDLESS))

    async def work(client: Any) -> None:
        with anyio.CancelScope() as scope:

            async def note(progress: float, total: float | None, message: str | None) -> None:
                assert message == "it has begun"
                scope.cancel()

            await client.call_tool("profile", {"target": "train.py"}, progress_callback=note)
        assert scope.cancelled_caught
        with anyio.fail_after(30):
            while not (workspace.root / "stopped").exists():
                await anyio.sleep(0.01)

    session(workspace, work, commands, mode="legacy")


def test_an_error_of_a_command_is_told_as_it_is(workspace: Workspace) -> None:
    failing = "import sys; print('autoopt: error: the baseline fails', file=sys.stderr); sys.exit(3)"
    commands = Commands(workspace, (sys.executable, "-c", failing))
    (result,) = called(workspace, commands, ("profile", {"target": "train.py"}))
    assert result.is_error
    assert "the baseline fails" in result.content[0].text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_diagnosis_to_an_applied_patch(tmp_path: Path) -> None:
    """A client on stdio profiles a script, takes the best change that is a patch, has it judged, and puts it on."""
    mcp = pytest.importorskip("mcp")
    script = slow_script()
    (tmp_path / "train.py").write_text(script)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    words = {"target": "train.py", "words": ["100000"]}
    lines: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        lines.append(message or "")

    async def main() -> None:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "autoopt", "mcp", "--workspace", str(tmp_path)]
        )
        async with mcp.Client(mcp.stdio_client(server)) as client:

            async def ask(tool: str, **arguments: Any) -> Any:
                return content(await client.call_tool(tool, arguments, progress_callback=note))

            profiled = await ask("profile", **words, budget="30s")
            names = {each["stage"] for each in profiled["stages"]}
            assert "preparation" in names
            assert profiled["bottleneck"] in {*names, None}, "which one it is depends on what else the machine does"
            assert {site["kind"] for site in profiled["sites"]} >= {"loader_training", "model", "optimizer"}
            found = await ask("opportunities", run=profiled["run"])
            able = [each for each in found["changes"] if each["how"] == "patched"]
            best = next(each for each in able if each["strategy"] == "workers")
            assert (best["file"], best["line"]) == ("train.py", script[: script.index("loader =")].count("\n") + 1)
            assert best["predicted"] is None or best["predicted"]["value"] > 1.0
            changes = [{"strategy": best["strategy"], "setting": best["setting"]}]
            judged = await ask("compare", **words, changes=changes, budget="40s", ledger="asks.jsonl")
            assert judged["quality"] == "identical", judged
            assert judged["answer"] in ("faster", "slower", "no_difference", "undecided"), judged
            applied = await ask("apply", run=profiled["run"], changes=changes)
            assert applied["files"] == ["train.py"]
            assert "num_workers=" in (tmp_path / "train.py").read_text()
            await ask("apply", run=profiled["run"], changes=changes, revert=True)
            assert (tmp_path / "train.py").read_text() == script

    anyio.run(main)
    assert any("comparing in pairs" in line for line in lines)
