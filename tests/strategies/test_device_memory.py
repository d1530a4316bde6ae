"""Strategies on a CUDA device, seen without one: copies that do not wait, activations worth their memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoopt_strategies.input.batches import Collated
from autoopt_strategies.input.device_dataset import OnDevice, indices_on
from autoopt_strategies.memory.checkpointing import CheckpointBlocks


def test_indices_go_to_the_device_from_pinned_memory_and_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        said.append(("pin", tensor.tolist()))
        return tensor

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        said.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", to)
    assert indices_on(torch.device("cuda"), [3, 1]).tolist() == [3, 1]
    assert said == [("pin", [3, 1]), ("cuda", True)]


def test_rows_of_the_device_dataset_are_those_asked_for() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2))
    found = OnDevice(data, "cpu").__getitems__([4, 0])
    assert isinstance(found, Collated)
    assert found.batch[0].tolist() == [[8.0, 9.0], [0.0, 1.0]]


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
            (CheckpointBlocks(selective=True)(model) if selective else model)(torch.randn(2, 5, 8)).sum().backward()
        return counting.calls

    plain, selective = calls(False), calls(True)
    assert selective["addmm"] == plain["addmm"]
    assert selective["bmm"] >= plain["bmm"] + 2, "the scores of each block are computed again"
