"""The user's command in a process that listens: interpreter, view of the folder, environment."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from autoopt.benchmark.libraries import is_users
from autoopt.errors import AutooptError
from autoopt.records import JsonDict, Plan, Sites
from autoopt.records.protocol import Rank, ScriptSpec, TrialSpec
from autoopt.records.writing import user_cache
from autoopt.registry import OURS
from autoopt.script.boot import Orders, ScriptProcess, listen
from autoopt.script.command import PASSED_ON, hooked
from autoopt.script.view import View, join_view, open_view
from autoopt.trial.channel import Channel
from autoopt.trial.failures import failure_of
from autoopt.trial.supervisor import supervise

VARIABLE = "AUTOOPT_SCRIPT"
PACKAGES = "AUTOOPT_PACKAGES"
"""Folders of autoopt's own packages, which alone are found in a script's process whatever its environment holds."""
SEED = "AUTOOPT_SEED"
"""Mixed with the seeds of a script to which nothing listens (``script.hook.seeds``)."""
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_MODE": "disabled",
}
"""Trackers that would tell the world of a training that is only a measurement."""
_END = b"\x04"
"""What a terminal sends where its user has no more to say: a read returns nothing."""


def runs_here(command: Sequence[str]) -> bool:
    """Whether a command names a script or a module for this very interpreter, and gives it no options of its own."""
    words = command[1:]
    if command[0] != sys.executable or not words:
        return False
    return not words[0].startswith("-") or (words[0] == "-m" and len(words) > 1)


def run(words: Sequence[str], process: ScriptProcess) -> None:
    """Runs a script to its end, and then what it leaves to be done at the end of its interpreter.

    Args:
        words: of the command, behind the interpreter.
        process: which listens; it is notified how the script ended.
    """
    error: BaseException | None = None
    try:
        _main(words)
    except SystemExit as left:
        error = left if left.code not in (None, 0) else None
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
    except BaseException as failed:
        inner = failed.__traceback__  # without what ran the script; whole where none is the user's (a syntax error)
        while inner is not None and not is_users(inner.tb_frame.f_code.co_filename):
            inner = inner.tb_next
        failed.__traceback__ = inner or failed.__traceback__
        sys.excepthook(type(failed), failed, failed.__traceback__)
        return  # the hook does not come back while the parent listens
    threading._shutdown()  # type: ignore[attr-defined]
    if error is None:
        atexit._run_exitfuncs()  # what the script has registered comes first, the listening's own end last
    process.end(error)


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


def main(trial: int, supervisor: int, log: int) -> NoReturn:
    """Supervises the trial of a script."""
    supervise(trial, supervisor, log, execute)


def execute(channel: Channel) -> None:
    """Becomes the command, once the parent has said which. Returns only where that is impossible, which it reports."""
    first = channel.receive()
    assert first is not None
    prepared = _prepared(first, channel)
    if prepared is None:
        return
    words, orders, environment = prepared
    os.set_inheritable(channel.fileno(), True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = orders.model_copy(update={"channel": channel.fileno(), "began": time.monotonic()})
    sys.stdout.flush()
    try:
        os.execvpe(words[0], words, listening(orders, {**os.environ, **environment}))
    except OSError as error:
        _tell(channel, error)


def run_here(channel: Channel, first: JsonDict) -> None:
    """Runs the script in this process, which was forked from one that has torch imported."""
    prepared = _prepared(first, channel)
    if prepared is None:
        return
    words, orders, environment = prepared
    os.environ.update(environment)
    assert orders.spec.script is not None
    gc.unfreeze()  # the script's own collections are to look at as much as in an interpreter of its own
    # first of all, as an interpreter has it: the script's own folder; for a module, the present one
    first_of_all = os.getcwd() if words[1] == "-m" else os.path.dirname(os.path.realpath(words[1]))
    sys.path[:] = [first_of_all, *(orders.spec.script.path or sys.path)]
    run(words[1:], listen(orders, channel))


def take_input(terminal: bool) -> None:
    """Puts an input that has ended in place of this process's: a terminal's where the user has one, else none."""
    if terminal:
        with contextlib.suppress(OSError):  # there is no further one on this system
            ours, theirs = os.openpty()
            os.set_inheritable(ours, True)  # which keeps the other end alive behind an exec
            termios.tcsetwinsize(theirs, (24, 80))
            os.write(ours, _END * 64)
            os.dup2(theirs, 0)
            os.close(theirs)
            return
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _prepared(first: JsonDict, channel: Channel) -> tuple[list[str], Orders, dict[str, str]] | None:
    """Opens the process's view of the user's folders; None where that is impossible, which the parent is notified.

    Returns:
        The command's words as this process has them, its orders, and the environment variables that it gets.
    """
    spec, scratch = TrialSpec.model_validate(first["spec"]), Path(tempfile.gettempdir())
    script = spec.script
    assert script is not None, "the trial of a script"
    try:
        view, words, environment = entered(script, spec.directory, scratch, spec.rank)
    except (AutooptError, OSError) as error:
        _tell(channel, error)
        return None
    writable = {"/tmp", "/var/tmp", "/dev", "/proc", "/sys", "/run", tempfile.gettempdir(), str(user_cache())}
    writable.update(script.shared, (view.path(os.path.realpath(folder)) for folder in script.folders))
    reported = bool(first.get("tell_imports"))
    return words, Orders(spec=spec, writable=tuple(sorted(writable)), tell_imports=reported), environment


def _tell(channel: Channel, error: BaseException) -> None:
    channel.send(failure_of(error, "start").model_dump())
    channel.receive()  # the parent ends this process


def entered(
    script: ScriptSpec, directory: str, scratch: Path, rank: Rank | None = None
) -> tuple[View, list[str], dict[str, str]]:
    """Makes this process the script's: it has its view of the folders, is in the script's, and its input has ended.

    Args:
        rank: of one of several processes, which share a view.

    Returns:
        The view, the command's words as this process has them, and the environment variables that it gets.
    """
    view = _opened(script, scratch) if rank is None else _open_together(script, scratch, rank)
    here = view.path(directory)
    os.chdir(here)
    words = [script.command[0], *(view.path(word) if os.path.isabs(word) else word for word in script.command[1:])]
    offline = {**OFFLINE, "MLFLOW_TRACKING_URI": f"file:{scratch / 'mlruns'}"}
    before = os.environ.get("PYTHONPATH")
    folders = [*map(view.path, script.python_path), *([before] if before else [])]
    path = {"PYTHONPATH": os.pathsep.join(folders)} if script.python_path else {}
    take_input(script.terminal)
    return view, words, {**offline, **path, "PWD": here}


def _opened(script: ScriptSpec, scratch: Path) -> View:
    """Gives this process its view of the script's folders, with the patched files in it."""
    view = open_view(script.folders, scratch, shared=script.shared)
    for path, text in script.patched.items():
        Path(view.path(path)).write_text(text, encoding="utf-8")
    return view


