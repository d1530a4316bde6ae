"""One process, one command: the one place where errors become a message and an exit code."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

import click
from click.exceptions import NoArgsIsHelpError
from click.shell_completion import shell_complete

from autoopt.cli.group import cli
from autoopt.cli.output import INTERRUPTED, OWN_ERROR, PIPE_CLOSED, USAGE, say_error, silence_stdout
from autoopt.errors import AutooptError, not_installed


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code of the contract; never raises but with ``AUTOOPT_DEBUG=1``."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _command(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        silence_stdout()
        return PIPE_CLOSED
    except SystemExit as left:  # rich's way out when the pipe is closed, and anybody's own exit
        return PIPE_CLOSED if isinstance(left.__context__, BrokenPipeError) else _code(left.code)
    except NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.ClickException as error:  # click's own complaints, in our form
        context = error.ctx if isinstance(error, click.UsageError) else None
        say_error(error.format_message(), hint=f"see {context.command_path} --help" if context else "")
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        say_error("interrupted")
        return INTERRUPTED
    except AutooptError as error:
        return _ours(error)
    except Exception as error:
        if _debugging():
            raise
        package = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        theirs = package and not package.startswith("autoopt")
        return _ours(not_installed(package)) if theirs else _unforeseen(error)


def _command(words: list[str]) -> int:
    """Runs the command; rather than click's own ``main``, which has exit codes of its own."""
    instruction = os.environ.get("_AUTOOPT_COMPLETE")
    if instruction:  # a shell asks for completions
        return shell_complete(cli, {}, "autoopt", "_AUTOOPT_COMPLETE", instruction)
    try:
        with cli.make_context("autoopt", words) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as done:  # after --help and --version
        return done.exit_code
    return code if isinstance(code, int) else 0


def _code(code: object) -> int:
    """As the interpreter reads an exit's argument: None is success, what is no number is a failure."""
    return code if isinstance(code, int) else int(code is not None)


def _debugging() -> bool:
    return os.environ.get("AUTOOPT_DEBUG", "") not in ("", "0")


def _ours(error: AutooptError) -> int:
    if _debugging():
        traceback.print_exc()
    say_error(error.message, hint=error.hint, detail=error.detail)
    return error.exit_code


def _unforeseen(error: Exception) -> int:
    """An error that nobody foresaw: the traceback goes to a private file, since a long run cannot be repeated."""
    summary = " ".join(str(error).split()) or "no message"
    try:
        handle, path = tempfile.mkstemp(prefix="autoopt-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(traceback.format_exc())
        where = f"the traceback is in {path}"
    except OSError:
        where = "AUTOOPT_DEBUG=1 shows the traceback"
    say_error(
        f"autoopt failed: {type(error).__name__}: {summary[:500]}",
        hint=f"this is an error of autoopt's own; {where}\n"
        "please report it together with the output of `autoopt doctor --json`; CONTRIBUTING.md says how",
    )
    return OWN_ERROR
