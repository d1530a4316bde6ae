"""Trials that train together: asked, frozen and ended as one; the failure of one is the failure of all."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from pathlib import Path
from typing import Any

from autoopt.errors import AutooptError, TrialFailed
from autoopt.records import JsonDict
from autoopt.trial.channel import Channel, readable
from autoopt.trial.process import Answering, OnProgress, Task, TrialProcess, name_of
from autoopt.trial.protocol import Failure, TrialSpec

GRACE_SECONDS = 3.0
"""After one has failed the others may tell of it as well: who was only left alone is not the one to blame."""

_LEFT_ALONE = re.compile(
    r"gloo|nccl|process ?group|connection (?:closed|reset|refused)|broken pipe|DistBackendError|"
    r"the first process failed|watchdog|socket",
    re.I,
)
_WAITING = re.compile(r"torch/distributed/|distributed_c10d|_engine_run_backward|all_reduce|broadcast|barrier")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


class TrialGroup(Answering):
    """Several live trials, one for each rank, as one :class:`TrialProcess`. What the first rank answers is the answer.

    Args:
        ranks: in their order; started, not yet given their ranks.
        folder: where they meet; removed with them.
    """

    can_freeze = TrialProcess.can_freeze

    def __init__(self, ranks: list[TrialProcess], folder: str) -> None:
        self.ranks = ranks
        self._folder = folder

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

    @property
    def alive(self) -> bool:
        return all(rank.alive for rank in self.ranks)

    @property
    def peak_rss(self) -> int | None:
        """Peak resident bytes of all ranks' main processes so far."""
        peaks = [peak for rank in self.ranks if (peak := rank.peak_rss) is not None]
        return sum(peaks) if peaks else None

    def introduce(self, how: JsonDict, deadline: float, timeout: float) -> JsonDict:
        """Sends every rank its description, and waits until all have built the workload and met."""
        for rank in self.ranks:
            rank.tell(how)
        return _Gathering(self, "build", deadline, timeout, None).answer()

    def call(
        self, task: Task, *, timeout: float | None = None, on_progress: OnProgress | None = None, **arguments: Any
    ) -> JsonDict:
        """Runs a task in all ranks and waits for all of their answers; see ``TrialProcess.call``.

        Raises:
            TrialFailed: what went wrong in the rank to blame, which is named.
        """
        name = name_of(task)
        where = name.rpartition(":")[2]
        if self.closed:
            raise TrialFailed("crashed", "the trial has ended already", where=where)
        self.thaw()
        for rank in self.ranks:
            rank.ask(name, arguments)
        deadline = None if timeout is None else time.monotonic() + timeout
        return _Gathering(self, where, deadline, timeout, on_progress).answer()

    def freeze(self) -> None:
        """Stops the process trees of all ranks where they stand."""
        for rank in self.ranks:
            rank.freeze()

    def thaw(self) -> None:
        """Lets frozen trees go on."""
        for rank in self.ranks:
            rank.thaw()

    def close(self) -> None:
        """Ends all ranks and removes what they left; never raises, may be called twice."""
        for rank in self.ranks:
            rank.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def tail(self) -> str:
        """The last lines of the first rank's log."""
        return self.ranks[0].tail()


class _Gathering:
    """The answers of all ranks to one task."""

    def __init__(
        self, group: TrialGroup, where: str, deadline: float | None, timeout: float | None, tell: OnProgress | None
    ) -> None:
        self.group, self.where, self.deadline, self.timeout, self.tell = group, where, deadline, timeout, tell
        self.waiting = dict(enumerate(group.ranks))
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
        if self.waiting or any(not rank.alive for rank in self.group.ranks):
            self.group.close()
        raise self._blamed()

    def _hear(self, left: float | None) -> bool:
        """Takes what has come in; False where the time is up and nothing has."""
        pending = [rank for rank in self.waiting.values() if rank.pending]
        ends: list[Channel] = [end for rank in self.waiting.values() for end in rank.ends()]
        ready = [] if pending else readable(ends, left)
        for number, rank in list(self.waiting.items()):
            if rank in pending or any(end in ready for end in rank.ends()):
                self._take(number, rank, ready)
        return bool(pending or ready)

    def _take(self, number: int, rank: TrialProcess, ready: list[Channel]) -> None:
        try:
            document = rank.take(rank.ends() if rank.pending else ready, self.where, 0.0)
        except TrialFailed as failure:
            self.failures[number] = failure
            del self.waiting[number]
            return
        if document is None:
            return
        if document.get("kind") == "progress":
            if self.tell is not None and number == 0:
                self.tell(document["data"])
            return
        del self.waiting[number]
        if document.get("kind") == "failure":
            self.failures[number] = rank.error(Failure.model_validate(document))
        else:
            self.answers[number] = document["data"]

    def _blamed(self) -> AutooptError:
        """The failure that is no consequence of another's: of a process that ended first, then of one that reports."""
        ranked = sorted(self.failures.items(), key=lambda item: (_consequence(item[1]), item[0]))
        number, error = ranked[0]
        if (
            len(self.failures) == len(self.group.ranks)
            and len({failure.message for failure in self.failures.values()}) == 1
        ):
            return error  # all alike: it is the workload's
        error.message = f"rank {number} of {len(self.group.ranks)}: {error.message}"
        error.args = (error.message,)
        return error

    def _hung(self) -> TrialFailed:
        """No answer in time: each rank's call stack shows who waits for whom."""
        failures = {number: rank.hung(self.where, self.timeout, "") for number, rank in self.waiting.items()}
        hanging = {number: place for number, rank in self.waiting.items() if (place := _standing(rank.tail()))}
        missing = sorted(failures) if len(failures) < len(self.group.ranks) else sorted(hanging)
        self.group.close()
        number = missing[0] if missing else 0
        failure = failures[number]
        if missing and len(missing) < len(self.group.ranks):
            at = f" at {hanging[number]}" if number in hanging else ""
            failure.message = f"rank {number} of {len(self.group.ranks)} hangs{at}: {failure.message}"
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
