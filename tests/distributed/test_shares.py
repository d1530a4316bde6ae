"""Shares of a batch, what several processes measured put together, and when they end a lap."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autoopt.benchmark import affinity
from autoopt.benchmark.distributed import step
from autoopt.benchmark.distributed.group import (
    AT,
    END,
    Board,
    Group,
    Ranks,
    device_of,
    keep_to_cores,
    mean_losses,
    merged,
)
from autoopt.benchmark.distributed.shares import SharedBatches, bounds
from autoopt.benchmark.distributed.step import BUCKET, FIRST_BUCKET, buckets_of, spread, straggler
from autoopt.errors import TrialFailed
from autoopt.records.messages import Block
from autoopt.records.protocol import Rank
from autoopt.setup import Distributed, Setup
from autoopt.trial.process import _consequence, _standing


class One(Group):
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 6))
def test_shares_of_all_ranks_are_the_batches_of_one(sizes: list[int], ranks: int) -> None:
    """Every sample once, in the same order, and the weighted means of the shares are the mean of the batch."""
    first, batches = 0, []
    for size in sizes:
        batches.append(list(range(first, first + size)))
        first += size
    shared = [SharedBatches(batches, One(rank, ranks)) for rank in range(ranks)]
    read = [list(each) for each in shared]
    for number, batch in enumerate(batches):
        weights = [each.weights[number][0] for each in shared]
        own = [each[number] for each in read]
        joined = [sample for part, weight in zip(own, weights, strict=True) if weight for sample in part]
        assert joined == batch
        mean = sum(w * sum(part) / len(part) for w, part in zip(weights, own, strict=True)) / ranks
        assert mean == pytest.approx(sum(batch) / len(batch))
        assert all(own), "a rank without a sample still takes part in the step"


def test_a_batch_sampler_keeps_its_attributes() -> None:
    class Sampler(list[list[int]]):
        def set_epoch(self, epoch: int) -> int:
            return epoch

    shared = SharedBatches(Sampler([[0, 1]]), One(0, 2))
    assert (len(shared), shared.set_epoch(3)) == (1, 3)
    assert not hasattr(shared, "nothing")


def test_bounds_differ_by_one_sample_at_most() -> None:
    assert [bounds(30, rank, 4) for rank in range(4)] == [(0, 8), (8, 16), (16, 23), (23, 30)]


def test_one_block_of_two() -> None:
    one = Block(steps=2, samples=8, seconds=1.0, step_seconds=(0.4, 0.6), losses=(1.0, 2.0), cpu_seconds=0.8,
                foreign_cpu_seconds=1.0, peak_memory_bytes=10, peak_host_memory_bytes=5)  # fmt: skip
    other = one.model_copy(update={"samples": 7, "seconds": 1.1, "step_seconds": (0.5, 0.5), "losses": (3.0, None)})
    both = merged([one, other])
    assert (both.samples, both.seconds, both.step_seconds, both.losses) == (15, 1.1, (0.5, 0.6), (2.0, None))
    assert both.cpu_seconds == 1.6
    assert both.foreign_cpu_seconds == pytest.approx(0.2), "one rank's own work is foreign to the other alone"
    assert (both.peak_memory_bytes, both.peak_host_memory_bytes) == (10, 10)
    assert merged([one]) is one
    assert mean_losses([(1.0,), (3.0,)]) == (2.0,)


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [device_of("cuda", 1), device_of("cuda:2", 1), device_of("cpu", 3)] == ["cuda:1", "cuda:3", "cpu"]
    bound: list[tuple[int, ...]] = []
    monkeypatch.setattr(affinity, "bind", bound.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    for cores, rank in ((5, 0), (5, 1), (1, 1)):
        monkeypatch.setattr(affinity, "cores", lambda cores=cores: tuple(range(cores)))
        keep_to_cores(Setup(distributed=Distributed(own_cores=True)), Rank(rank=rank, size=2, folder="", port=0))
    assert bound == [(0, 1), (2, 3)], "no cores of its own where there are fewer than processes"


def test_buckets_are_those_of_torch() -> None:
    assert buckets_of(60 * 2**20, None) == [FIRST_BUCKET, BUCKET, BUCKET, 60 * 2**20 - FIRST_BUCKET - 2 * BUCKET]
    assert buckets_of(100, 4.0) == [100]


def test_a_straggler_stands_out_of_the_others_spread() -> None:
    usual, slow = spread([1.0, 1.1, 1.2]), spread([1.5, 1.6, 1.7])
    assert straggler((usual, slow)) == 1
    assert straggler((usual, spread([1.1, 1.2, 1.3]))) is None


def test_who_was_left_alone_is_not_to_blame() -> None:
    killed = TrialFailed("crashed", "signal 9 (SIGKILL, killed)")
    alone = TrialFailed("error", "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    own = TrialFailed("error", "ValueError: a bad sample")
    assert sorted([alone, own, killed], key=_consequence) == [killed, own, alone]


def test_where_a_thread_stands_and_who_waits() -> None:
    head = "Current thread 0x7f (most recent call first):"
    dump = f'{head}\n  File "/w/train.py", line 33 in fail\n  File "/w/x.py", line 1 in f'
    waits = f'{head}\n  File "/t/autograd/graph.py", line 8 in _engine_run_backward'
    assert _standing(dump) == "train.py:33 (fail)"
    assert _standing(waits) == ""


def test_batchnorm_waits_for_nobody_while_processes_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process measures for as long as it likes: a message in a forward pass would be waited for in vain."""
    monkeypatch.setattr(step, "alone", lambda: "this process")
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    model[1].process_group = "all of them"
    with step.own_statistics(model):
        assert model[1].process_group == "this process"
    assert model[1].process_group == "all of them"


