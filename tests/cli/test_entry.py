"""Exit codes, and what goes to which stream."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from autoopt.cli import group as cli_group
from autoopt.cli import main
from autoopt.errors import EnvironmentLacks, Interrupted, UsageError, WorkloadError


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes ``autoopt doctor`` raise."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli_group.LazyGroup, "get_command", lambda *_: click.Command("doctor", callback=fail))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("bad", hint="do this"), 2),
        (WorkloadError("bad", hint="do this"), 3),
        (EnvironmentLacks("bad", hint="do this"), 4),
        (Interrupted("bad", hint="do this"), 130),
    ],
)
def test_errors_become_one_message_and_their_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    raising(monkeypatch, error)
    assert main(["doctor"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "autoopt: error: bad\n  do this\n"


def test_a_longer_text_follows_after_a_blank_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, WorkloadError("its import failed", detail="Traceback ...\nValueError: theirs"))
    assert main(["doctor"]) == 3
    assert capsys.readouterr().err == "autoopt: error: its import failed\n\nTraceback ...\nValueError: theirs\n"


def test_what_nobody_foresaw_is_an_own_error_with_a_way_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raising(monkeypatch, ZeroDivisionError("division\nby zero"))
    assert main(["doctor"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("autoopt: error: autoopt failed: ZeroDivisionError: division by zero\n")
    assert "report it" in err
    assert "Traceback" not in err
    (kept,) = tmp_path.glob("autoopt-error-*")
    assert "Traceback" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_the_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AUTOOPT_DEBUG", "1")
    raising(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])
    raising(monkeypatch, UsageError("bad"))
    assert main(["doctor"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    raising(monkeypatch, error)
    assert main(["doctor"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "advice"),
    [("wandb", "torch-autoopt[wandb]"), ("line_profiler", "torch-autoopt[profilers]"), ("numpy", "numpy")],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str, advice: str
) -> None:
    raising(monkeypatch, ModuleNotFoundError(f"No module named '{package}.x'", name=f"{package}.x"))
    assert main(["doctor"]) == 4
    err = capsys.readouterr().err
    assert f"{package} is not installed" in err
    assert f"pip install '{advice}'" in err


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (0, 0), (3, 3), ("text", 1)])
def test_an_exit_of_others_keeps_its_code(monkeypatch: pytest.MonkeyPatch, code: object, expected: int) -> None:
    raising(monkeypatch, SystemExit(code))
    assert main(["doctor"]) == expected


def test_a_module_of_ours_that_is_missing_is_our_own_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raising(monkeypatch, ModuleNotFoundError("No module named 'autoopt.nowhere'", name="autoopt.nowhere"))
    assert main(["doctor"]) == 1


def test_control_characters_of_others_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, UsageError("\x1b[31mred\u202e\r\nline", hint="\x07bell"))
    main(["doctor"])
    err = capsys.readouterr().err
    assert not {"\x1b", "\r", "\x07", "\u202e"} & set(err)
    assert err.count("\n") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimise", "x:y"], "there is no command 'optimise'; did you mean optimize?"),
        (["qqq"], "there is no command 'qqq'; there are: optimize, profile"),
        (["optimize"], "nothing to train was named"),
        (["optimize", "a:b", "c"], "it takes no words of its own, got c"),
        (["optimize", "a:b", "--budgett", "2h"], "No such option '--budgett'"),
        (["optimize", "a:b", "--budget"], "requires an argument"),
        (["export", "run", "--to", "keras"], "'keras' is not one of"),
        (["export", "run"], "Missing option '--to'"),
        (["train", "a:b"], "Missing option '--plan'"),
        (["--nonsense"], "No such option '--nonsense'"),
    ],
)
def test_bad_words_are_usage(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("autoopt: error: ")
    assert "Traceback" not in err


def test_no_words_show_the_help_as_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Search:" in err


def test_help_imports_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys; from autoopt.cli import main; code = main(['--help']); "
        "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'networkx', 'jinja2'} & set(sys.modules); "
        "assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "optimize" in done.stdout


def test_the_facade_imports_no_torch() -> None:
    code = "import sys, autoopt; assert 'torch' not in sys.modules; autoopt.Plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autoopt", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("autoopt ")


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
    assert command is not None
    assert {option for p in command.params for option in p.opts[:1] if option.startswith("-")} <= set(out.split())


def test_a_json_document_is_ascii_and_strict(capsys: pytest.CaptureFixture[str]) -> None:
    from autoopt.cli.output import write_json

    write_json({"name": "é\u202e"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"name": "é\u202e"}
    with pytest.raises(ValueError, match="Out of range"):
        write_json({"x": float("nan")})
