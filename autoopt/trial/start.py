"""Two ways to start a trial: forked from a server that has torch imported, or as a fresh interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoopt.records import JsonDict
from autoopt.trial.channel import Channel, ChannelClosed, readable
from autoopt.trial.preloading import NVML, Imports

_ENTRY = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from {} import main; main({})"

SERVER = "autoopt.trial.server"
PRELOAD = b"p"
"""The order to the server to import libraries; it comes with a file that holds ``Imports``."""
READY = b"ready\n"
PRELOAD_SECONDS = 180.0
"""Imports that take longer, those of torch included, are given up."""

SUPERVISOR = "autoopt.trial.supervisor"


@dataclass
class Started:
    """The parent's hold on a trial: its ends of the two channels, and the process to collect, if any."""

    trial: socket.socket
    supervisor: socket.socket
    process: subprocess.Popen[bytes] | None = None


class ForkServer:
    """A process with torch imported from which trials are forked; started again when it is gone.

    Args:
        variables: of its environment, next to this process's: what torch reads as it is imported.

    Attributes:
        seen: what a trial has imported; None before one has reported.
        preloaded: whether it has imported that as well; None before it was asked to.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self.seen: Imports | None = None
        self.preloaded: bool | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the server unless it runs; does not wait for its imports."""
        if self.running:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {"PYTHONHASHSEED": "0", **os.environ, **self._variables, NVML: "1"}
            self._process = _python(SERVER, [theirs.fileno()], environment)
        self._end = ours

    def preload(self, seen: Imports) -> str:
        """Has the server import what a trial has imported from libraries; waits for it.

        Returns:
            why it serves without them, as a sentence; empty where it has them.
        """
        self.start()
        assert self._end is not None
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            file.write(seen.model_dump_json())
            file.seek(0)
            try:
                socket.send_fds(self._end, [PRELOAD], [file.fileno()])
                answered = readable([self._end], PRELOAD_SECONDS)
                said = self._end.recv(4096) if answered else b""
            except OSError:
                said = b""
        if not said:
            self.close()
            return "the server ended, or gave no answer, while it imported them"
        return "" if said == READY else said.decode("utf-8", "replace").strip()

    def fork(self, log: int, environment: dict[str, str], scratch: str) -> Started:
        """Starts a trial."""

        def forked(descriptors: list[int]) -> None:
            assert self._end is not None
            socket.send_fds(self._end, [b"+"], descriptors)

        for _ in range(2):
            self.start()
            try:
                return _started(forked, log, environment, scratch)
            except OSError:
                self.close()  # killed from outside: the next round starts another
        return fresh(log, environment, scratch)

    def close(self) -> None:
        if self._end is not None:
            self._end.close()
            self._end = None
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


_begun: list[ForkServer] = []
"""A server that runs already, for the launcher that is made first."""


def begin_server() -> None:
    """Starts a fork server whose imports go on while this process does its own; the first launcher takes it."""
    if sys.platform.startswith("linux") and not _begun:
        server = ForkServer()
        server.start()
        _begun.append(server)


def new_server() -> ForkServer | None:
    """The server that was begun, or one that is yet to start; None where trials cannot be forked."""
    if not sys.platform.startswith("linux"):
        return None
    return _begun.pop() if _begun else ForkServer()


def fresh(log: int, environment: dict[str, str], scratch: str, entry: str = SUPERVISOR) -> Started:
    """Starts a trial as a fresh interpreter, with its environment from the first instruction on.

    Args:
        entry: the module whose ``main`` supervises the trial.
    """
    return _started(lambda descriptors: _python(entry, descriptors, environment), log, environment, scratch)


def _started(
    begin: Callable[[list[int]], subprocess.Popen[bytes] | None], log: int, environment: dict[str, str], scratch: str
) -> Started:
    """Begins a trial with the descriptors of its channel, its supervisor's, and its log, and gives it its order."""
    trial, trial_theirs = socket.socketpair()
    supervisor, supervisor_theirs = socket.socketpair()
    with trial_theirs, supervisor_theirs:
        try:
            process = begin([trial_theirs.fileno(), supervisor_theirs.fileno(), log])
        except OSError:
            trial.close()
            supervisor.close()
            raise
    order: JsonDict = {"environment": environment, "scratch": scratch, "parent": os.getpid()}
    with contextlib.suppress(ChannelClosed):
        Channel(supervisor).send(order)
    return Started(trial, supervisor, process)


def interpreter(module: str, *arguments: int) -> list[str]:
    """The command that runs a module's ``main`` with the modules that are seen here, and no folder before them."""
    path = [os.path.abspath(folder) for folder in sys.path]
    entry = _ENTRY.format(module, ", ".join(map(str, arguments)))
    return [sys.executable, "-P", "-c", entry, json.dumps(path)]


def _python(module: str, descriptors: list[int], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        interpreter(module, *descriptors),
        pass_fds=descriptors,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=descriptors[2] if module != SERVER else subprocess.DEVNULL,
    )
