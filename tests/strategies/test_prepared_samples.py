"""Samples that are prepared once, kept up to their first random draw, and files in memory: the same in every form."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import random
import tempfile
import threading
import weakref
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from autoopt.records import Change, Plan, Site, SiteKind, Sites
from autoopt.setup import Setup, Wrap
from autoopt.strategy import Case
from autoopt.testing.strategies import sample_case, sample_facts, tiny_workload, train_few_steps
from autoopt.trial.shared import remove_copies
from autoopt_strategies.compute.rewriting.source import Refused
from autoopt_strategies.input import probes
from autoopt_strategies.input.batches import as_tensors, collate_whole, equal
from autoopt_strategies.input.prepared import FilesInMemory, KeptSamples, MappedSamples, Rows, moved
from autoopt_strategies.input.prepared_samples import PREPARED
from autoopt_strategies.input.unaugmented import KeepUnaugmented, split
from scripted import REGISTRY, changed_lines, patched, put
from tests.strategies.stand_ins import promised, with_stages

STRATEGY = REGISTRY["prepared_samples"]


class Varied(Dataset[Any]):
    """Every kind of part that a sample may have, of any size."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(np.full((4 + index, 6, 3), index, "uint8"))
        return {
            "x": torch.full((2, index), index / 3),
            "empty": torch.ones(0, index),
            "a": np.arange(index, index + 4),
            "n": (index, index / 2, index > 2),
        }, image


