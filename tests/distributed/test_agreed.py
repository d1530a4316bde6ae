"""When a lap ends: at the same step in all processes, however far their hosts would run ahead of one another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from autoopt.benchmark.distributed.group import Board, Ranks


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


def test_a_lap_knows_nothing_of_the_one_before(tmp_path: Path) -> None:
    board = Board(str(tmp_path / "board"))
    board.comes_to(1, 7)
    board.ends(1, 8)
    assert (board.first_at(1), board.end_of(1)) == (7, 8)
    assert (board.first_at(2), board.end_of(2)) == (0, None)
