"""Streams and colours."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoopt.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_when_there_are_colours(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], terminal: bool, expected: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert output.use_color(Terminal() if terminal else io.StringIO()) is expected


def test_prints_of_others_do_not_spoil_the_result() -> None:
    script = (
        "import os, subprocess, sys\n"
        "from autoopt.cli.output import stdout_kept, write_line\n"
        "with stdout_kept():\n"
        "    print('by python', flush=True)\n"
        "    os.write(1, b'by the system\\n')\n"
        "    subprocess.run(['echo', 'by a child'])\n"
        "write_line('the result')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "the result\n"
    assert done.stderr.splitlines() == ["by python", "by the system", "by a child"]


def test_standard_output_comes_back_after_an_error() -> None:
    before = sys.stdout
    with pytest.raises(ZeroDivisionError), output.stdout_kept():
        raise ZeroDivisionError
    assert sys.stdout is before
    os.fstat(1)


def test_a_result_can_be_written_in_any_encoding() -> None:
    script = "from autoopt.cli.output import write_line; write_line('\\udcff caf\\u00e9 \\u2713')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert done.stdout == b"\\udcff caf\\xe9 \\u2713\n"


def test_the_report_is_opened_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":1")
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    output.show(tmp_path / "a b.html")
    assert opened == [(tmp_path / "a b.html").as_uri()]


def test_without_a_screen_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("webbrowser.open", lambda url: pytest.fail("nothing can be opened here"))
    output.show(tmp_path / "report.html")
    assert "report.html" in capsys.readouterr().err
