"""The same seed gives the same order of samples, for any number of workers and whatever else draws numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.errors import WorkloadError
from autoopt.setup import Setup
from autoopt.workload import Workload

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
SAMPLES = 23


class Numbers(Dataset[torch.Tensor]):
    """Sample ``i`` is the number ``i``, so that a batch tells the order."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Drawing(Sampler[int]):
    """A sampler that draws from every global generator, for every item."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        for _ in range(SAMPLES):
            yield (int(torch.randint(SAMPLES, ())) + random.randrange(SAMPLES) + np.random.randint(SAMPLES)) % SAMPLES


class ByEpoch(Sampler[int]):
    """As a DistributedSampler: its order follows from the epoch that the loop tells it."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter([(index + self.epoch) % SAMPLES for index in range(SAMPLES)])


class Buckets(Sampler[list[int]]):
    """A batch sampler of its own kind, with batches of several sizes."""

    batch_size = 4

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(SAMPLES).tolist()
        for size in (2, 3, 4, 5, 6):
            yield [order.pop() for _ in range(size)]


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(index)]) for index in range(SAMPLES))


class Sharing(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        part, parts = (info.id, info.num_workers) if info else (0, 1)
        return (torch.tensor([float(index)]) for index in range(part, SAMPLES, parts))


def loaders() -> dict[str, Any]:
    """Fresh loaders, as a user's ``build()`` would make them; None: a Dataset with batch_size."""
    seeded = torch.Generator().manual_seed(5)
    own = torch.Generator().manual_seed(6)
    return {
        "dataset": None,
        "shuffle": DataLoader(Numbers(), 4, shuffle=True),
        "shuffle with generator": DataLoader(Numbers(), 4, shuffle=True, generator=seeded),
        "sequential": DataLoader(Numbers(), 4),
        "random sampler": DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), generator=own)),
        "with replacement": DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), True, 30)),
        "subset": DataLoader(Numbers(), 4, sampler=SubsetRandomSampler(range(3, 17))),
        "weighted": DataLoader(Numbers(), 4, sampler=WeightedRandomSampler([1.0] * SAMPLES, 20)),
        "drawing": DataLoader(Numbers(), 4, sampler=Drawing()),
        "by epoch": DataLoader(Numbers(), 4, sampler=ByEpoch()),
        "plain batch sampler": DataLoader(Numbers(), batch_sampler=BatchSampler(RandomSampler(Numbers()), 4, True)),
        "own batch sampler": DataLoader(Numbers(), batch_sampler=Buckets()),
        "no batching": DataLoader(Numbers(), batch_size=None, shuffle=True),
        "drop last": DataLoader(Numbers(), 4, shuffle=True, drop_last=True),
        "stream": DataLoader(Stream(), 4),
    }


def workload(data: Any, **changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "model": nn.Sequential(nn.Linear(1, 2), nn.Dropout(0.5), nn.Linear(2, 1)),
        "train_data": Numbers() if data is None else data,
        "batch_size": 4 if data is None else None,
        "loss": lambda model, batch: model(batch).mean() * 0.001,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.01),
        "max_steps": 18,
    }
    return Workload(**{**fields, **changes})


def order(name: str, setup: Setup, steps: int = 18, draw: bool = False, seed: int = 3) -> list[list[float]]:
    """The samples of each step. ``draw``: the loop draws numbers between the steps."""
    seed_everything(seed)
    training = Training(workload(loaders()[name]), setup, device="cpu", seed=seed)
    seen = []
    for _ in range(steps):
        group = training.next()
        seen.append([value for batch in group for value in batch.flatten().tolist()])
        training.step(group)
        if draw:
            torch.rand(3), np.random.rand(), random.random()
    training.close()
    return seen


@pytest.mark.parametrize("name", loaders())
def test_workers_do_not_change_the_order(name: str) -> None:
    plain = order(name, Setup())
    assert order(name, Setup(), draw=True) == plain
    workers = 1 if name == "stream" else 3
    assert order(name, Setup().with_loader(num_workers=workers, prefetch_factor=3)) == plain
    if name in ("dataset", "shuffle", "shuffle with generator", "drawing"):
        assert order(name, Setup().with_loader(num_workers=2, persistent_workers=True), draw=True) == plain


@pytest.mark.parametrize("name", ["dataset", "shuffle", "random sampler", "drawing", "own batch sampler"])
def test_epochs_differ(name: str) -> None:
    seen = order(name, Setup(), steps=12)
    assert seen[:5] != seen[6:11]


@pytest.mark.parametrize("name", ["dataset", "shuffle", "shuffle with generator", "sequential", "plain batch sampler"])
def test_each_epoch_holds_each_sample_once(name: str) -> None:
    steps = 5 if name == "plain batch sampler" else 6
    seen = order(name, Setup(), steps=2 * steps)
    for epoch in (seen[:steps], seen[steps:]):
        samples = [sample for step in epoch for sample in step]
        assert len(set(samples)) == len(samples) == (20 if steps == 5 else SAMPLES)


