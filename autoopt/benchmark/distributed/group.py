"""The processes that train together: which one this is, what they tell each other, and when they stop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from autoopt.benchmark.distributed.board import Board
from autoopt.errors import WorkloadError

T = TypeVar("T")
Enough = Callable[[int, float], bool]

PATIENCE = timedelta(minutes=30)
"""A collective that takes longer has failed; who watches the processes gives up far sooner."""
AHEAD = {"cpu": 1}
"""Steps that a rank may be ahead of the first: on a CPU it waits in each backward, on a device its host runs on."""
_FURTHEST_AHEAD = 8
_LOOK_SECONDS = 2e-5


class Place(Protocol):
    """Where a process stands in its group (``autoopt.trial.protocol.Rank``)."""

    rank: int
    size: int
    folder: str
    port: int


class Group:
    """A training that is alone; :class:`Ranks` are several.

    Attributes:
        rank: of this process, from 0.
        size: processes that train together.
    """

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """Whether this process speaks for all."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        return [value]

    def agree(self, value: T) -> T:
        """The first process's value."""
        return value

    def on_first(self, work: Callable[[], T]) -> T:
        """Done by the first process alone; the others wait for what it found, or for the error that it met."""
        return work()

    def agreed(self, enough: Enough, most: int | None = None) -> Enough:
        """When a lap ends: as the first process has it, at the same step in all, at the latest after ``most``.

        Args:
            most: steps after which ``enough`` says so in any case; all processes give the same.
        """
        return enough

    def wait(self) -> None:
        """Until all are here."""


class Ranks(Group):
    """One of several processes that train together, over torch's default process group.

    Args:
        rank, size: of this process.
        device: what it trains on.
        board: shared by them.
    """

    def __init__(self, rank: int, size: int, device: torch.device, board: Board) -> None:
        self.rank, self.size, self._board = rank, size, board
        self._ahead = AHEAD.get(device.type, _FURTHEST_AHEAD)
        self._lap = 0

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=messages())
        return found

    def agree(self, value: T) -> T:
        told: list[T] = [value]
        dist.broadcast_object_list(told, src=0, group=messages())
        return told[0]

    def on_first(self, work: Callable[[], T]) -> T:
        found: Any = None
        error: BaseException | None = None
        if self.first:
            try:
                found = work()
            except Exception as raised:
                error = raised
        said = self.agree(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        if said is not None:
            raise RuntimeError(f"the first process failed: {said}")
        agreed: T = self.agree(found)
        return agreed

    def agreed(self, enough: Enough, most: int | None = None) -> Enough:
        self._lap += 1
        lap, board = self._lap, self._board

        def over(done: int, elapsed: float) -> bool:
            if self.first:
                board.comes_to(lap, done)
            if most is not None and done >= most:
                return True
            end = board.end_of(lap)
            while end is None and not self.first and done > board.first_at(lap) + self._ahead:
                time.sleep(_LOOK_SECONDS)  # a host that only queues work may be far ahead of one that prepares it
                end = board.end_of(lap)
            if end is None:
                if not self.first or not enough(done, elapsed):
                    return False
                end = done + self._ahead
                board.ends(lap, end)
            if done > end:
                raise RuntimeError(f"rank {self.rank} is at step {done} of a lap that ended with step {end}")
            return done == end

        return over

    def wait(self) -> None:
        dist.barrier(group=messages())


_messages: Any = None


def messages() -> Any:
    """The group over which processes tell each other what is no tensor: on the host, whatever the device."""
    global _messages
    if _messages is None:
        _messages = (
            dist.new_group(backend="gloo", timeout=PATIENCE) if dist.get_backend() != "gloo" else dist.group.WORLD
        )
    return _messages


_alone: Any = None


def alone() -> Any:
    """A group of this process by itself. The first call is made by all processes together."""
    global _alone
    if _alone is None:
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]  # all make all of them
        _alone = groups[dist.get_rank()]
    return _alone


def join(place: Place, device: torch.device) -> Group:
    """Joins the group of a trial, unless the user's code has made one.

    Raises:
        WorkloadError: the user's code made one of another size.
    """
    if not dist.is_initialized():
        dist.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{place.folder}/store",
            rank=place.rank,
            world_size=place.size,
            timeout=PATIENCE,
            device_id=device if device.type == "cuda" else None,
        )
    if dist.get_world_size() != place.size:
        raise WorkloadError(f"the code made a process group of {dist.get_world_size()}, wanted: {place.size}")
    return Ranks(place.rank, place.size, device, Board(f"{place.folder}/board"))


def present(processes: int, device: torch.device) -> Group:
    """The group of a training that nobody placed in one: torchrun's, where it started this process.

    Raises:
        WorkloadError: the training wants more processes than there are.
    """
    if processes == 1:
        return Group()
    started = dist.is_initialized() or {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    if not started:
        raise WorkloadError(
            f"this plan trains in {processes} processes, and this is one",
            hint=f"torchrun --standalone --nproc-per-node {processes} ...",
        )
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    if dist.get_world_size() != processes:
        raise WorkloadError(
            f"this plan trains in {processes} processes, and there are {dist.get_world_size()}",
            hint=f"--nproc-per-node {processes}",
        )
    folder = os.environ.get("TMPDIR", "/tmp")
    run = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}-{os.environ.get('MASTER_PORT', '')}-{os.getuid()}"
    return Ranks(dist.get_rank(), dist.get_world_size(), device, Board(f"{folder}/autoopt-board-{run}"))


def variables(place: Place) -> dict[str, str]:
    """The variables that torchrun sets for the processes that it starts, for code that asks."""
    rank, size = str(place.rank), str(place.size)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(place.port)}
    return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, **where}
