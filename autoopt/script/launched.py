"""Scripts that a launcher starts in several processes (torchrun, accelerate): asked once which, and how each is run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from autoopt.errors import UsageError, WorkloadError
from autoopt.script import hook
from autoopt.trial.protocol import Launch

HOOK = str(Path(hook.__path__[0]))
ASKED = "AUTOOPT_LAUNCH_ASKED"
PASSED_ON = "AUTOOPT_PASSED_ON"
"""Set for a launcher: it is not listened to, the processes that it starts are."""

ASK_SECONDS = 120.0
_COMMANDS = ("torchrun", "accelerate", "accelerate-launch")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_SEVERAL_MACHINES = re.compile(r"--(?:nnodes|num[_-]machines)(?:=|$)")
_OF_THE_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_GONE = ("TORCHELASTIC_ERROR_FILE", "TMPDIR", "PYTHONPATH", "_", "SHLVL", "PWD", "OLDPWD")
"""Variables that a launcher sets and that hold for its own run alone."""
_HINT = "such as: autoopt optimize -- torchrun --standalone --nproc-per-node 2 train.py"


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a command is one of a launcher that starts training processes."""
    first = os.path.basename(words[0]) if words else ""
    if first in _COMMANDS:
        return first != "accelerate" or "launch" in words[1:2]
    return first.startswith("python") and any(word == "-m" and after in _MODULES for word, after in pairwise(words))


def launcher_of(words: Sequence[str]) -> tuple[str, ...]:
    """A launcher's command with the program found.

    Raises:
        UsageError: there is none, or it is told to start processes on several machines.
    """
    found = shutil.which(words[0])
    if found is None:
        raise UsageError(f"there is no {words[0]} on the path", hint=_HINT)
    for word, after in zip(words, (*words[1:], ""), strict=True):
        if word.endswith(".py"):
            break  # what follows is the script's own
        given = _SEVERAL_MACHINES.match(word)
        count = word.partition("=")[2] or after
        if given and count not in ("1", "1:1"):
            raise UsageError(
                f"{given.group().rstrip('=')} {count}: a training on several machines cannot be frozen and compared",
                hint="measure it on one machine: what is found there holds for each",
            )
    return (found, *words[1:])


def asked(command: Sequence[str], folder: Path) -> tuple[tuple[str, ...], Launch]:
    """Starts a launcher once, so that it tells the processes that it would start; they end before their first line.

    Args:
        command: the launcher's, as ``launcher_of`` gave it.
        folder: where it runs.

    Returns:
        the command that each of the processes runs, the interpreter first, and what tells them apart.

    Raises:
        WorkloadError: it starts none, not all of them here, or different ones.
    """
    with tempfile.TemporaryDirectory(prefix="autoopt-") as place:
        log = Path(place, "log")
        how = _run(command, folder, Path(place), log)
        told = [json.loads(file.read_text()) for file in sorted(Path(place).glob("*.json"))]
        said = log.read_text(errors="replace")[-4000:].rstrip()
    if not told:
        raise WorkloadError(
            f"{os.path.basename(command[0])} started no Python process ({how})", hint=_HINT, detail=said
        )
    told.sort(key=lambda process: int(process["variables"].get("RANK", "0")))
    words, *others = [tuple(process["words"]) for process in told]
    size = int(told[0]["variables"].get("WORLD_SIZE", "1"))
    if size != len(told):
        raise WorkloadError(f"of {size} processes {len(told)} were started on this machine ({how})", detail=said)
    if any(other != words for other in others):
        raise WorkloadError("the processes run different commands, so that their steps cannot be compared")
    return words, Launch(ranks=tuple(_variables(process) for process in told), command=tuple(command))


def _run(command: Sequence[str], folder: Path, place: Path, log: Path) -> str:
    """Runs the launcher to its end, which is told."""
    own = {name: value for name, value in os.environ.items() if name not in _OF_THE_PLACE}
    path = os.pathsep.join([HOOK, *filter(None, [own.get("PYTHONPATH")])])
    environment = {**own, "PYTHONPATH": path, "TMPDIR": str(place), ASKED: str(place)}
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            return f"exit code {process.wait(ASK_SECONDS)}"
        except subprocess.TimeoutExpired:
            return f"stopped after {ASK_SECONDS:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _variables(process: dict[str, Any]) -> dict[str, str]:
    """The variables that the launcher has set for a process, or changed; the first rank holds the store itself."""
    given: dict[str, str] = process["variables"]
    found = {
        name: value
        for name, value in given.items()
        if os.environ.get(name) != value and name not in _GONE and not name.startswith("AUTOOPT_")
    }
    if process["unbuffered"]:
        found["PYTHONUNBUFFERED"] = "1"
    if "TORCHELASTIC_USE_AGENT_STORE" in found:
        found["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    return found
