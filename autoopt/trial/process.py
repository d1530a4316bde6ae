"""A live trial as the parent holds it, of one process or several: asked, frozen, and ended whatever it does."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from autoopt.benchmark.cputime import descendants
from autoopt.errors import AutooptError, TrialFailed
from autoopt.records import JsonDict
from autoopt.records.protocol import Call, Failure, TrialSpec
from autoopt.trial import tree
from autoopt.trial.channel import Channel, ChannelBroken, ChannelClosed, readable
from autoopt.trial.child import DUMP_SIGNAL
from autoopt.trial.failures import ended, error_of, hung
from autoopt.trial.start import Started

logger = logging.getLogger(__name__)


GRACE_SECONDS = 3.0
"""After one has failed the others may tell of it as well: who was only left alone is not the one to blame."""

_LEFT_ALONE = re.compile(
    r"gloo|nccl|process ?group|connection (?:closed|reset|refused)|broken pipe|DistBackendError|"
    r"the first process failed|watchdog|socket",
    re.I,
)
_WAITING = re.compile(r"torch/distributed/|distributed_c10d|_engine_run_backward|all_reduce|broadcast|barrier")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')

Task = str | Callable[..., Any]


class Closing(ABC):
    """A context at whose end it is closed."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalTrial(Closing):
    """A live trial on this machine, whose processes are asked, frozen and ended as one. The first answers for all.

    Args:
        ranks: its processes in their order; one, as a rule.
        folder: where several meet; removed with them.
    """

    def __init__(self, ranks: list[TrialProcess], folder: str = "") -> None:
        self.ranks, self._folder = ranks, folder

    @property
    def spec(self) -> TrialSpec:
        return self.ranks[0].spec

    @property
    def log(self) -> Path:
        return self.ranks[0].log

    @property
    def pid(self) -> int:
        """The pid of the first rank's main process."""
        return self.ranks[0].pid

    @property
    def closed(self) -> bool:
        return any(rank.closed for rank in self.ranks)

    def call(self, task: Task, *, timeout: float | None = None, **arguments: Any) -> JsonDict:
        """Runs a task in the trial and waits for its answer; a frozen trial is let go on first.

        Args:
            task: ``module:function``, or the function itself.
            timeout: seconds until it counts as hung and is killed.
            arguments: of the task; JSON.

        Raises:
            TrialFailed: what went wrong, in the rank to blame where there are several, with the user's traceback or the
                tail of the log.
            WorkloadError, UsageError, EnvironmentLacks: the untouched workload is not what it must be.
        """
        name = name_of(task)
        where = name.rpartition(":")[2]
        self.thaw()
        for rank in self.ranks:
            rank.ask(name, arguments)
        deadline = None if timeout is None else time.monotonic() + timeout
        return Gathering(self, where, deadline, timeout).answer()

    def introduce(self, how: JsonDict, deadline: float, timeout: float) -> JsonDict:
        """Sends every rank its description, and waits until all have built the workload and met."""
        for rank in self.ranks:
            rank.tell(how)
        return Gathering(self, "build", deadline, timeout).answer()

    def freeze(self) -> None:
        """Stops the process trees of all ranks where they stand."""
        for rank in self.ranks:
            rank.freeze()

    def thaw(self) -> None:
        """Lets frozen trees go on."""
        for rank in self.ranks:
            rank.thaw()

    def standing(self) -> tree.Standing:
        """How the system schedules its processes."""
        return {thread: how for rank in self.ranks for thread, how in rank.standing().items()}

    def close(self) -> None:
        """Ends all ranks and removes what they left; never raises, may be called twice."""
        for rank in self.ranks:
            rank.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class TrialProcess:
    """A process of a live trial. Every method but ``close`` may raise ``TrialFailed``; after that it may be gone."""

    def __init__(self, spec: TrialSpec, started: Started, *, log: Path, log_start: int = 0) -> None:
        self.spec = spec
        self.log = log
        self.closed = False
        self._channel = Channel(started.trial)
        self._supervisor = Channel(started.supervisor)
        self._started = started
        self._scratch: str | None = None
        self._log_start = log_start
        self.pid = 0  # of its main process, which leads its session and process group
        self._keeper_pid = 0
        self._end: JsonDict | None = None
        self._frozen = False

    @property
    def pending(self) -> bool:
        """Whether a whole document of its has arrived already."""
        return not self.closed and self._channel.pending()

    @property
    def alive(self) -> bool:
        return not self.closed and self._end is None

    def ask(self, name: str, arguments: JsonDict) -> None:
        """Begins a task; ``take`` hears of it.

        Raises:
            TrialFailed: the trial has ended already.
        """
        if self.closed:
            raise TrialFailed("crashed", "the trial has ended already", where=name.rpartition(":")[2])
        self._say(Call(task=name, arguments=arguments).model_dump())

    def freeze(self) -> None:
        """Stops the whole process tree where it stands, so that it takes no CPU and fills no queue."""
        if self.alive and not self._frozen and self.pid:
            tree.freeze(self._keeper_pid, self.pid)
            self._frozen = True

    def thaw(self) -> None:
        """Lets a frozen tree go on."""
        if self._frozen:
            self._frozen = False
            tree.thaw(self._keeper_pid, self.pid)

    def standing(self) -> tree.Standing:
        """How the system schedules its processes."""
        return tree.standing(self._keeper_pid)

    def close(self) -> None:
        """Ends the process tree and removes what it left; never raises, may be called twice."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(Exception):
            self._wait_for_end(kill=True)
        self._channel.close()
        self._supervisor.close()
        if self._started.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._started.process.wait(5)
        if self._scratch:  # where the supervisor was killed before it could
            shutil.rmtree(self._scratch, ignore_errors=True)

    def tell(self, how: JsonDict) -> None:
        """Sends the trial its description."""
        self._say({"spec": self.spec.model_dump(), **how})

    def _say(self, document: JsonDict) -> None:
        with contextlib.suppress(ChannelClosed):  # the reason for it is found out while waiting for the answer
            self._channel.send(document)

    def take(self, ready: list[Channel], where: str) -> JsonDict | None:
        """A document of the trial's from the ends that have something to read; None where there is none yet."""
        if self._supervisor in ready and self._channel not in ready:
            self._hear_supervisor()
        if self._channel not in ready:
            return None
        try:
            return self._channel.receive(0.0)
        except ChannelBroken as error:
            self.close()
            raise TrialFailed("crashed", f"its messages were garbled: {error}", where=where) from None
        except ChannelClosed:
            raise self._gone(where) from None

    def ends(self) -> list[Channel]:
        """Channels that may have something to read."""
        return [self._channel] if self._end is not None else [self._channel, self._supervisor]

    def _hear_supervisor(self) -> None:
        try:
            document = self._supervisor.receive()
        except (ChannelClosed, ChannelBroken):
            self._end = {"ended": None}  # the supervisor itself was killed; its trial dies with it
            return
        assert document is not None
        if "pid" in document:
            self.pid, self._keeper_pid, self._scratch = document["pid"], document["supervisor"], document["scratch"]
        else:
            self._end = document
            if document.get("left"):
                logger.warning("processes of a trial cannot be killed: %s", ", ".join(map(str, document["left"])))

    def _wait_for_end(self, *, kill: bool, timeout: float = 20.0) -> None:
        """Waits for the supervisor's last word; its channel half closed is the order to kill."""
        if kill:
            with contextlib.suppress(OSError):
                self._started.supervisor.shutdown(socket.SHUT_WR)  # what it says can still be heard
        deadline = time.monotonic() + timeout
        while self._end is None and (left := deadline - time.monotonic()) > 0:
            if readable([self._supervisor], left):
                self._hear_supervisor()
        if self._end is None and self.pid:
            tree.send([*descendants(self._keeper_pid), self._keeper_pid], signal.SIGKILL)

    def _gone(self, where: str) -> TrialFailed:
        """The trial closed its channel: it has ended, or lost its channel and is of no use."""
        with contextlib.suppress(Exception):
            self._wait_for_end(kill=False, timeout=1.0)
        lost = self._end is None
        self.close()
        end = self._end or {}
        failure = ended(end.get("ended"), end.get("oom_kills"), end.get("peak_rss"), where)
        if lost:
            failure = TrialFailed("crashed", "it closed its channel to autoopt", where=where)
        failure.detail = self.tail()
        return failure

    def hung(self, where: str, timeout: float | None) -> TrialFailed:
        """No answer in time: has every thread's call stack written to the log, then ends the trial."""
        if self.pid and self.alive:
            tree.send([self.pid], DUMP_SIGNAL)
            tree.send([self.pid], signal.SIGCONT)
            readable([self._supervisor], 0.3)
        self.close()
        failure = hung(f"no answer within {timeout:g} s ({where})", self._printed(), where)
        failure.detail = self.tail()
        return failure

    def error(self, failure: Failure) -> AutooptError:
        """The exception for a failure that the trial reported."""
        if failure.exit_code and not self.spec.plan.changes:
            detail = failure.detail
            if not detail and self.spec.script:  # what the script has printed before it was refused for that reason
                printed = self.tail()
                refused = printed.rfind("\nautoopt.errors.")
                begins = printed.rfind("Traceback (most recent call last):", 0, refused) if refused >= 0 else -1
                detail = (printed[:begins] if begins >= 0 else printed).rstrip().removesuffix(failure.message).rstrip()
            return error_of(failure.model_copy(update={"detail": detail}))
        return error_of(failure.model_copy(update={"exit_code": None, "detail": failure.detail or self.tail()}))

    def tail(self) -> str:
        """The last lines of the log."""
        return self._printed(4000)

    def _printed(self, most: int = 2**20) -> str:
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            size = self.log.stat().st_size
            file.seek(max(self._log_start if self._log_start <= size else 0, size - most))
            return file.read().decode("utf-8", "replace").replace("\0", "").rstrip()
        return ""