def test_a_generator_of_the_users_gives_the_users_own_order() -> None:
    theirs = loaders()["shuffle with generator"]
    own = [batch.flatten().tolist() for _ in range(3) for batch in theirs]
    assert order("shuffle with generator", Setup()) == own


def test_a_sampler_is_told_its_epoch() -> None:
    seen = order("by epoch", Setup(), steps=18)
    assert [seen[0][0], seen[6][0], seen[12][0]] == [0.0, 1.0, 2.0]


def test_batch_size_changes_what_is_in_a_batch_and_not_what_is_in_an_epoch() -> None:
    seen = order("shuffle", Setup().with_batch(size=8), steps=3)
    assert [len(step) for step in seen] == [8, 8, 7]
    assert sorted(value for step in seen for value in step) == list(range(SAMPLES))
    plain = order("plain batch sampler", Setup().with_batch(size=6), steps=3)
    assert [len(step) for step in plain] == [6, 6, 6]


def test_accumulation_groups_within_an_epoch() -> None:
    seen = order("shuffle", Setup().with_batch(accumulation=4), steps=4)
    assert [len(step) for step in seen] == [16, 7, 16, 7]


@pytest.mark.parametrize("name", ["own batch sampler", "no batching"])
def test_a_batch_that_cannot_be_changed_says_so(name: str) -> None:
    with pytest.raises(WorkloadError, match="cannot be changed to 8"):
        order(name, Setup().with_batch(size=8))


def test_an_unshared_stream_is_refused_with_two_workers_and_never_doubled() -> None:
    with pytest.raises(WorkloadError, match="2 workers yield every sample 2 times"):
        order("stream", Setup().with_loader(num_workers=2))


def test_an_unshared_stream_that_the_user_doubles_is_told() -> None:
    training = Training(workload(DataLoader(Stream(), 4, num_workers=2)), device="cpu")
    assert "every sample 2 times" in training.warnings[0]


def test_a_shared_stream_takes_workers() -> None:
    training = Training(workload(DataLoader(Sharing(), 4)), Setup().with_loader(num_workers=2), device="cpu")
    seen = [value for _ in range(6) for batch in training.next() for value in batch.flatten().tolist()]
    training.close()
    assert sorted(seen) == list(range(SAMPLES))


def test_the_users_loader_is_left_as_it_is() -> None:
    theirs = DataLoader(Numbers(), 4, shuffle=True)
    before = dict(vars(theirs))
    Training(workload(theirs), Setup().with_loader(num_workers=1), device="cpu")
    assert dict(vars(theirs)) == before


class OwnKind(DataLoader[Any]):
    """A loader of the user's own kind; its batches are doubled."""

    def __iter__(self) -> Any:
        return (batch * 2 for batch in super().__iter__())


def test_a_subclass_keeps_its_ways_and_takes_workers() -> None:
    for setup in (Setup(), Setup().with_loader(num_workers=2, prefetch_factor=4)):
        training = Training(workload(OwnKind(Numbers(), 4)), setup, device="cpu")
        assert training.next()[0].flatten().tolist() == [0.0, 2.0, 4.0, 6.0]
        training.close()
    with pytest.raises(WorkloadError, match="OwnKind"):
        Training(workload(OwnKind(Numbers(), 4)), Setup().with_batch(size=8), device="cpu")


def test_options_of_the_users_loader_are_kept() -> None:
    def collate(items: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(items) + 100

    def init(_: int) -> None:
        pass

    theirs = DataLoader(Numbers(), 4, collate_fn=collate, num_workers=2, worker_init_fn=init, timeout=30,
                        prefetch_factor=5, persistent_workers=True, multiprocessing_context="fork")  # fmt: skip
    training = Training(workload(theirs), device="cpu")
    inner = training.loader.loader
    for name in ("num_workers", "worker_init_fn", "timeout", "prefetch_factor", "persistent_workers", "collate_fn"):
        assert getattr(inner, name) == getattr(theirs, name), name
    assert inner.multiprocessing_context.get_start_method() == "fork"  # type: ignore[union-attr]
    without = Training(workload(theirs), Setup().with_loader(num_workers=0), device="cpu").loader.loader
    assert (without.num_workers, without.prefetch_factor, without.timeout) == (0, None, 0)
    assert without.collate_fn is collate


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(WorkloadError, match="'num_wrokers' cannot be set"):
        Training(workload(None), Setup().with_loader(num_wrokers=2), device="cpu")


def test_a_transformed_dataset_is_read() -> None:
    class Plus(Dataset[torch.Tensor]):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __len__(self) -> int:
            return len(self.inner) - 3

        def __getitem__(self, index: int) -> torch.Tensor:
            value: torch.Tensor = self.inner[index] + 100
            return value

    for data in (None, loaders()["sequential"], loaders()["shuffle"]):
        training = Training(workload(data), Setup().with_dataset(Plus), device="cpu")
        seen = [value for _ in range(5) for batch in training.next() for value in batch.flatten().tolist()]
        assert sorted(seen) == [100.0 + index for index in range(20)]
