"""Two ways to start a trial: forked from a server that has torch imported, or as a fresh interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from autoopt.records import JsonDict
from autoopt.trial.channel import Channel, ChannelClosed, pair

_ENTRY = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from {} import main; main({})"

SERVER = "autoopt.trial.server"
SUPERVISOR = "autoopt.trial.supervisor"


@dataclass
class Started:
    """The parent's hold on a trial: its ends of the two channels, and the process to collect, if any."""

    trial: socket.socket
    supervisor: socket.socket
    process: subprocess.Popen[bytes] | None = None

    def order_kill(self) -> None:
        """Closing the parent's end for writing is the supervisor's order; what it says can still be heard."""
        with contextlib.suppress(OSError):
            self.supervisor.shutdown(socket.SHUT_WR)

    def finish(self) -> None:
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)


class ForkServer:
    """A process with torch imported from which trials are forked; started again when it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None

    def start(self) -> None:
        """Starts the server unless it runs; does not wait for its imports."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = pair()
        with theirs:
            # NVML answers whether there is a device without touching it: a process that has cannot be forked
            environment = {"PYTHONHASHSEED": "0", **os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
            self._process = _python(SERVER, [theirs.fileno()], environment)
        self._end = ours

    def fork(self, log: int, environment: dict[str, str], scratch: str) -> Started:
        """Starts a trial.

        Args:
            log: descriptor of its log.
            environment: of the trial.
            scratch: its temporary folder.
        """
        for _ in range(2):
            self.start()
            assert self._end is not None
            trial, trial_theirs = pair()
            supervisor, supervisor_theirs = pair()
            try:
                socket.send_fds(self._end, [b"+"], [trial_theirs.fileno(), supervisor_theirs.fileno(), log])
            except OSError:
                trial.close()
                supervisor.close()
                self.close()  # killed from outside: the next round starts another
                continue
            finally:
                trial_theirs.close()
                supervisor_theirs.close()
            return _order(Started(trial, supervisor), environment, scratch)
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


def fresh(log: int, environment: dict[str, str], scratch: str, entry: str = SUPERVISOR) -> Started:
    """Starts a trial as a fresh interpreter, with its environment from the first instruction on.

    Args:
        entry: the module whose ``main`` supervises the trial.
    """
    trial, trial_theirs = pair()
    supervisor, supervisor_theirs = pair()
    with trial_theirs, supervisor_theirs:
        process = _python(entry, [trial_theirs.fileno(), supervisor_theirs.fileno(), log], environment)
    return _order(Started(trial, supervisor, process), environment, scratch)


def _python(module: str, descriptors: list[int], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """An interpreter that sees the modules that this one sees, with no folder slipped in front of them."""
    path = [os.path.abspath(folder) for folder in sys.path]
    entry = _ENTRY.format(module, ", ".join(map(str, descriptors)))
    return subprocess.Popen(
        [sys.executable, "-P", "-c", entry, json.dumps(path)],
        pass_fds=descriptors,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=descriptors[2] if module != SERVER else subprocess.DEVNULL,
    )


def _order(started: Started, environment: dict[str, str], scratch: str) -> Started:
    order: JsonDict = {"environment": environment, "scratch": scratch, "parent": os.getpid()}
    with contextlib.suppress(ChannelClosed):
        Channel(started.supervisor).send(order)
    return started
