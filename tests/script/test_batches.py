"""Batches of a script: which loaders give them, where they come from, who draws and who moves them."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from autoopt.benchmark.seeding import seed_everything
from autoopt.records import Plan, Site, Sites
from autoopt.script import loaders
from autoopt.script.applicable import inapplicable, without_loader
from autoopt.script.applying import UnblockedMoves
from autoopt.script.hook.seeds import mix_seeds
from autoopt.script.loaders import _GENERATORS as GENERATORS
from autoopt.script.loaders import own_draws
from autoopt.script.process import ModelCall
from autoopt.search.planner import Choice, build_queue
from autoopt.setup import Setup
from autoopt.simplify.batches import doubled_batch
from autoopt.testing.strategies import sample_case
from scripted import REGISTRY
from tests.script.conftest import SCRIPTS, StartScript, block_of, edited, plan_of


def test_a_strategy_of_the_loader_says_where_a_script_without_one_gets_its_batches() -> None:
    called = Site(file="get_batch.py", line=7, end_line=7, kind="batch_without_loader")
    sites = Sites(command=("python", "get_batch.py"), cwd=str(SCRIPTS), sites=(called,))
    case = replace(sample_case(), sites=sites)

    queue = build_queue(REGISTRY, case, Choice(), 1.01)
    told = {skipped.strategy.name: skipped.reason for skipped in queue.skipped}
    wanted = (
        "the script has no DataLoader: its own lines make the batches that the model is called with (get_batch.py:7)"
    )
    for name in ("workers", "prepared_samples", "pin_memory"):
        assert told[name] == wanted, name
    assert not any("Dataset" in reason for name, reason in told.items())
    assert inapplicable(REGISTRY.fold(plan_of("workers", num_workers=2)), sites)
    assert without_loader(Setup(), sites) is None


# Random numbers of the training are those of the training alone, whoever reads its samples.


class Noise(Dataset[Any]):
    """Draws from each generator of the host; ``quiet``: from none."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return 0.0 if self.quiet else random.random() + float(np.random.rand()) + float(torch.rand(()))


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Fetchers and seeds are put back at the end."""
    seeds = ((random, "seed"), (np.random, "seed"), (torch, "manual_seed"), (torch.random, "manual_seed"))
    with pytest.MonkeyPatch.context() as undo:
        for owner, name in (*seeds, (_MapDatasetFetcher, "fetch"), (_IterableDatasetFetcher, "fetch")):
            undo.setattr(owner, name, getattr(owner, name))
        yield


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with put_back():
        yield


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
        with put_back():
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

    monkeypatch.setattr(loaders, "_GENERATORS", ((counted, *GENERATORS[0][1:]), *GENERATORS[1:]))
    own_draws(5)
    list(DataLoader(Noise(quiet), batch_size=1, generator=torch.Generator()))
    assert len(read) == 2 * looks, "before and after each batch"


DRAWS = """\
class Drawing(TensorDataset):
    def __getitem__(self, index):
        torch.rand(3), random.random()
        return super().__getitem__(index)


