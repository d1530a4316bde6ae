"""When a lap ends: at the same step in all processes, however far their hosts would run ahead of one another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from autoopt.benchmark.distributed.group import AT, END, Board, Ranks


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
    for step in range(1, 99):
        for number in (lead, 1 - lead):
            if number not in ended and overs[number](step, 0.0):
                ended[number] = step
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
