"""The supervisor of a trial: a small process above it that sees to it that nothing of it survives.

It adopts every orphan below it, so that no process gets away by changing its group or session. When the
trial ends, when the parent asks for it, or when the parent dies, it kills what is left, removes the
trial's temporary files and shared memory, shows how the trial ended, and goes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NoReturn

from autoopt.records import JsonDict
from autoopt.trial import shared, tree
from autoopt.trial.channel import Channel, ChannelBroken, ChannelClosed, move_up, readable

LOG_LIMIT = 32 * 2**20
"""Bytes of a trial's log; beyond it, what was printed first is dropped."""

_LOOK_SECONDS = 1.0
"""Between reads how long the log has grown."""


def supervise(trial: int, supervisor: int, log: int, main: Callable[[Channel], None]) -> NoReturn:
    """Starts a trial below this process and stays until nothing of it is left.

    Args:
        trial: descriptor of the trial's own channel, handed on to it.
        supervisor: descriptor of the supervisor's channel; its first message says what the trial needs:
            ``environment``, ``scratch`` (the folder in which its temporary folder is made) and ``parent`` (a pid).
        log: descriptor of the trial's log, opened for appending.
    """
    code = 1
    try:
        _Supervisor(trial, supervisor, log, main).run()
        code = 0
    finally:
        os._exit(code)


class _Supervisor:
    def __init__(self, trial: int, supervisor: int, log: int, main: Callable[[Channel], None]) -> None:
        with contextlib.suppress(OSError):
            os.setsid()  # the terminal's Ctrl-C is the parent's to answer
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        tree.adopt_orphans()
        self._trial, self._log, self._main = move_up(trial), log, main
        self._channel = Channel(socket.socket(fileno=move_up(supervisor)))
        self._wake, self._wake_write = os.pipe()
        for end in (self._wake, self._wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._ended: dict[int, tuple[int, int]] = {}
        self._pid = 0

    def run(self) -> None:
        try:
            order = self._channel.receive()
        except (ChannelClosed, ChannelBroken):
            return
        assert order is not None
        scratch = None
        with contextlib.suppress(OSError):  # on a disk that is full the trial takes the usual folder
            scratch = tempfile.mkdtemp(prefix="autoopt-", dir=order["scratch"])
            order["environment"]["TMPDIR"] = scratch
        shm = shared.names()
        kills = tree.oom_kills()
        self._start(order)
        with contextlib.suppress(ChannelClosed):
            self._channel.send({"pid": self._pid, "supervisor": os.getpid(), "scratch": scratch})
        parent = None
        with contextlib.suppress(OSError, AttributeError):  # readable when the parent dies, whoever has its pipes
            parent = os.pidfd_open(order["parent"])
        self._watch(parent)
        alone = self._pid in self._ended  # it ended before anybody asked for it
        left = tree.kill_below(self._ended.update)
        shared.sweep(shm)
        shared.remove_copies(self._pid)
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
        status, peak = self._ended.get(self._pid, (None, None))
        after = tree.oom_kills()
        with contextlib.suppress(ChannelClosed):
            self._channel.send(
                {
                    "ended": status if alone else None,
                    "peak_rss": peak,
                    "oom_kills": None if kills is None or after is None else after - kills,
                    "left": left,
                }
            )

    def _start(self, order: JsonDict) -> None:
        above = os.getpid()
        self._pid = os.fork()
        if self._pid:
            os.close(self._trial)
            return
        code = 1
        try:
            tree.die_with_parent()
            if os.getppid() == above:
                self._become_trial(order)
                self._main(Channel(socket.socket(fileno=self._trial)))
                code = 0
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _become_trial(self, order: JsonDict) -> None:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        self._channel.close()
        os.close(self._wake)
        os.close(self._wake_write)
        os.environ.clear()
        os.environ.update(order["environment"])
        tempfile.tempdir = None  # looked up before, in the server
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        for descriptor in (nothing, self._log):
            if descriptor > 2:
                os.close(descriptor)

    def _watch(self, parent: int | None) -> None:
        """Returns when the trial has ended, or is not wanted any more."""
        ends = [self._channel, self._wake] + ([] if parent is None else [parent])
        next_look = time.monotonic() + _LOOK_SECONDS
        while True:
            ready = readable(ends, max(0.0, next_look - time.monotonic()))
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._ended.update(tree.reap())
                if self._pid in self._ended:
                    return
            if any(end is not self._wake for end in ready):
                return
            if time.monotonic() >= next_look:
                _shorten(self._log)
                next_look = time.monotonic() + _LOOK_SECONDS


def _shorten(log: int) -> None:
    with contextlib.suppress(OSError):
        size = os.fstat(log).st_size
        if size > LOG_LIMIT:
            os.ftruncate(log, 0)
            os.write(log, f"[autoopt: {size} bytes that were printed up to here were dropped]\n".encode())


def main(trial: int, supervisor: int, log: int) -> NoReturn:
    """Entry of a fresh interpreter, for trials whose environment must be set before anything is imported."""
    from autoopt.trial import child  # torch comes later, in the trial's own process

    supervise(trial, supervisor, log, child.main)
