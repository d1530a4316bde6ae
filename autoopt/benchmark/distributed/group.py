"""The processes that train together: which one this is and where it runs, what they tell each other, when they stop,
and their measurements as one: time is the slowest one's, samples are those of all."""

from __future__ import annotations

import functools
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from statistics import fmean
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from autoopt.benchmark import affinity
from autoopt.benchmark.clock import Lap
from autoopt.errors import WorkloadError
from autoopt.records.messages import Block
from autoopt.records.protocol import Rank
from autoopt.setup import Setup

END, AT = 0, 1
"""Places on a board: of the step at which a lap ends, and of that whose end the first rank has come to."""
_SHIFT = 40
"""A lap ends before step 2**40."""
T = TypeVar("T")
Enough = Callable[[int, float], bool]
Each = Callable[[int, float], None]
PATIENCE = timedelta(minutes=30)
"""A collective that takes longer has failed; who watches the processes gives up far sooner."""
AHEAD = {"cpu": 1}
"""Steps that a rank may be ahead of the first: on a CPU it waits in each backward, on a device its host runs on."""
Losses = Sequence[float | None]


class Board:
    """Two steps of a lap in a file that every process of the group maps; eight bytes are written at once."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 16)
            self._numbers = memoryview(mmap.mmap(descriptor, 16)).cast("q")
        finally:
            os.close(descriptor)

    def put(self, place: int, lap: int, step: int) -> None:
        self._numbers[place] = lap << _SHIFT | step

    def get(self, place: int, lap: int) -> int | None:
        """The step there; None where it is not of that lap."""
        value = self._numbers[place]
        return value & ((1 << _SHIFT) - 1) if value >> _SHIFT == lap else None


class Group:
    """A training that is alone; :class:`Ranks` are several."""

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
        return value

    def on_first(self, work: Callable[[], T]) -> T:
        """Done by the first process alone; the others wait for what it found, or for the error that it met."""
        return work()

    def agreed(self, enough: Enough, most: int | None = None) -> Enough:
        """When a lap ends: as the first process has it, at the same step in all, at the latest after ``most``.

        ``most``: steps after which ``enough`` says so in any case; all processes give the same.
        """
        return enough

    def stretch(self, enough: Enough, each: Each | None = None, most: int | None = None) -> Enough:
        """The same, begun by all together; ``each`` is called at the end of a step first."""
        agreed = self.agreed(enough, most)
        self.wait()
        if each is None:
            return agreed

        def over(done: int, elapsed: float) -> bool:
            each(done, elapsed)
            return agreed(done, elapsed)

        return over

    def wait(self) -> None:
        """Until all are here."""


class Ranks(Group):
    """One of several processes that train together, over torch's default process group."""

    def __init__(self, rank: int, size: int, device: torch.device, board: Board) -> None:
        self.rank, self.size, self._board = rank, size, board
        self._ahead = AHEAD.get(device.type, 8)
        self._lap = 0

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=messages())
        return found

    def agree(self, value: T) -> T:
        reported: list[T] = [value]
        dist.broadcast_object_list(reported, src=0, group=messages())
        return reported[0]

    def on_first(self, work: Callable[[], T]) -> T:
        found: Any = None
        error: BaseException | None = None
        if self.first:
            try:
                found = work()
            except Exception as raised:
                error = raised
        said, found = self.agree((None if error is None else f"{type(error).__name__}: {error}", found))
        if error is not None:
            raise error
        if said is not None:
            raise RuntimeError(f"the first process failed: {said}")
        return found  # type: ignore[no-any-return]

    def agreed(self, enough: Enough, most: int | None = None) -> Enough:
        self._lap += 1
        lap, board = self._lap, self._board

        def over(done: int, elapsed: float) -> bool:
            if self.first:
                board.put(AT, lap, done)
            if most is not None and done >= most:
                return True
            end = board.get(END, lap)
            while end is None and not self.first and done > (board.get(AT, lap) or 0) + self._ahead:
                time.sleep(2e-5)  # a host that only queues work may be far ahead of one that prepares it
                end = board.get(END, lap)
            if end is None:
                if not self.first or not enough(done, elapsed):
                    return False
                end = done + self._ahead
                board.put(END, lap, end)
            if done > end:
                raise RuntimeError(f"rank {self.rank} is at step {done} of a lap that ended with step {end}")
            return done == end

        return over

    def wait(self) -> None:
        dist.barrier(group=messages())