# When a lap ends: at the same step in all processes, however far their hosts would run ahead of one another.


def rank(number: int, tmp_path: Path, device: str = "cpu") -> Ranks:
    return Ranks(number, 2, torch.device(device), Board(str(tmp_path / "board")))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_that_runs_ahead_ends_with_the_others(tmp_path: Path, device: str) -> None:
    """Nothing but the board holds it back here: a host that only queues work is waited for by no message."""
    first, second = rank(0, tmp_path, device), rank(1, tmp_path, device)
    steps = {0: 0, 1: 0}

    def train(which: Ranks) -> None:
        over = which.agreed(lambda done, _: done >= 300)
        while not over(steps[which.rank] + 1, 0.0):
            steps[which.rank] += 1

    other = threading.Thread(target=train, args=(second,), daemon=True)
    other.start()
    train(first)
    other.join(30)
    assert not other.is_alive()
    assert steps[0] == steps[1] >= 299


@pytest.mark.parametrize("lead", [0, 1])
def test_a_lap_ends_at_the_same_step_whoever_is_ahead(tmp_path: Path, lead: int) -> None:
    """The first rank has had enough after its step 5, when the other one may have looked already."""
    overs = [rank(number, tmp_path).agreed(lambda done, _: done >= 5) for number in (0, 1)]
    ended: dict[int, int] = {}
    for at in range(1, 99):
        for number in (lead, 1 - lead):
            if number not in ended and overs[number](at, 0.0):
                ended[number] = at
    assert ended[0] == ended[1] >= 6


def test_a_lap_of_a_known_length_is_exact_and_knows_nothing_of_the_one_before(tmp_path: Path) -> None:
    for number in (0, 1):
        over = rank(number, tmp_path).agreed(lambda done, _: done >= 3, 3)
        assert [over(step, 0.0) for step in (1, 2, 3)] == [False, False, True]
    board = Board(str(tmp_path / "other"))
    board.put(AT, 1, 7)
    board.put(END, 1, 8)
    assert [board.get(place, lap) for lap in (1, 2) for place in (AT, END)] == [7, 8, None, None]


def test_a_rank_that_ran_past_the_end_says_so(tmp_path: Path) -> None:
    first, second = (rank(number, tmp_path).agreed(lambda done, _: done >= 2) for number in (0, 1))
    assert not first(2, 0.0)
    with pytest.raises(RuntimeError, match=r"rank 1 is at step 99 of a lap that ended with step \d+"):
        second(99, 0.0)