def same(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_in_a_file_are_the_samples(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Varied()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        kept = MappedSamples(plain, workers=workers)
    for index in range(-1, len(plain)):
        assert equal(kept[index], plain[index % 5])
    again = pickle.loads(pickle.dumps(kept))  # as a worker that is spawned gets it
    assert equal(again[3], plain[3])
    again[3][0]["x"] += 1
    assert equal(again[3], plain[3]), "what training does to a sample does not reach the file"
    loaded = list(DataLoader(kept, batch_size=None, collate_fn=same, num_workers=1))
    assert equal(loaded[4], plain[4])
    assert len(list(tmp_path.iterdir())) == 1
    del kept, again, plain
    assert list(tmp_path.iterdir()) == [], "the files go with the dataset, and not with a worker"


class Uneven(Varied):
    def __getitem__(self, index: int) -> Any:
        return torch.ones((1,) * (index + 1))


def test_samples_of_other_kinds_than_the_first_are_refused() -> None:
    with pytest.raises(ValueError, match="sample 1 holds"):
        MappedSamples(Uneven())


class Counted(Dataset[Any]):
    reads = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        type(self).reads += 1
        return torch.tensor(index)


@pytest.mark.parametrize("kept", [KeptSamples, MappedSamples, Rows])
def test_samples_are_read_once_for_all_loaders_that_are_made_of_them(kept: Any) -> None:
    """A script that makes its loader in each epoch, or in each evaluation, read all of them again."""
    Counted.reads, dataset = 0, Counted()
    loaders = [DataLoader(kept(dataset), batch_size=2, collate_fn=collate_whole) for _ in range(3)]
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [[[0, 1], [2, 3]]] * 3
    assert Counted.reads == 4
    gone = weakref.ref(dataset)
    del dataset, loaders
    gc.collect()
    assert gone() is None, "nothing holds on to a dataset that the script gave up"
    other = kept([torch.tensor(1), torch.tensor(2)])  # to a list nothing can refer weakly
    assert len(other) == 2


class Table(Dataset[Any]):
    """Rows of a table, whose labels are its positions: others than those from the first on are taken one by one."""

    def __init__(self) -> None:
        self.frame = pd.DataFrame({"a": range(40), "b": range(40, 80)}, dtype=float)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: Any) -> Any:
        row = self.frame.iloc[index]
        return torch.tensor(row[["a", "b"]].values, dtype=torch.float32), torch.tensor(row["b"])


def test_rows_of_a_table_are_all_read_by_one_index() -> None:
    table = Table()
    found = probes.batches(table, 16)
    assert "many indices" in found["reason"]
    assert found["ratio"] < 1.0
    inspected = {"prepared_samples": {"kept": {"deterministic": True}, "batches": found}}
    settings = STRATEGY.settings(sample_case(inspected=inspected))
    rows = next(setting for setting in settings if setting["form"] == "rows")
    assert rows["index"] == found["whole"]
    data: Any = table
    for wrap in (Wrap(f"{PREPARED}:IndexedBatches", (("index", rows["index"]),)), Wrap(f"{PREPARED}:Rows")):
        data = wrap(data)
    assert equal(data.__getitems__([9, 3, 3]).batch, default_collate([table[index] for index in (9, 3, 3)]))


FORMS = (
    {"form": "samples", "where": "memory"},
    {"form": "samples", "where": "disk", "workers": 1},
    {"form": "samples", "where": "memory", "workers": 0, "threads": 2},
    {"form": "rows", "where": "memory"},
    {"form": "rows", "where": "device", "device": "cpu"},
    {"form": "rows", "where": "memory", "index": "tensor"},
    {"form": "batches", "where": "dataset", "index": "tensor"},
    {"form": "threads", "where": "dataset", "threads": 2},
)


@pytest.mark.parametrize("setting", FORMS, ids=lambda setting: f"{setting['form']}-{setting['where']}")
def test_training_is_the_same_in_every_form(setting: dict[str, Any]) -> None:
    untouched = train_few_steps(tiny_workload(), Setup(), steps=4)
    assert train_few_steps(tiny_workload(), STRATEGY.apply(Setup(), setting), steps=4) == untouched
    assert STRATEGY.recipe(setting).pytorch


def test_indices_go_to_the_device_from_pinned_memory_and_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(TensorDataset(torch.arange(12.0).reshape(6, 2)))
    rows.pinned = True
    asked: list[Any] = []
    made, to = torch.tensor, torch.Tensor.to
    monkeypatch.setattr(torch, "tensor", lambda data, pin_memory: asked.append(pin_memory) or made(data))
    monkeypatch.setattr(torch.Tensor, "to", lambda *given, **how: asked.append(how) or to(*given, **how))
    assert rows.__getitems__([3, 1]).batch[0].tolist() == [[6.0, 7.0], [2.0, 3.0]]
    assert asked == [True, {"non_blocking": True}]


KEPT = {"deterministic": True, "sample_seconds": 0.01}  # 500 s in one process, 63 s in eight, which have to start


def found(**forms: Any) -> dict[str, Any]:
    return {"inspected": {"prepared_samples": forms}}


def forms_of(case: Any) -> list[str]:
    return [setting["form"] for setting in STRATEGY.settings(case)]


class OnePosition(Dataset[Any]):
    """Rows in a file that is read from where it stands, which each reading moves."""

    def __init__(self) -> None:
        self.position, self.barrier = 0, threading.Event()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.position = index
        self.barrier.wait(0.002)  # another thread reads meanwhile
        return torch.full((4,), self.position)


@pytest.mark.parametrize(("one_position", "saved"), [(False, 0.1), (True, 0.1), (False, 1.1)])
def test_samples_are_read_by_threads_where_these_get_the_same_sooner(one_position: bool, saved: float) -> None:
    """Eight processes were started for what threads only have to wait for."""
    dataset = OnePosition() if one_position else TensorDataset(torch.arange(64.0).reshape(16, 4))
    seen = probes.kept(dataset)
    assert seen["deterministic"]
    assert (seen["threads"] is None) is one_position
    kept = {**seen, "sample_seconds": 0.02, "hit": 0.1, "threads": None if one_position else saved}
    case = sample_case(**found(kept=kept), train_samples=800)
    (setting,) = (each for each in STRATEGY.settings(with_stages(case, storage=2.0)) if each["form"] == "samples")
    assert ("threads" in setting) is (saved < 1.0 and not one_position)


def test_the_form_that_promises_most_is_tried_first() -> None:
    quick = found(kept={"deterministic": True, "hit": 0.4}, batches={"index": "tensor", "ratio": 0.9})
    assert forms_of(sample_case(**quick))[:2] == ["rows", "samples"]
    odd = {"loader": {"custom_collate": True}}
    assert forms_of(sample_case(**quick, **odd)) == ["samples", "threads", "threads"]


@pytest.mark.parametrize(("threads", "offered"), [(20.0, False), (0.98, False), (None, False), (0.2, True)])
def test_threads_are_offered_where_they_were_seen_to_read_sooner(threads: float | None, offered: bool) -> None:
    """Predicted to help in nine of ten searches, they made runs 1.3 to 9 times longer: Python holds the lock."""
    seen = {"deterministic": True, "hit": 0.4, "threads": threads}
    case = with_stages(sample_case(**found(kept=seen)), storage=2.0)
    assert ("threads" in forms_of(case)) is offered
    kept_already = Plan(changes=(Change(strategy="prepared_samples", setting={"form": "samples", "where": "memory"}),))
    assert "threads" not in forms_of(replace(case, plan=kept_already))


def test_what_does_not_fit_into_memory_is_kept_on_the_disk() -> None:
    little = {"available_ram_bytes": 1 << 29}
    (first, *_) = STRATEGY.settings(sample_case(**little, **found(kept=KEPT, free_disk_bytes=1 << 40)))
    assert (first["form"], first["where"]) == ("samples", "disk")
    heads = {"prefix": 2, "sample_bytes": 12_296}
    (first, *_) = STRATEGY.settings(sample_case(**little, **found(kept=heads, free_disk_bytes=1 << 40)))
    assert (first["form"], first["where"], first["first"]) == ("heads", "disk", 2)
    assert STRATEGY.apply(Setup(), first) != Setup()
    spawned = sample_case(loader={"multiprocessing_context": "spawn"}, **found(kept=KEPT, free_disk_bytes=1 << 40))
    assert "disk" in [setting["where"] for setting in STRATEGY.settings(spawned)]
    reason = STRATEGY.applies(sample_case(**little, **found(kept={"prefix": 1}))).reason
    assert "free memory" in reason


@pytest.mark.parametrize(("preparation", "names"), [(1e-4, []), (2.0, ["workers", "threads"])])
def test_transforms_that_are_left_get_workers_where_they_are_what_is_slow(preparation: float, names: list[str]) -> None:
    """Cores that the step gives to workers are missed where it computes longer than they prepare."""
    heads = {"prefix": 1, "hit": 0.5, "sample_seconds": 1e-3, "sample_bytes": 4096}
    case = with_stages(sample_case(loader={"num_workers": 0}, **found(kept=heads)), preparation=preparation)
    setting = next(each for each in STRATEGY.settings(case) if each["form"] == "heads")
    assert [change.strategy for change in STRATEGY.companions(case, setting)] == names


def test_reading_that_takes_the_search_s_time_is_not_tried() -> None:
    random = sample_case(**found(kept={**KEPT, "deterministic": False, "prefix": 1}))
    assert forms_of(random) == ["heads"]
    short = replace(random, seconds_left=200.0)
    assert "samples: reading them takes 63 s of 200 s left for the search" in STRATEGY.applies(short).reason


def test_every_form_says_why_it_is_none() -> None:
    reason = STRATEGY.applies(sample_case(**found(kept={"reason": "random from the first transform on"}))).reason
    assert "samples: random from the first transform on; rows: samples are random" in reason
    assert "collated by torch's default" in probes.batches(Varied(), 4)["reason"]


def test_a_dataset_of_hugging_face_s_gives_the_same_batches_in_the_torch_format() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"ids": np.arange(64 * 8).reshape(64, 8).tolist(), "label": list(range(64))})

    def collate(rows: list[Any]) -> Any:
        return torch.stack([torch.as_tensor(row["ids"]) for row in rows]), torch.tensor([int(r["label"]) for r in rows])

    found = probes.tensors(data, collate)
    assert 0 < found["ratio"] <= 1
    assert isinstance(as_tensors(data)[0]["ids"], torch.Tensor)
    lists = probes.tensors(data, torch.utils.data.default_collate)  # takes lists apart, column by column
    assert "other batches" in lists["reason"]
    assert "already" in probes.tensors(data.with_format("numpy"), collate)["reason"]
    assert "no dataset of Hugging Face's" in probes.tensors(Varied(), collate)["reason"]