@functools.cache
def messages() -> Any:
    """The group over which processes tell each other what is no tensor: on the host, whatever the device."""
    apart = dist.get_backend() != "gloo"
    return dist.new_group(backend="gloo", timeout=PATIENCE) if apart else dist.group.WORLD


@functools.cache
def alone() -> Any:
    """A group of this process by itself. The first call is made by all processes together."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]  # all make all of them
    return groups[dist.get_rank()]


def join(place: Rank, device: torch.device) -> Group:
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


def variables(place: Rank) -> dict[str, str]:
    """The variables that torchrun sets for the processes that it starts, for code that asks."""
    rank, size = str(place.rank), str(place.size)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(place.port)}
    return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, **where}


def device_of(name: str, rank: int) -> str:
    """The device of a rank: the CPU is everybody's; of CUDA devices each has its own, from the one that is named on."""
    kind, _, number = name.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{int(number or 0) + rank}" if kind == "cuda" else kind


def keep_to_cores(setup: Setup, place: Rank) -> None:
    """Shares the cores out, before anything runs on them: as many threads as each has, unless a plan says more.

    All processes of a group would each start as many threads as there are cores, and wait for one another.
    """
    cores = affinity.cores()
    each = len(cores) // place.size  # neighbours together; none where there are fewer cores than ranks
    if setup.distributed.own_cores and each:
        affinity.bind(cores[place.rank * each :][:each])
    if setup.flags.get("threads") is None:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), each)))


def mean_losses(ranks: Sequence[Losses]) -> tuple[float | None, ...]:
    """The loss of each step: the mean over the processes, whose losses are weighted; None where one is not finite."""
    return tuple(None if None in step else fmean(step) for step in zip(*ranks, strict=True))


def slowest_steps(ranks: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Seconds of each step in the process in which it took longest."""
    return tuple(max(step) for step in zip(*ranks, strict=True))


def merged(blocks: Sequence[Block]) -> Block:
    """One block of the training, from each process's own. Stages are those of the process that took longest."""
    if len(blocks) == 1:
        return blocks[0]
    slowest = max(blocks, key=lambda block: block.seconds)
    own = [block.cpu_seconds or 0.0 for block in blocks]
    busy = [
        block.foreign_cpu_seconds + used
        for block, used in zip(blocks, own, strict=True)
        if block.foreign_cpu_seconds is not None
    ]
    return slowest.model_copy(
        update={
            "samples": total([block.samples for block in blocks]),
            "step_seconds": slowest_steps([block.step_seconds for block in blocks]),
            "losses": mean_losses([block.losses for block in blocks]),
            "cpu_seconds": sum(own),
            "foreign_cpu_seconds": max(max(busy) - sum(own), 0.0) if busy else None,
            "peak_memory_bytes": most([block.peak_memory_bytes for block in blocks]),
            "allocated_memory_bytes": most([block.allocated_memory_bytes for block in blocks]),
            "peak_host_memory_bytes": total([block.peak_host_memory_bytes for block in blocks]),
            "allocation_retries": sum(block.allocation_retries for block in blocks),
            "recompilations": max(block.recompilations for block in blocks),
            "late_seconds": max(block.late_seconds for block in blocks),
        }
    )


def most(values: Sequence[int | None]) -> int | None:
    """The largest that is known; a device's peak counts for each device by itself."""
    return max((value for value in values if value is not None), default=None)


def total(values: Sequence[int | None]) -> int | None:
    """The sum; None where one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def without_waiting(lap: Lap, away: Sequence[float], group: Group) -> Lap:
    """This process's lap without the time in which it waited for another one that evaluated or saved.

    All processes meet in every step: where one is away for a second, the others wait in a message as long.

    Args:
        lap: of this process; its own evaluations and checkpoints are no part of it.
        away: seconds before the end of each step in which this process evaluated, saved or was examined; empty where
            it did neither by itself.
    """
    if group.size == 1 or not away:
        return lap
    longest = [max(step) for step in zip(*group.gather(tuple(away)), strict=False)]
    waited = [whole - own for whole, own in zip(longest, away, strict=False)]
    steps = [max(step - wait, 0.0) for step, wait in zip(lap.steps, waited, strict=False)]
    left = sum(waited)
    stages = dict(lap.stages)
    for stage in ("backward", "optimizer", "forward", "other", "data"):  # where messages wait, as a rule
        taken = min(left, stages.get(stage, 0.0))
        left -= taken
        if taken:
            stages[stage] -= taken
    return replace(lap, seconds=max(lap.seconds - sum(waited), 0.0), stages=stages, steps=steps)
