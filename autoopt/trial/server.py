"""The fork server: a process that has torch imported already and forks a supervisor for each trial.

It is not ``multiprocessing``'s: that one is a singleton of the process (the user's own code may be using
it), unpickles what it runs, and imports the caller's ``__main__`` again in every child. This one only
ever receives three descriptors and forks; it starts no thread, touches no device, and listens on nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
from typing import NoReturn

from autoopt.benchmark import affinity  # first of all: it knows the cores as they are before torch is imported
from autoopt.trial import child, supervisor, tree

PRELOADED = (
    "numpy",
    "torch",
    "torch.utils.data",
    "torch._dynamo",  # imported by the first optimizer that is made: half as long as torch itself
    "torch.profiler._cupti_monitor",  # by the first step of an optimizer
    "autoopt_strategies",
    "autoopt.registry",
    "autoopt.loading.validation",
    "autoopt.loading.importing",
    "autoopt.benchmark.trial_context",
    "autoopt.benchmark.tasks",
)


def main(descriptor: int) -> NoReturn:
    """Serves until the parent closes its end.

    Args:
        descriptor: a stream socket; each byte on it comes with the three descriptors of a trial.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors need no reaping
    tree.die_with_parent()  # while it imports it cannot see that its socket is closed
    preload()
    affinity.bind(affinity.AT_START)  # what the imports took away; a trial tells whether the workload's own do so too
    tree.die_with_parent(False)  # from here on the socket tells; the thread that started it may end
    gc.collect()
    gc.freeze()  # so that a collection in a trial does not touch, and copy, every page of the server
    with socket.socket(fileno=descriptor) as end:
        while True:
            data, descriptors, _, _ = socket.recv_fds(end, 1, 3)
            if not data:
                os._exit(0)
            _fork(end, descriptors)


def preload() -> None:
    """Imports what every trial would import; what fails here fails again in the trial, which says so."""
    for name in PRELOADED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _fork(end: socket.socket, descriptors: list[int]) -> None:
    if os.fork() == 0:
        end.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        trial, supervisors, log = descriptors
        supervisor.supervise(trial, supervisors, log, child.main)
    for each in descriptors:
        os.close(each)
