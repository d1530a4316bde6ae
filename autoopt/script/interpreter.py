"""Runs a script in a process that has torch imported already, as an interpreter of its own would run it."""

from __future__ import annotations

import atexit
import importlib.machinery
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from types import ModuleType, TracebackType

from autoopt.script.boot import ScriptProcess
from autoopt.script.frames import is_users


def runs_here(command: Sequence[str]) -> bool:
    """Whether a command names a script or a module for this very interpreter, and gives it no options of its own."""
    words = command[1:]
    if command[0] != sys.executable or not words:
        return False
    return not words[0].startswith("-") or (words[0] == "-m" and len(words) > 1)


def folder_of(words: Sequence[str]) -> str:
    """The folder that the interpreter puts first on ``sys.path``: the script's own; for a module, the present one."""
    return os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.realpath(words[0]))


def run(words: Sequence[str], process: ScriptProcess) -> None:
    """Runs a script to its end, and then what it leaves to be done at the end of its interpreter.

    Args:
        words: of the command, behind the interpreter.
        process: which listens; it is told how the script ended.
    """
    error: BaseException | None = None
    try:
        _main(words)
    except SystemExit as left:
        error = left if left.code not in (None, 0) else None
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
    except BaseException as failed:
        failed.__traceback__ = _from_the_script_on(failed.__traceback__)
        sys.excepthook(type(failed), failed, failed.__traceback__)
        return  # the hook does not come back while the parent listens
    threading._shutdown()  # type: ignore[attr-defined]
    if error is None:
        atexit._run_exitfuncs()  # what the script has registered comes first, the listening's own end last
    process.end(error)


def _from_the_script_on(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without what ran the script; whole where none of it is the user's (a syntax error)."""
    inner = trace
    while inner is not None and not is_users(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return inner or trace


def _main(words: Sequence[str]) -> None:
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    file = os.path.abspath(words[0])
    sys.argv = list(words)
    main = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    main.__file__, main.__loader__, main.__builtins__ = file, loader, __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(loader.source_to_code(loader.get_data(file), file), main.__dict__)