# Files in memory: they are found, the dataset's paths point to copies, and these go with it.


class Opening(Dataset[Any]):
    """Samples in files that Python opens, listed as torchvision's ImageFolder does."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.samples = [(str(path), int(path.parent.name)) for path in sorted(root.rglob("*.bin"))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            return np.frombuffer(file.read(), dtype="uint8"), label


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(12):
        (tmp_path / "data" / str(number % 3)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / str(number % 3) / f"{number}.bin").write_bytes(bytes([number] * 100))
    (tmp_path / "memory").mkdir()
    return tmp_path / "data"


def test_the_folder_and_its_size_are_found(root: Path, tmp_path: Path) -> None:
    found = probes.files(Opening(root), str(tmp_path / "memory"))
    assert found["root"] == str(root)
    assert found["bytes"] == 1200
    assert found["room"] > 0
    assert list((tmp_path / "memory").iterdir()) == [], "what was tried is gone"
    subset: Any = Subset(Opening(root), [1, 2, 3])
    assert probes.files(subset, str(tmp_path / "memory"))["root"] == str(root)


def test_samples_are_read_from_the_copies_which_go_with_the_dataset(root: Path, tmp_path: Path) -> None:
    plain = Opening(root)
    made = FilesInMemory(plain, str(root), str(tmp_path / "memory"))
    with probes.opened_files() as opened:
        for index in range(len(plain)):
            assert np.array_equal(made[index][0], np.full(100, int(Path(plain.samples[index][0]).stem)))
            assert made[index][1] == plain[index][1]
    assert sum(file.startswith(str(tmp_path / "memory")) for file in opened) == 2 * len(plain)
    assert plain.root == str(root), "the user's own dataset is as it was"
    assert len(list((tmp_path / "memory").iterdir())) == 1
    del made
    gc.collect()
    assert list((tmp_path / "memory").iterdir()) == []


def test_files_that_cannot_be_watched_or_followed_are_refused(root: Path, tmp_path: Path) -> None:
    memory = str(tmp_path / "memory")
    assert "not read from files" in probes.files([1, 2, 3], memory)["reason"]

    class Hidden(Opening):
        """Works its paths out of a constant."""

        def __getitem__(self, index: int) -> Any:
            with open(os.path.join(HIDDEN[0], "0", "0.bin"), "rb") as file:
                return file.read(), index

    HIDDEN.append(str(root))
    assert "samples are others, or not read" in probes.files(Hidden(root), memory)["reason"]
    assert "in memory already" in probes.files(Opening(root), str(tmp_path))["reason"]


HIDDEN: list[str] = []


def test_paths_of_every_kind_point_to_the_copies() -> None:
    held = {
        "text": "/data/a.png", "path": Path("/data/b.png"), "rows": [("/data/c.png", 1), ("/other/d.png", 2)],
        "array": np.array(["/data/e.png"]), "words": "no path", "number": 3,
    }  # fmt: skip
    other = moved(held, "/data", "/copy")
    assert other["text"] == "/copy/a.png"
    assert other["path"] == Path("/copy/b.png")
    assert other["rows"] == [("/copy/c.png", 1), ("/other/d.png", 2)]
    assert other["array"].tolist() == ["/copy/e.png"]
    assert moved({"text": "/database/a"}, "/data", "/copy")["text"] == "/database/a"
    assert probes.paths_in(held) == {"/data/a.png", "/data/b.png", "/data/c.png", "/other/d.png", "/data/e.png"}


def test_without_a_named_folder_the_files_tell_it(root: Path) -> None:
    files = [str(path) for path in sorted(root.rglob("*.bin"))]

    class Listed(Dataset[Any]):
        def __init__(self) -> None:
            self.files = OrderedDict(enumerate(files))

    assert probes.root_of(Listed(), files[:2]) == str(root)
    assert probes.root_of(Listed(), ["/somewhere/else.bin"]) is None


def test_it_is_offered_where_storage_is_waited_for_and_the_files_fit() -> None:
    found = {"root": "/data", "bytes": 1 << 30, "room": 1 << 40}

    def told(case: Case, **changed: Any) -> str:
        inspected = {"prepared_samples": {"kept": {"reason": "random"}, "files": {**found, **changed}}}
        return STRATEGY.applies(replace(case, workload=sample_facts(inspected=inspected))).reason

    case = sample_case()
    assert told(case) == ""
    assert STRATEGY.predict(case, {"form": "files", "where": "memory", "root": "/data"}) is not None
    assert "GB of files" in told(case, bytes=1 << 39)
    assert "copying takes" in told(replace(case, seconds_left=10.0))
    assert "keeps the files in memory" in told(with_stages(case, storage=0.0))


def test_copies_that_a_killed_process_has_left_are_found_by_its_number(root: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    made = FilesInMemory(Opening(root), str(root), str(memory))
    (memory / "prepared-files-1-other").mkdir()
    remove_copies(os.getpid(), memory)
    assert [path.name for path in memory.iterdir()] == ["prepared-files-1-other"]
    assert made.root.startswith(str(memory))


# Samples kept up to their first random draw: where they are divided, in trials and in the patch.

HEADER = """\
import random

