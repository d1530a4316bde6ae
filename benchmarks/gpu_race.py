"""Contenders in processes of their own, in turns: who is not asked is stopped."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any

import gpu_rivals as rivals
import psutil

START_SECONDS = 900.0
"""How long building, compiling and warming up may take."""


def serve(connection: Any, case: str, contender: str, device: str, toy: bool, plan: Any) -> None:
    """The contender's process: answers calls until the other end is closed."""
    try:
        if contender == "autoopt":
            from autoopt.registry import load_strategies

            environment = load_strategies().fold(plan).flags.get("env") or {}
            os.environ.update({name: str(value) for name, value in environment.items()})  # before torch is imported
        served = rivals.Served(rivals.make(contender, rivals.load_case(case), device, toy=toy, plan=plan), device)
        connection.send({})
        while True:
            name, arguments = connection.recv()
            connection.send(getattr(served, name)(**arguments))
    except EOFError:
        return
    except BaseException as error:
        from autoopt.trial.failures import failure_of

        traceback.print_exc()
        failure = failure_of(error, "training")
        with contextlib.suppress(OSError):
            connection.send({"failed": f"{failure.failure}: {failure.message}"})


class RivalFailedError(Exception):
    """A contender could not train; its text starts with the kind, as ``out_of_memory:``."""


class Process:
    """A contender's process as its parent sees it."""

    def __init__(self, case: str, contender: str, device: str, toy: bool, plan: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, case, contender, device, toy, plan))
        self._process.start()
        other.close()

    def call(self, name: str, timeout: float = START_SECONDS, **arguments: Any) -> dict[str, Any]:
        """Asks the contender and waits.

        Raises:
            RivalFailedError: it could not, or is gone, or gave no answer in time.
        """
        try:
            if name:
                self._end.send((name, arguments))
            if not self._end.poll(timeout):
                raise RivalFailedError(f"timeout: no answer within {timeout:g} s")
            answer: dict[str, Any] = self._end.recv()
        except (EOFError, OSError):
            self._process.join(5)
            raise RivalFailedError(f"crashed: its process ended with exit code {self._process.exitcode}") from None
        if "failed" in answer:
            raise RivalFailedError(answer["failed"])
        return answer

    def signal(self, number: int) -> None:
        """Sends a signal to the whole tree."""
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self._process.pid)
            for process in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self._process.join(20)
        self._end.close()


class Race:
    """Blocks of all contenders in turn.

    Contenders stay alive, stopped, while the device holds all of them; where one runs out of memory beside
    others, each is started anew for each of its turns, alone.

    Args:
        start: starts the process of a contender.
        steps: of a block.
        warm: steps before the first block of a process, not measured.
        say: told what goes on.
    """

    def __init__(
        self, start: Callable[[str], Any], *, steps: int, warm: int, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._start, self._steps, self._warm, self._say = start, steps, warm, say
        self._live: dict[str, Any] = {}
        self.alone = False
        self.blocks: dict[str, list[dict[str, Any]]] = {}
        self.failed: dict[str, str] = {}
        self.start_seconds: dict[str, float] = {}

    def run(self, contenders: tuple[str, ...], rounds: int, deadline: float = float("inf")) -> dict[str, Any]:
        """Runs the rounds, each in the opposite order to the one before.

        Args:
            deadline: on ``perf_counter``; no round starts after it, but for the first.

        Returns:
            By contender: what ``gpu_rivals.summary`` gives, or ``failed``.
        """
        self.blocks = {name: [] for name in contenders}
        try:
            for number in range(rounds):
                if number and perf_counter() > deadline:
                    break
                for name in contenders if number % 2 == 0 else contenders[::-1]:
                    if name not in self.failed:
                        self._turn(name)
        finally:
            for name in list(self._live):
                self._close(name)
        return {name: self._result(name) for name in contenders}

    def _turn(self, name: str) -> None:
        try:
            self._block(name)
        except RivalFailedError as error:
            others = len(self._live) > (name in self._live)
            self._close(name)
            if str(error).startswith("out_of_memory") and others and not self.alone:
                self._say("they do not fit beside one another: each is started alone for its turns")
                self.alone = True
                for other in list(self._live):
                    self._close(other)
                self._turn(name)
            else:
                self._say(f"{rivals.TITLES.get(name, name)}: {error}")
                self.failed[name] = str(error)

    def _block(self, name: str) -> None:
        process = self._live.get(name)
        if process is None:
            began = perf_counter()
            process = self._live[name] = self._start(name)
            process.call("")
            process.call("block", steps=self._warm)
            self.start_seconds.setdefault(name, perf_counter() - began)
        else:
            process.signal(signal.SIGCONT)
        self.blocks[name].append(process.call("block", steps=self._steps))
        if self.alone:
            self._close(name)
        else:
            process.signal(signal.SIGSTOP)

    def _close(self, name: str) -> None:
        process = self._live.pop(name, None)
        if process is not None:
            process.close()

    def _result(self, name: str) -> dict[str, Any]:
        if name in self.failed:
            return {"failed": self.failed[name]}
        if not self.blocks[name]:
            return {"failed": "not measured"}
        return {**rivals.summary(self.blocks[name]), "start_seconds": self.start_seconds[name], "alone": self.alone}


def to_target(
    start: Callable[[str], Any], contenders: tuple[str, ...], target: float, metric: str, every: int, seconds: float
) -> dict[str, Any]:
    """Each contender from its first step to the target, one after the other, its start included."""
    found: dict[str, Any] = {}
    for name in contenders:
        began = perf_counter()
        process = start(name)
        try:
            process.call("")
            ready = perf_counter() - began
            arguments = {"target": target, "metric": metric, "every": every, "max_seconds": seconds}
            answer = process.call("train", timeout=START_SECONDS + 2 * seconds, **arguments)
            found[name] = {**answer, "seconds": answer["seconds"] + ready}
        except RivalFailedError as error:
            found[name] = {"failed": str(error)}
        finally:
            process.close()
    return found