def name_of(task: Task) -> str:
    """``module:function`` of a task."""
    return task if isinstance(task, str) else f"{task.__module__}:{task.__qualname__}"


class Gathering:
    """The answers of all ranks of a trial to one task."""

    def __init__(self, trial: LocalTrial, where: str, deadline: float | None, timeout: float | None) -> None:
        self.trial, self.where, self.deadline, self.timeout = trial, where, deadline, timeout
        self.waiting = dict(enumerate(trial.ranks))
        self.answers: dict[int, JsonDict] = {}
        self.failures: dict[int, AutooptError] = {}

    def answer(self) -> JsonDict:
        """The first rank's, once all have answered.

        Raises:
            AutooptError: the failure of the rank to blame; unless all reported theirs, none is alive any more.
        """
        while self.waiting and not self.failures:
            left = None if self.deadline is None else self.deadline - time.monotonic()
            if not self._hear(left):
                raise self._hung()
        if not self.failures:
            return self.answers[0]
        until = time.monotonic() + GRACE_SECONDS
        while self.waiting and (left := until - time.monotonic()) > 0:
            self._hear(left)
        if self.waiting or any(not rank.alive for rank in self.trial.ranks):
            self.trial.close()
        # the failure that is no consequence of another's: of a process that ended first, then of one that reports
        number, error = min(self.failures.items(), key=lambda item: (_consequence(item[1]), item[0]))
        alike = len({failure.message for failure in self.failures.values()}) == 1
        if not alike or len(self.failures) < len(self.trial.ranks):  # else it is the workload's
            error.message = f"rank {number} of {len(self.trial.ranks)}: {error.message}"
            error.args = (error.message,)
        raise error

    def _hear(self, left: float | None) -> bool:
        """Takes what has come in; False where the time is up and nothing has."""
        pending = [rank for rank in self.waiting.values() if rank.pending]
        ends: list[Channel] = [end for rank in self.waiting.values() for end in rank.ends()]
        ready = [] if pending else readable(ends, left)
        for number, rank in list(self.waiting.items()):
            if rank not in pending and not any(end in ready for end in rank.ends()):
                continue
            try:
                document = rank.take(rank.ends() if rank.pending else ready, self.where)
            except TrialFailed as failure:
                self.failures[number] = failure
            else:
                if document is None:
                    continue
                if document.get("kind") == "failure":
                    self.failures[number] = rank.error(Failure.model_validate(document))
                else:
                    self.answers[number] = document["data"]
            del self.waiting[number]
        return bool(pending or ready)

    def _hung(self) -> TrialFailed:
        """No answer in time: each rank's call stack shows who waits for whom."""
        failures = {number: rank.hung(self.where, self.timeout) for number, rank in self.waiting.items()}
        hanging = {number: place for number, rank in self.waiting.items() if (place := _standing(rank.tail()))}
        missing = sorted(failures) if len(failures) < len(self.trial.ranks) else sorted(hanging)
        self.trial.close()
        number = missing[0] if missing else 0
        failure = failures[number]
        if missing and len(missing) < len(self.trial.ranks):
            at = f" at {hanging[number]}" if number in hanging else ""
            failure.message = f"rank {number} of {len(self.trial.ranks)} hangs{at}: {failure.message}"
            failure.args = (failure.message,)
        return failure


def _consequence(error: AutooptError) -> int:
    if isinstance(error, TrialFailed) and error.kind == "crashed" and not _LEFT_ALONE.search(error.message):
        return 0
    if isinstance(error, TrialFailed) and error.kind == "out_of_memory":
        return 1
    return 3 if _LEFT_ALONE.search(error.message) else 2


def _standing(log: str) -> str:
    """Where the main thread was when its call stack was logged; empty where it waited for another rank."""
    dump = log.rpartition("most recent call first")[2]
    with contextlib.suppress(IndexError):
        frames = _FRAME.findall(dump)
        if any(_WAITING.search(f"{file} {name}") for file, _, name in frames[:6]):
            return ""
        file, line, name = frames[0]
        return f"{Path(file).name}:{line} ({name})"
    return ""
