"""Batches that a script moves itself: without waiting where the plan says so, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from autoopt.script.applying import UnblockedMoves

Moved = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> UnblockedMoves:
    """In place around methods that answer with what they were called with."""
    for name in ("to", "cuda"):
        monkeypatch.setattr(torch.Tensor, name, lambda tensor, *args, **kwargs: (args, kwargs))
    found = UnblockedMoves()
    found.install()
    return found


def test_what_the_training_loader_gave_is_moved_without_waiting(moves: UnblockedMoves) -> None:
    x, y, own = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    moves.batch_given(None, {"image": x, "target": [y]}, True)
    assert x.to("cuda") == (("cuda",), {"non_blocking": True})
    assert y.cuda() == ((), {"non_blocking": True})
    assert own.to("cuda") == (("cuda",), {}), "a buffer that is filled again would arrive changed"
    moves.batch_given(None, [own], False)
    assert own.to("cuda") == (("cuda",), {}), "nor what an evaluation reads: the patch leaves its lines alone"
    moves.batch_given(None, [own], True)
    assert x.to("cuda") == (("cuda",), {})


def test_what_the_script_says_itself_stays(moves: UnblockedMoves) -> None:
    x = torch.zeros(2)
    moves.batch_given(None, (x,), True)
    assert x.to("cuda", non_blocking=False) == (("cuda",), {"non_blocking": False})
    assert x.to("cuda", torch.float16, True) == (("cuda", torch.float16, True), {})
