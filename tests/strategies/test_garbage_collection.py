"""The collector: what it takes is seen, what lives is frozen, what is garbage still goes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from autoopt.benchmark.trial_context import TrialContext
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt.trial.protocol import TrialSpec
from autoopt.workload import Workload
from autoopt_strategies.compute.garbage_collection import CollectRarely, collected_share


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_goes_at_its_step() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = CollectRarely(every=3)(partial(torch.optim.SGD, lr=0.1))([weight])
    assert gc.get_freeze_count() > 0
    cycle = Cycle()
    gone = weakref.ref(cycle)
    del cycle
    alive = []
    for _ in range(3):
        optimizer.step()
        alive.append(gone() is not None)
    assert alive == [True, True, False]


def test_what_the_collector_takes_is_seen() -> None:
    heap = [[] for _ in range(300_000)]  # type: ignore[var-annotated]
    assert collected_share(lambda: [gc.collect() for _ in range(3)]) > 0.5
    assert collected_share(lambda: sum(range(1000))) == 0.0
    assert len(heap) == 300_000
    assert len(gc.callbacks) == 0 or all(getattr(call, "__name__", "") != "watch" for call in gc.callbacks)


def test_what_collate_collects_by_force_is_seen() -> None:
    def collating(rows: list[Any]) -> Any:
        gc.collect()
        return torch.utils.data.default_collate(rows)

    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.zeros(64).long())
    given = Workload(
        model=torch.nn.Linear(4, 2),
        train_data=torch.utils.data.DataLoader(data, batch_size=8, collate_fn=collating),
        loss=torch.nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        max_steps=8,
    )
    registry = load_strategies()
    live = TrialContext(TrialSpec(workload="tests:garbage", device="cpu"), registry, workload=given)
    found = registry["garbage_collection"].inspect(live)
    assert found["preparing"] > 0.2


def test_it_applies_where_the_collector_takes_a_share() -> None:
    strategy = load_strategies()["garbage_collection"]
    assert strategy.applies(sample_case(inspected={strategy.name: {"preparing": 0.05, "computing": 0.0}}))
    refused = strategy.applies(sample_case(inspected={strategy.name: {"preparing": 0.0001, "computing": 0.0}}))
    assert "0.0% of the time" in refused.reason
    assert not strategy.applies(sample_case())