def _open_together(script: ScriptSpec, scratch: Path, rank: Rank) -> View:
    """One view for all processes of a launcher, and one folder for temporary files: what one writes another reads."""
    reported, temporary = Path(rank.folder, "view.json"), Path(rank.folder, "tmp")
    if rank.rank == 0:
        temporary.mkdir()
        view = _opened(script, scratch)
        part = reported.with_suffix(".part")
        part.write_text(json.dumps({"moved": view.moved, "pid": os.getpid()}))
        part.rename(reported)
    else:
        while not reported.exists():  # the parent ends this process where the first one fails
            time.sleep(0.01)
        document = json.loads(reported.read_text())
        view = View(document["moved"])
        join_view(view, document["pid"])
    os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None
    return view


def listening(orders: Orders, environment: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """An environment in which the next interpreter listens, and no other that it starts."""
    found = map(importlib.util.find_spec, OURS)
    folders = [os.path.dirname(each.origin) for each in found if each is not None and each.origin]
    installed = [file for each in distributions(name="torch-autoopt") for file in each.files or ()]
    folders += [str(Path(str(file.locate())).parent) for file in installed if file.name == "entry_points.txt"][:1]
    packages = os.pathsep.join(folders)
    return {**environment, **hooked(environment), PACKAGES: packages, VARIABLE: orders.model_dump_json()}


def seeded(seed: int, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which the next interpreter, and no other, mixes this seed into those that its script sets."""
    return {**environment, **hooked(environment), SEED: str(seed)}


def run_with_plan(
    script: ScriptSpec,
    plan: Plan,
    sites: Sites,
    *,
    strategies: Sequence[str] = (),
    env: Mapping[str, Any] | None = None,
) -> int:
    """Runs a command to its end with a plan put on it, in the present folder and on the terminal's own streams.

    Args:
        script: the command; of one that a launcher starts in several processes the launcher is run.
        sites: of the run that found the plan.
        strategies: import strings of custom ones in the plan.
        env: environment variables of the plan's setup, set before anything is imported.

    Returns:
        The command's exit code; of one that a signal ended, 128 and its number.
    """
    launch, command = script.launch, script.command
    spec = TrialSpec(
        workload=" ".join(command),
        plan=plan,
        strategies=tuple(strategies),
        directory=os.getcwd(),
        script=ScriptSpec(command=command, sites=sites),
    )
    own = dict(os.environ)
    if launch is not None and launch.size > 1:
        command = launch.command
        own[PASSED_ON] = "1"
    elif launch is not None:
        own |= launch.ranks[0]
    environment = listening(Orders(spec=spec), own) | {k: str(v) for k, v in (env or {}).items()}
    with subprocess.Popen(list(command), env=environment) as process:
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:  # the terminal's Ctrl-C reaches the script itself; it decides
                process.send_signal(signal.SIGINT)
