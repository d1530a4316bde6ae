"""Random numbers of the training are those of the training alone, whoever reads its samples."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from autoopt.benchmark.seeding import seed_everything
from autoopt.records import Change, Plan
from autoopt.script import draws
from autoopt.script.draws import _GENERATORS as GENERATORS
from autoopt.script.draws import own_draws
from autoopt.search.compare.arm import TrialArm
from tests.script.conftest import StartScript, sites_of


class Noise(Dataset[Any]):
    """Draws from each generator of the host; ``quiet``: from none."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return 0.0 if self.quiet else random.random() + float(np.random.rand()) + float(torch.rand(()))


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetchers and generators are put back."""
    for kind in (_MapDatasetFetcher, _IterableDatasetFetcher):
        monkeypatch.setattr(kind, "fetch", kind.fetch)


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_what_a_dataset_draws_leaves_the_training_s_generators_where_they_were() -> None:
    own_draws(5)
    seed_everything(1)
    before = drawn()
    seed_everything(1)
    loader = DataLoader(Noise(), batch_size=4, generator=torch.Generator())
    first, second = list(loader), list(loader)
    assert drawn() == before
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0]), "another epoch draws anew"


def test_two_processes_of_one_seed_draw_the_same_samples() -> None:
    read = []
    for seed in (5, 5, 6):
        with pytest.MonkeyPatch.context() as undo:
            for kind in (_MapDatasetFetcher, _IterableDatasetFetcher):
                undo.setattr(kind, "fetch", kind.fetch)
            own_draws(seed)
            seed_everything(1)
            read.append(torch.cat(list(DataLoader(Noise(), batch_size=4, generator=torch.Generator()))))
    assert torch.equal(read[0], read[1])
    assert not torch.equal(read[0], read[2])


@pytest.mark.parametrize(("quiet", "looks"), [(True, 3), (False, 12)])
def test_what_draws_nothing_is_soon_read_without_a_look(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, looks: int
) -> None:
    read: list[int] = []
    state = random.getstate

    def counted() -> Any:
        read.append(1)
        return state()

    monkeypatch.setattr(draws, "_GENERATORS", ((counted, *GENERATORS[0][1:]), *GENERATORS[1:]))
    own_draws(5)
    list(DataLoader(Noise(quiet), batch_size=1, generator=torch.Generator()))
    assert len(read) == 2 * looks, "before and after each batch"


@pytest.mark.slow
def test_dropout_draws_the_same_whatever_the_workers_of_both_loaders(start_script: StartScript) -> None:
    with start_script("drawing.py") as process:
        sites = sites_of(process, steps=16)
    loaders = {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}
    losses = []
    for changes in ((), (("workers", loaders),), (("validation_loader", loaders),)):
        plan = Plan(changes=tuple(Change(strategy=name, setting=setting) for name, setting in changes))
        with start_script("drawing.py", sites=sites, plan=plan) as process:
            losses.append(TrialArm(process, plan).block(0.0, 30, 0.0).losses)
    assert losses[0] == losses[1], "five epochs of six batches"
    assert losses[0] == losses[2]
