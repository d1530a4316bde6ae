"""What a process keeps: the collector, freed memory, activations that are computed again, and threads of workers."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autoopt.benchmark.loader import training_loader, validation_loader
from autoopt.errors import WorkloadError
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case, tiny_workload
from autoopt_strategies.compute.garbage_collection import collected_share, collecting_rarely
from autoopt_strategies.input.worker_threads import parallelism
from autoopt_strategies.memory.allocator import Allocator
from autoopt_strategies.memory.checkpointing import checkpoint_blocks
from tests.benchmark.small_training import operators
from tests.strategies.stand_ins import in_trial, small_workload

REGISTRY = load_strategies()


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
    optimizer = collecting_rarely(torch.optim.SGD([weight], lr=0.1), every=3)
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

    data = TensorDataset(torch.randn(64, 4), torch.zeros(64).long())
    loader = DataLoader(data, batch_size=8, collate_fn=collating)
    given = small_workload(torch.nn.Linear(4, 2), loader, batch_size=None, max_steps=8)
    assert REGISTRY["garbage_collection"].inspect(in_trial(given))["preparing"] > 0.2


# Threads inside loader workers: seen, limited, and the user's own ``worker_init_fn`` still called.


class Limits(Dataset[Any]):
    """Samples tell the process that they are made in: its variables and torch's threads."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        said = (os.environ.get("OMP_NUM_THREADS", "0"), os.environ.get("MARKED", "0"))
        return torch.tensor([int(text) for text in said] + [torch.get_num_threads()])


def mark(worker: int) -> None:
    os.environ["MARKED"] = "7"


def test_workers_are_limited_after_the_user_s_own_worker_init_fn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    loader = DataLoader(Limits(), batch_size=2, num_workers=1, worker_init_fn=mark)
    workload = dataclasses.replace(tiny_workload(), train_data=loader, batch_size=None)
    setup = REGISTRY["worker_threads"].apply(Setup(), {"threads": 1})
    rows = torch.cat(list(training_loader(workload, setup, 0).loader))
    assert rows.tolist() == [[1, 7, 1]] * 4
    assert os.environ["OMP_NUM_THREADS"] == "8", "this process keeps its threads"


class Alone(Dataset[Any]):
    """A sample that the reading thread works at."""

    data = np.ones(1_000_000)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return float(np.sqrt(self.data).sum())


class Helped(Alone):
    """A sample that another thread works at, outside the GIL, as those of BLAS and OpenCV do."""

    def __getitem__(self, index: int) -> float:
        other = threading.Thread(target=super().__getitem__, args=(index,))
        other.start()
        other.join()
        return 0.0


def test_threads_that_work_at_a_sample_are_seen_whatever_else_runs() -> None:
    before = torch.get_num_threads()
    assert parallelism(Alone(), [0, 1, 2, 3]) < 1.2 < parallelism(Helped(), [0, 1, 2, 3])
    assert torch.get_num_threads() == before


def test_new_workers_bring_it_along_where_samples_take_several_threads() -> None:
    case = sample_case("cuda:0", inspected={"worker_threads": {"parallelism": 3.0}})
    (companion,) = REGISTRY["workers"].companions(case, {"num_workers": 4})
    assert companion.strategy == "worker_threads"


def test_validation_has_a_loader_of_its_own() -> None:
    data = tiny_workload().train_data
    workload = dataclasses.replace(tiny_workload(), valid_data=data, evaluate=lambda model, batches: {"loss": 0.0})
    setup = REGISTRY["validation_loader"].apply(Setup(), {"num_workers": 1, "persistent_workers": True})
    made = validation_loader(workload, setup, 0)
    assert (made.loader.num_workers, training_loader(workload, setup, 0).loader.num_workers) == (1, 0)
    with pytest.raises(WorkloadError, match="'shuffle' of the validation loader"):
        validation_loader(workload, Setup().with_evaluation(shuffle=True), 0)


def test_kept_validation_samples_are_read_once() -> None:
    class Read(Dataset[torch.Tensor]):
        times = 0

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> torch.Tensor:
            Read.times += 1
            return torch.full((2,), float(index))

    for data in (Read(), DataLoader(Read(), batch_size=3)):
        Read.times = 0
        workload = dataclasses.replace(tiny_workload(), valid_data=data, evaluate=lambda model, batches: {"loss": 0.0})
        setup = REGISTRY["validation_loader"].apply(Setup(), {"samples": {"where": "memory"}, "num_workers": 0})
        made = validation_loader(workload, setup, 0)
        twice = [torch.cat([*made.loader]) for _ in range(2)]
        assert Read.times == 6
        assert torch.equal(twice[0], twice[1])
        assert twice[0][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# Memory: what is computed again, and what the allocator is asked for.


class Attending(nn.Module):
    """Attention written out: its scores are a product of batches of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return x + self.out(torch.bmm(torch.bmm(q, k.mT).softmax(-1), v))


def test_selective_checkpointing_keeps_products_with_weights_and_computes_scores_again() -> None:
    def calls(selective: bool) -> Counter[str]:
        model = nn.Sequential(Attending(), Attending())
        changed = checkpoint_blocks(model, selective=True) if selective else model
        return operators(lambda: changed(torch.randn(2, 5, 8)).sum().backward())

    plain, selective = calls(False), calls(True)
    assert selective["addmm"] == plain["addmm"]
    assert selective["bmm"] >= plain["bmm"] + 2, "the scores of each block are computed again"


THRESHOLD, SPLIT = "garbage_collection_threshold:0.8", "max_split_size_mb:128"


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "", "expandable_segments:True"),
        ("PYTORCH_CUDA_ALLOC_CONF", f"{SPLIT},expandable_segments:False", f"{SPLIT},expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", THRESHOLD, f"{THRESHOLD},expandable_segments:True"),
    ],
)
def test_the_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch, name: str, given: str, wanted: str) -> None:
    for each in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(each, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    strategy, setting = Allocator(), {"expandable_segments": True}
    assert strategy.apply(Setup(), setting).flags["env"] == {name: wanted}
    assert f'os.environ["{name}"] = "{wanted}"' in strategy.recipe(setting).pytorch
    monkeypatch.setenv(name, wanted)  # as in the trial's own process, where it is applied once more
    assert strategy.apply(Setup(), setting).flags["env"] == {name: wanted}
