"""Arms in processes of their own, in turns: who is not asked is stopped. All of it ends by a deadline."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any

import psutil

from benchmarks.gpu import rivals

LEAST_SECONDS = 20.0
"""Least seconds to wait for an answer, however near the deadline is."""
MOST_SECONDS = 900.0
"""Most seconds to wait for an answer: building, compiling and warming up, where there is no deadline."""
END_SECONDS = 5.0
"""Seconds that a process has to end by itself, its loader's workers and their shared memory with it."""


def serve(connection: Any, case: str, arm: str, device: str, toy: bool, plan: Any) -> None:
    """The arm's process: answers calls until the other end is closed."""
    # As in a script of the user's own, which nothing has spawned: workers of a spawned process would be spawned too.
    multiprocessing.set_start_method("fork", force=True)
    try:
        if arm == "autoopt":
            from autoopt.registry import load_strategies

            environment = load_strategies().fold(plan).flags.get("env") or {}
            os.environ.update({name: str(value) for name, value in environment.items()})  # before torch is imported
        served = rivals.Served(rivals.make(arm, rivals.load_case(case), device, toy=toy, plan=plan), device)
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
    """An arm could not train; its text starts with the kind, as ``out_of_memory:``."""


class Process:
    """An arm's process as its parent sees it."""

    def __init__(self, case: str, arm: str, device: str, toy: bool, plan: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, case, arm, device, toy, plan))
        self._process.start()
        other.close()

    def call(self, name: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """Asks the arm and waits.

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
        """Lets it end by itself; kills what does not."""
        self.signal(signal.SIGCONT)
        self._end.close()  # it reads the end of its calls
        self._process.join(END_SECONDS)
        self.signal(signal.SIGKILL)
        self._process.join(20)


def remaining(deadline: float) -> float:
    """Seconds that an answer is waited for."""
    return min(max(deadline - perf_counter(), LEAST_SECONDS), MOST_SECONDS)


class Race:
    """Blocks of all arms in turn.

    Arms stay alive, stopped, while the device holds all of them; where one runs out of memory beside
    others, each is started anew for each of its turns, alone.

    Args:
        start: starts the process of an arm.
        steps: of a block.
        warm: steps before the first block of a process, not measured.
        deadline: on ``perf_counter``: no turn starts after it, and no answer is waited for much longer.
        say: told what goes on.
        tell: given what is known after each turn.
    """

    def __init__(
        self,
        start: Callable[[str], Any],
        *,
        steps: int,
        warm: int,
        deadline: float = float("inf"),
        say: Callable[[str], None] = lambda text: None,
        tell: Callable[[dict[str, Any]], None] = lambda results: None,
    ) -> None:
        self._start, self._steps, self._warm, self._say = start, steps, warm, say
        self._deadline, self._tell = deadline, tell
        self._live: dict[str, Any] = {}
        self.alone = False
        self.blocks: dict[str, list[dict[str, Any]]] = {}
        self.failed: dict[str, str] = {}
        self.start_seconds: dict[str, float] = {}

    def run(self, arms: tuple[str, ...], rounds: int) -> dict[str, Any]:
        """Runs the rounds, each in the opposite order to the one before.

        Returns:
            By arm: what ``gpu_rivals.summary`` gives, or ``failed``.
        """
        self.blocks = {name: [] for name in arms}
        try:
            for number in range(rounds):
                for name in arms if number % 2 == 0 else arms[::-1]:
                    if name not in self.failed and perf_counter() < self._deadline:
                        self._turn(name)
                        self._report(name)
        finally:
            for name in list(self._live):
                self._close(name)
        return self.results()

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
            process.call("", timeout=remaining(self._deadline))
            process.call("block", timeout=remaining(self._deadline), steps=self._warm)
            self.start_seconds.setdefault(name, perf_counter() - began)
        else:
            process.signal(signal.SIGCONT)
        self.blocks[name].append(process.call("block", timeout=remaining(self._deadline), steps=self._steps))
        if self.alone:
            self._close(name)
        else:
            process.signal(signal.SIGSTOP)

    def _report(self, name: str) -> None:
        if self.blocks[name]:
            last = self.blocks[name][-1]
            self._say(f"{rivals.TITLES.get(name, name)}: {last['samples'] / last['seconds']:,.1f} samples/s")
        self._tell(self.results())

    def _close(self, name: str) -> None:
        process = self._live.pop(name, None)
        if process is not None:
            process.close()

    def results(self) -> dict[str, Any]:
        """The state of each arm so far."""
        return {name: self._result(name) for name in self.blocks}

    def _result(self, name: str) -> dict[str, Any]:
        if self.blocks[name]:  # one that failed later was measured before
            row = {**rivals.summary(self.blocks[name]), "start_seconds": self.start_seconds[name], "alone": self.alone}
            return {**row, "failed_later": self.failed[name]} if name in self.failed else row
        return {"failed": self.failed.get(name, "not measured: the time was up")}


def to_target(
    start: Callable[[str], Any],
    arms: tuple[str, ...],
    target: float,
    metric: str,
    every: int,
    *,
    deadline: float,
    tell: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Each arm from its first step to the target, one after the other, its start included.

    Args:
        every: steps between evaluations.
        deadline: on ``perf_counter``; what is left is shared out evenly among those that are still to come.
        tell: given what is known after each of them.
    """
    found: dict[str, Any] = {}
    for number, name in enumerate(arms):
        began = perf_counter()
        seconds = (deadline - began) / (len(arms) - number)
        if seconds <= 0:
            found[name] = {"failed": "not measured: the time was up"}
            continue
        process = start(name)
        try:
            process.call("", timeout=max(seconds, LEAST_SECONDS))
            ready = perf_counter() - began
            arguments = {"target": target, "metric": metric, "every": every, "max_seconds": max(seconds - ready, 1.0)}
            answer = process.call("train", timeout=2 * max(seconds, LEAST_SECONDS), **arguments)
            found[name] = {**answer, "seconds": answer["seconds"] + ready}
        except RivalFailedError as error:
            found[name] = {"failed": str(error)}
        finally:
            process.close()
        tell(found)
    return found
