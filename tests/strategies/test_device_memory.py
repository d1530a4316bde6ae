"""Memory: what is kept, computed again and allocated, and indices that reach the device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoopt import Setup
from autoopt_strategies.input.prepared import Rows
from autoopt_strategies.memory.allocator import Allocator
from autoopt_strategies.memory.checkpointing import checkpoint_blocks


def test_indices_go_to_the_device_from_pinned_memory_and_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2)))
    rows.pinned = True
    asked: list[Any] = []
    made, to = torch.tensor, torch.Tensor.to
    monkeypatch.setattr(torch, "tensor", lambda data, pin_memory: asked.append(pin_memory) or made(data))
    monkeypatch.setattr(torch.Tensor, "to", lambda *given, **how: asked.append(how) or to(*given, **how))
    assert rows.__getitems__([3, 1]).batch[0].tolist() == [[6.0, 7.0], [2.0, 3.0]]
    assert asked == [True, {"non_blocking": True}]


class Attending(nn.Module):
    """Attention written out: its scores are a product of batches of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return x + self.out(torch.bmm(torch.bmm(q, k.mT).softmax(-1), v))


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_selective_checkpointing_keeps_products_with_weights_and_computes_scores_again() -> None:
    def calls(selective: bool) -> Counter[str]:
        model = nn.Sequential(Attending(), Attending())
        with Counting() as counting:
            (checkpoint_blocks(model, selective=True) if selective else model)(torch.randn(2, 5, 8)).sum().backward()
        return counting.calls

    plain, selective = calls(False), calls(True)
    assert selective["addmm"] == plain["addmm"]
    assert selective["bmm"] >= plain["bmm"] + 2, "the scores of each block are computed again"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:False"},
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.8", "PYTORCH_CUDA_ALLOC_CONF": ""},
            {"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.8,expandable_segments:True"},
        ),
    ],
)
def test_the_users_own_settings_stay(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], wanted: dict[str, str]
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    strategy = Allocator()
    setting = {"expandable_segments": True}
    flags = strategy.apply(Setup(), setting).flags["env"]
    assert flags == wanted
    ((name, value),) = wanted.items()
    assert f'os.environ["{name}"] = "{value}"' in strategy.recipe(setting).pytorch
    monkeypatch.setenv(name, value)  # as in the trial's own process, where it is applied once more
    assert strategy.apply(Setup(), setting).flags["env"] == wanted