import numpy as np
import torch
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __init__(self, flips=True):
        self.flips, self.__dark, self.reads = flips, 3, 0

    def __len__(self):
        return 40

    def decoded(self, idx):
        self.reads += 1
        return torch.linspace(0, 1, 12).reshape(3, 4) * (idx + self.__dark)

"""
FLIPPED = '''\
    def __getitem__(self, idx):
        """A picture and its class."""
        # it is read
        picture = self.decoded(idx)
        label = idx % 2

        if self.flips and torch.rand(1).item() < 0.5:  # mirrored
            picture = picture.flip(-1)
        return {"picture": picture, "label": label}
'''
MIRRORED = "        if self.flips and torch.rand(1).item() < 0.5:  # mirrored"
SPLIT = """\
-    def __getitem__(self, idx):
-        \"\"\"A picture and its class.\"\"\"
+    @kept_by_index
+    def unaugmented(self, idx):
         # it is read
         picture = self.decoded(idx)
         label = idx % 2
+        return picture, label
+
+    def __getitem__(self, idx):
+        \"\"\"A picture and its class.\"\"\"
+        picture, label = self.unaugmented(idx)
"""
DRAWN_BY = {
    "torch's numbers": "        picture = picture + torch.randn(1)\n",
    "numpy's": "        picture = picture + np.random.rand()\n",
    "Python's": "        picture = picture + random.random()\n",
    "another name, rarely": "        if self.rng_of(idx):\n            picture = picture.flip(0)\n",
    "a method": "        picture = self.turned(picture)\n",
}


def imported(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch, name: str = "pictures") -> ModuleType:
    (folder / f"{name}.py").write_text(HEADER + body)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(importlib.sys.modules, name, raising=False)  # type: ignore[attr-defined]
    return importlib.import_module(name)


def drawn(dataset: Any, seed: int = 5) -> list[Any]:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    return [batch["picture"] for _ in range(2) for batch in DataLoader(dataset, batch_size=4, shuffle=True)]


@pytest.mark.parametrize("threads", [0, 4])
def test_samples_are_divided_before_the_first_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    module = imported(tmp_path, FLIPPED, monkeypatch)
    dataset = Subset(module.Pictures(), range(5, 25))
    found = probes.unaugmented(dataset)
    line = 1 + (HEADER + FLIPPED).splitlines().index(MIRRORED)
    assert found["where"] == {"file": "pictures.py", "function": "Pictures.__getitem__", "line": line}
    assert found["sample_bytes"] >= 48
    kept = KeepUnaugmented(line, threads)(dataset)
    read = dataset.dataset.reads
    assert all(torch.equal(one, other) for one, other in zip(drawn(dataset), drawn(kept), strict=True))
    assert dataset.dataset.reads == read + 40, "the dataset itself reads as before"
    assert kept.dataset.reads == read + 20, "the other one reads each sample of its subset once"
    assert isinstance(kept.dataset, module.Pictures)
    assert type(pickle.loads(pickle.dumps(kept)).dataset) is module.Pictures


@pytest.mark.parametrize("draw", DRAWN_BY)
def test_whoever_draws(draw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "    def rng_of(self, idx):\n        return False\n\n"
        "    def turned(self, picture):\n        return picture + torch.randn(1)\n\n"
        f"    def __getitem__(self, idx):\n        picture = self.decoded(idx)\n        picture = picture * 2\n"
        f"{DRAWN_BY[draw]}        return picture\n"
    )
    module = imported(tmp_path, body, monkeypatch)
    line = 1 + (HEADER + body).splitlines().index(DRAWN_BY[draw].splitlines()[0])
    assert probes.unaugmented(module.Pictures())["where"]["line"] == line


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("        x = torch.rand(1)\n        return x\n", "its first statement"),
        ("        if idx < 0:\n            return None\n        return torch.rand(1)\n", "may end it"),
        ("        self.last = idx\n        x = torch.rand(1)\n        return x + self.last\n", "changes what it reads"),
        ("        x = self.decoded(idx)\n        x += torch.rand(1)\n        return x\n", "other samples"),
        ("        x = self.decoded(idx) * self.reads\n        return x + torch.rand(1)\n", "other samples"),
    ],
    ids=["from the start", "an early end", "by way of the dataset", "in place", "another one each time"],
)
def test_what_cannot_be_divided_says_why(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(tmp_path, f"    def __getitem__(self, idx):\n{body}", monkeypatch)
    assert reason in probes.unaugmented(module.Pictures())["reason"]


def test_a_file_that_was_changed_is_refused() -> None:
    for line in (1, len(HEADER.splitlines()) + 1):
        with pytest.raises(Refused):
            split(HEADER + FLIPPED, "Pictures.__getitem__", line)


@pytest.mark.parametrize("threads", [{}, {"threads": 4}])
def test_the_patch_divides_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: dict[str, int]) -> None:
    text = HEADER + FLIPPED + "\n\nprint(sum(sample['picture'].sum() for sample in map(Pictures().__getitem__, [3])))\n"
    (tmp_path / "train.py").write_text(text)
    line = 1 + text.splitlines().index(MIRRORED)
    where = {"file": "train.py", "function": "Pictures.__getitem__", "line": line}
    setting = {"form": "unaugmented", "where": "memory", "split": where, **threads}
    change = Change(strategy="prepared_samples", setting=setting)
    sites = Sites(command=("python", "train.py"), cwd=str(tmp_path))
    after, patch = patched(tmp_path, text, change, sites=sites)
    assert [each.how for each in patch.changes] == ["patched"], patch.changes
    assert SPLIT in patch.diff or threads, patch.diff
    assert "from prepared import kept_by_index" in after
    assert "def kept_by_index(" in patch.diff
    assert ("        return read_by_threads(self, indices, threads=4)\n" in after) is bool(threads)
    assert ("def read_by_threads(" in patch.diff) is bool(threads)
    assert len([each for each in changed_lines(patch.diff) if not each.startswith("+")]) <= 3


@pytest.mark.parametrize(("dataset", "left_out"), [("Pictures", True), ("Others", False)])
def test_the_patch_leaves_out_the_workers_of_evaluations_that_read_the_same(
    tmp_path: Path, dataset: str, left_out: bool
) -> None:
    """A worker that is started for an evaluation would make kept samples once more each time."""
    made = [
        "train = DataLoader(Pictures(), batch_size=8, num_workers=2)",
        "valid = DataLoader(Pictures(False), batch_size=4, num_workers=2)",
    ]
    text = HEADER + FLIPPED + "\n\n" + "\n".join(made) + "\n"
    (tmp_path / "train.py").write_text(text)
    lines = text.splitlines()
    where = {"file": "train.py", "function": "Pictures.__getitem__", "line": 1 + lines.index(MIRRORED)}
    kinds: tuple[tuple[SiteKind, str], ...] = (("loader_training", "Pictures"), ("loader_validation", dataset))
    sites = tuple(
        Site(kind=kind, file="train.py", line=1 + lines.index(line), end_line=1 + lines.index(line), call="DataLoader",
             options={"dataset": name, "num_workers": 2})
        for (kind, name), line in zip(kinds, made, strict=True)
    )  # fmt: skip
    setting = {"form": "unaugmented", "where": "memory", "split": where}
    changes = (
        Change(strategy="workers", setting={"num_workers": 0}),
        Change(strategy="prepared_samples", setting=setting),
    )
    found = put(Sites(command=("python", "train.py"), cwd=str(tmp_path), sites=sites), *changes)
    assert [each.how for each in found.patch.changes] == ["patched", "patched"], found.patch.changes
    after = found.texts["train.py"]
    assert "train = DataLoader(Pictures(), batch_size=8, num_workers=0)" in after
    assert ("valid = DataLoader(Pictures(False), batch_size=4, num_workers=0)" in after) is left_out


def test_it_is_kept_where_samples_are_not_the_same() -> None:
    where = {"file": "train.py", "function": "Pictures.__getitem__", "line": 9}
    probed = {"where": where, "sample_seconds": 0.01, "sample_bytes": 4096, "hit": 0.05}
    unlike = {"deterministic": False, "reason": "samples are random"}
    for kept, offered in ((unlike, True), ({"deterministic": True}, False), ({**unlike, "prefix": 1}, False)):
        assert ("unaugmented" in forms_of(sample_case(**found(kept=kept, unaugmented=probed)))) is offered
    case = sample_case(**found(kept=unlike, unaugmented=probed))
    setting = next(each for each in STRATEGY.settings(case) if each["form"] == "unaugmented")
    assert promised(STRATEGY, case, setting).value > 1.0
    assert STRATEGY.apply(Setup(), setting).dataset
    assert STRATEGY.recipe(setting).edits[0].at == "function"
