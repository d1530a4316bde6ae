"""Commands with a time limit, whose whole process tree ends with them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.fetching import SITE
from benchmarks.peers.workloads import Workload

GRACE = 20.0
"""Seconds that a tool gets after its budget, from the first interrupt, to write down what it has."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended. ``stopped``: at its limit."""

    code: int
    seconds: float
    stopped: bool
    said: str


def environment(workload: Workload, folder: Path, **more: str) -> dict[str, str]:
    """The environment of every run of a script in ``folder``: what its repository wants on the path, and no network."""
    folders = [str(SITE)]
    if workload.path is not None:
        root = folder.resolve().parents[len(Path(workload.folder).parts) - 1] if workload.folder != "." else folder
        folders.append(str(root / workload.path))
    folders = [*more.pop("first", "").split(os.pathsep), *folders]
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    return {**os.environ, **offline, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **more}


def _end_with_parent() -> None:
    """In the child: it is killed when the harness is, instead of training on beside what is measured next."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], log: Path, limit: float, gentle: bool = False
) -> Ran:
    """Runs a command to its end or its limit; ``gentle``: it is interrupted first, as a user would."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        stopped = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            stopped = True
            if gentle:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    said = log.read_text(encoding="utf-8", errors="replace")
    return Ran(code, time.monotonic() - began, stopped, said[-2000:])
