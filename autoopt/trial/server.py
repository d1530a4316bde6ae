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
from autoopt.benchmark.cputime import descendants
from autoopt.trial import child, preloading, supervisor, tree
from autoopt.trial.channel import Channel
from autoopt.trial.start import PRELOAD, READY

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
        descriptor: a stream socket; each byte on it comes with the three descriptors of a trial, or is ``PRELOAD``.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors need no reaping
    tree.die_with_parent()  # while it imports it cannot see that its socket is closed
    for name in PRELOADED:  # what every trial would import; what fails here fails again in the trial, which says so
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    affinity.bind(affinity.AT_START)  # what the imports took away; a trial shows whether the workload's own do so too
    tree.die_with_parent(False)  # from here on the socket reports; the thread that started it may end
    gc.collect()
    gc.freeze()  # so that a collection in a supervisor does not touch, and copy, every page of the server
    with socket.socket(fileno=descriptor) as end:
        _serve(end, {})


def _serve(end: socket.socket, variables: dict[str, str]) -> NoReturn:
    """Forks a supervisor for each trial that is asked for.

    Args:
        variables: environment variables that importing libraries has set, which a trial finds unless it has its own.
    """

    def main(channel: Channel) -> None:
        gc.unfreeze()  # a collection costs a trial what it costs the user's own process: it visits torch's objects, too
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        child.main(channel)

    while True:
        order, descriptors, _, _ = socket.recv_fds(end, 1, 3)
        if not order:
            os._exit(0)
        if order == PRELOAD:
            _hand_over(end, descriptors[0])
            continue
        if os.fork() == 0:
            end.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            trial, supervisors, log = descriptors
            supervisor.supervise(trial, supervisors, log, main)
        for each in descriptors:
            os.close(each)


def _hand_over(end: socket.socket, document: int) -> None:
    """Lets a child import libraries and serve from then on; returns where it must not, and when it is gone."""
    with os.fdopen(document, encoding="utf-8") as file:
        seen = preloading.Imports.model_validate_json(file.read())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        try:
            tree.die_with_parent()
            for name in {*os.environ, *seen.environment} - {"TMPDIR"}:  # that of the trial is gone
                preloading.set_variable(name, seen.environment.get(name))
            trouble = preloading.preload(seen)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            gc.collect()
            gc.freeze()
            if trouble:
                tree.send(descendants(os.getpid()), signal.SIGKILL)
                end.sendall(trouble.replace("\n", " ").encode() + b"\n")
                os._exit(0)
            end.sendall(READY)
            _serve(end, {name: value for name, value in seen.of_libraries.items() if value is not None})
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if status:  # it has not come to its answer
        with contextlib.suppress(OSError):
            end.sendall(b"importing its libraries ended the process\n")