data = Drawing("""


@pytest.mark.slow
def test_dropout_draws_the_same_whatever_the_workers_of_both_loaders(start_script: StartScript, folder: Path) -> None:
    """Nor do draws of a dataset matter, which it does not use."""
    edits = (("import sys", "import random\nimport sys"), ("nn.ReLU()", "nn.Dropout(0.5)"))
    edited(folder, "plain.py", *edits, ("data = TensorDataset(", DRAWS))
    sites = start_script.watch("plain.py", "100000", steps=18)
    loaders = {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}
    plans = (Plan(), plan_of("workers", **loaders), plan_of("validation_loader", **loaders))
    losses = [start_script.losses("plain.py", "100000", steps=40, sites=sites, plan=plan) for plan in plans]
    assert losses[0] == losses[1], "two epochs and a half"
    assert losses[0] == losses[2]


def test_an_order_does_not_depend_on_how_far_an_epoch_is_read(start_script: StartScript, folder: Path) -> None:
    """Lightning stops at the last batch, before a sampler without workers ends: the second epoch had another order."""
    some = "in __import__('itertools').islice(loader, len(loader)):"
    edited(folder, "plain.py", ("in loader:", some))
    sites = start_script.watch("plain.py")
    plans = (Plan(), plan_of("workers", num_workers=1))
    losses = [start_script.losses("plain.py", "100000", steps=40, sites=sites, plan=plan) for plan in plans]
    assert losses[0] == losses[1], "two epochs and a half"


# Batches that a script moves itself: without waiting where the plan says so, and nothing else.

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
    moves.batch_given(None, {"image": x, "target": [y]}, True, None)
    assert x.to("cuda") == (("cuda",), {"non_blocking": True})
    assert y.cuda() == ((), {"non_blocking": True})
    assert own.to("cuda") == (("cuda",), {}), "a buffer that is filled again would arrive changed"
    moves.batch_given(None, [own], False, None)
    assert own.to("cuda") == (("cuda",), {}), "nor what an evaluation reads: the patch leaves its lines alone"
    moves.batch_given(None, [own], True, None)
    assert x.to("cuda") == (("cuda",), {})
    assert own.to("cuda", non_blocking=False) == (("cuda",), {"non_blocking": False}), "the script says so itself"
    assert own.to("cuda", torch.float16, True) == (("cuda", torch.float16, True), {})


# Sequences of a script: what makes its batches, and the order of its samples, are changed at its loader's line.


@pytest.mark.slow
def test_batches_and_their_order_are_changed_where_the_loader_is_made(start_script: StartScript) -> None:
    sites = start_script.watch("padded.py", "100000", steps=8)
    losses, printed = [], []
    for plan in (Plan(), plan_of("trim_padding", multiple=8), plan_of("length_grouping", pool=4)):
        with start_script("padded.py", "100000", sites=sites, plan=plan) as process:
            losses.append(block_of(process, 40).losses)
            printed.append(process.ranks[0].log.read_text())
    usual, trimmed, grouped = losses
    assert trimmed == pytest.approx(usual, rel=1e-5)
    assert "widths [64]" in printed[0]
    assert "widths [16, 24]" in printed[1] or "widths [24]" in printed[1]
    assert len(grouped) == len(usual)
    assert grouped != pytest.approx(usual, rel=1e-3)


# A script's own seeds, mixed with the trial's.


def seeded(seed: int) -> list[float]:
    """Draws of a script that seeds all three."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return drawn()


def test_seeds_that_were_known_before_draw_what_was_not() -> None:
    plain, found = seeded(3), {}
    for trial in (1, 2):
        with put_back():
            mix_seeds(trial)
            found[trial] = seeded(3)
            assert seeded(3) == found[trial], "the same seed draws the same"
            assert all(a != b for a, b in zip(seeded(4), found[trial], strict=True)), "another seed is another one"
            random.seed()  # from the system's entropy, as ever
            np.random.seed(None)
    assert all(a != b for a, b in zip(found[1], plain, strict=True))
    assert all(a != b for a, b in zip(found[1], found[2], strict=True)), "and so is another trial"


ALIKE = """\
class Rows(torch.utils.data.Dataset):
    read = 0

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        Rows.read += 1
        return inputs[index], index % 2


data = Rows(32)
"""


@pytest.mark.parametrize("own", ["", ", collate_fn=lambda batch: torch.utils.data.default_collate(batch)"])
def test_an_evaluation_reads_samples_of_the_training_s_class_as_a_patch_has_it(
    start_script: StartScript, folder: Path, tmp_path: Path, own: str
) -> None:
    """Also where it makes its batches itself."""
    data = ("data = TensorDataset(inputs, (inputs.sum(1) > 0).long())\n", ALIKE)
    valid = ("DataLoader(data, batch_size=64)", f"DataLoader(Rows(16), batch_size=8{own})")
    edited(folder, "plain.py", data, valid, ("{correct / len(data):.4f}", "{correct / 16:.4f} read {Rows.read}"))
    sites = start_script.watch("plain.py", "100000", steps=12)
    keep = plan_of("prepared_samples", form="samples", where="memory")
    process = start_script("plain.py", "100000", sites=sites, plan=keep)
    process.call("autoopt.benchmark.tasks:evaluations", timeout=60.0, count=3, seconds=60.0, stage="evaluate")
    read = re.findall(r"read (\d+)", (tmp_path / "script.log").read_text())
    assert read[-1] == read[-2] == str(32 + 16)
    timings = process.call("autoopt.simplify.tasks:measure_stages", timeout=60.0, seconds=0.5)
    assert timings["evaluate"] is not None, "the run has evaluated by itself"


def test_calls_are_made_with_twice_the_samples() -> None:
    def doubled(*args: Any, **kwargs: Any) -> Any:
        call, device = ModelCall(torch.nn.Identity(), args, kwargs), SimpleNamespace(kind="cpu")
        training: Any = SimpleNamespace(device=device, takes_batches=False, next=lambda: [[call]])
        return doubled_batch(training)

    (twice,) = doubled(torch.ones(3, 2), torch.ones(1, 7), 0.5, mask=torch.zeros(3))
    assert [len(value) for value in (*twice.args[:2], twice.kwargs["mask"])] == [6, 1, 6]
    assert doubled(torch.ones(())) is None, "it has no samples that could be counted"


def test_padding_of_a_scripts_calls_is_left_out_and_timed(start_script: StartScript) -> None:
    """What a script's models are called with could not be changed: grouping by length was never offered with it."""
    with start_script("padded.py", "100000", sites=start_script.watch("padded.py", "100000")) as process:
        asked = ["trim_padding", "length_grouping"]
        found = process.call("autoopt.benchmark.tasks:inspect", timeout=120.0, strategies=asked)
    assert found["trim_padding"]["same"] is True
    assert found["trim_padding"]["ratio"] > 0.0
    assert found["length_grouping"]["follows"] is False
    assert REGISTRY["length_grouping"].applies(sample_case(inspected=found))
