"""Output streams: the result alone goes to standard output, everything else to standard error; exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from autoopt.options import Options

OWN_ERROR = 1
USAGE = 2
DOES_NOT_HOLD = 5
"""Measured, and what was required does not hold; undecided included."""
UNDECIDED, REFUSED = 6, 7
"""``judge``: more time may decide it; the candidate's speed is not believed."""
INTERRUPTED = 130
PIPE_CLOSED = 141
"""A shell's exit code of a process whose reader went away: 128 + SIGPIPE."""


def use_color(stream: TextIO) -> bool:
    """Whether a stream gets colours: ``NO_COLOR`` and ``TERM=dumb`` forbid, ``FORCE_COLOR`` wants them."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def printable(text: str) -> str:
    """Text without control characters: names come from users and must not drive the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text: str) -> None:
    """A line on standard error."""
    click.echo(printable(text), err=True, color=use_color(sys.stderr))


def say_error(message: str, *, hint: str = "", detail: str = "") -> None:
    """One clear message, what to do about it below, and any longer text after a blank line."""
    color = use_color(sys.stderr)
    first = "autoopt: error: "
    head = click.style(first, fg="red", bold=True) if color else first
    lines = [head + printable(" ".join(message.split("\n")))]
    lines += [f"  {line}" for line in printable(hint).splitlines()]
    if detail:
        lines += ["", printable(detail).rstrip()]
    click.echo("\n".join(lines).encode("utf-8", "backslashreplace").decode(), err=True, color=color)


def write_line(text: str) -> None:
    """A line of the result on standard output, whatever encoding the terminal has."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), color=use_color(sys.stdout))


def write_json(document: Any) -> None:
    """One JSON document on standard output: a record, or plain data."""
    data = document.model_dump() if hasattr(document, "model_dump") else document
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def answer(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """The result of a command: the document, or lines of text."""
    if as_json:
        write_json(document)
        return
    for line in lines:
        write_line(line)


def write_file(path: Path, text: str) -> None:
    """Writes a file that was asked for.

    Raises:
        EnvironmentLacks: it cannot be written there.
    """
    from autoopt.records.writing import writing  # local: the help needs no documents

    with writing(path):
        path.write_text(text, encoding="utf-8")


def progress(options: Options) -> Callable[[str], None]:
    """Reports a command's progress on standard error, a line at a time, none twice in a row; not where it is quiet."""
    last = [""]

    def report(text: str) -> None:
        if not options.quiet and text != last[0]:
            last[0] = text
            say(text)

    return report


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Sends whatever else writes to standard output to standard error.

    The user's modules and strategies may print; printing, at whatever level, must not spoil the result.
    """
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # standard output is closed: there is nothing to keep
        yield
        return
    python_stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout = python_stdout
        os.dup2(saved, 1)
        os.close(saved)


def silence_stdout() -> None:
    """After the reader went away: keeps Python's own flush at exit from complaining about the closed pipe."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError:
        return


def show(path: Path) -> None:
    """Opens a page in the user's browser; where there is no screen, says where the page is."""
    screen = sys.platform != "linux" or any(os.environ.get(v) for v in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if screen:
        import webbrowser

        if webbrowser.open(path.resolve().as_uri()):
            return
    say(f"no browser to open here; the report is {path}")
