"""Exit codes, and what goes to which stream."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from autoopt.cli import group as cli_group
from autoopt.cli import main
from autoopt.errors import EnvironmentLacks, Interrupted, UsageError, WorkloadError
from modules import autoopt, run_python

Ended = Callable[[BaseException], tuple[int, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ended:
    """Exit code and standard error of a command that raises this; standard output stays empty."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(error: BaseException) -> tuple[int, str]:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(cli_group.LazyGroup, "get_command", lambda *_: click.Command("doctor", callback=fail))
        code = main(["doctor"])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return run


def missing(module: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named '{module}'", name=module)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        *((kind("bad", hint="do this"), kind.exit_code, ["autoopt: error: bad\n  do this\n"])
          for kind in (UsageError, WorkloadError, EnvironmentLacks, Interrupted)),
        (WorkloadError("its import failed", detail="Traceback ...\nValueError: theirs"), 3,
         ["autoopt: error: its import failed\n\nTraceback ...\nValueError: theirs\n"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
        (click.Abort(), 130, ["interrupted"]),
        (missing("wandb.x"), 4, ["wandb is not installed", "pip install 'torch-autoopt[wandb]'"]),
        (missing("line_profiler.x"), 4, ["line_profiler is not installed", "pip install 'torch-autoopt[profilers]'"]),
        (missing("numpy.x"), 4, ["numpy is not installed", "pip install 'numpy'"]),
        (missing("autoopt.nowhere"), 1, ["report it"]),
        *((SystemExit(given), code, []) for given, code in ((None, 0), (0, 0), (3, 3), ("text", 1))),
    ],
)  # fmt: skip
def test_an_error_becomes_one_message_and_its_code(
    ended: Ended, error: BaseException, code: int, told: list[str]
) -> None:
    """Codes as numbers: ``tests/test_public_surface.py``."""
    found, err = ended(error)
    assert found == code
    assert all(text in err for text in told)
    assert not told or not told[0].endswith("\n") or err == told[0]


def test_what_nobody_foresaw_is_an_own_error_with_a_way_to_report_it(ended: Ended, tmp_path: Path) -> None:
    code, err = ended(ZeroDivisionError("division\nby zero"))
    assert code == 1
    assert err.startswith("autoopt: error: autoopt failed: ZeroDivisionError: division by zero\n")
    assert "report it" in err
    assert "Traceback" not in err
    (kept,) = tmp_path.glob("autoopt-error-*")
    assert "Traceback" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_the_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch, ended: Ended) -> None:
    monkeypatch.setenv("AUTOOPT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        ended(ZeroDivisionError())
    code, err = ended(UsageError("bad"))
    assert code == 2
    assert "Traceback" in err


def test_control_characters_of_others_do_not_reach_the_terminal(ended: Ended) -> None:
    _, err = ended(UsageError("\x1b[31mred\u202e\r\nline", hint="\x07bell"))
    assert not {"\x1b", "\r", "\x07", "\u202e"} & set(err)
    assert err.count("\n") == 2


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Search:" in err
    assert "Traceback" not in err


HELP = "from autoopt.cli import main; code = main(['--help'])"
LISTS = "import autoopt; from autoopt.registry import load_strategies; autoopt.Plan; load_strategies(); code = 0"


@pytest.mark.parametrize(
    ("code", "heavy", "prints"),
    [(HELP, "torch numpy pydantic rich networkx jinja2", "optimize"), (LISTS, "torch", "")],
    ids=["help", "the facade and a list of strategies"],
)
def test_what_imports_little(code: str, heavy: str, prints: str) -> None:
    check = f"import sys\nheavy = set({heavy.split()}) & set(sys.modules)\nassert not heavy, heavy\nsys.exit(code)"
    assert prints in run_python("-c", f"{code}\n{check}").stdout


def test_it_runs_as_a_module() -> None:
    assert autoopt("--version").stdout.startswith("autoopt ")


@pytest.mark.parametrize(
    ("words", "prints"),
    [
        (["doctor"], "output.write_json([1])"),
        (["--help"], "None"),
        (["doctor"], "__import__('rich.console').console.Console().print('x')"),
    ],
)
def test_a_closed_pipe_ends_quietly(words: list[str], prints: str) -> None:
    script = (
        "import sys, click\n"
        "from autoopt.cli import entry, group, output\n"
        f"command = click.Command('doctor', callback=lambda: {prints})\n"
        "group.LazyGroup.get_command = lambda *_: command\n"
        f"sys.exit(entry.run({words}))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


def test_every_command_is_listed_with_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    listed = [line for line in out.split("Search:")[1].split("\n") if line.startswith("  ")]
    assert [line.split()[0] for line in listed] == list(cli_group.COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


@pytest.mark.parametrize("name", cli_group.COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: autoopt {name}" in out
    assert re.search(rf"Examples?:\n    autoopt {name}", out)
    command = cli_group.cli.get_command(click.Context(cli_group.cli), name)
    assert {option for p in command.params for option in p.opts[:1] if option.startswith("-")} <= set(out.split())


def test_a_json_document_is_ascii_and_strict(capsys: pytest.CaptureFixture[str]) -> None:
    from autoopt.cli.output import write_json

    write_json({"name": "é\u202e"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"name": "é\u202e"}
    with pytest.raises(ValueError, match="Out of range"):
        write_json({"x": float("nan")})
