"""Files in memory: they are found, the dataset's paths point to copies, and these go with it."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset, Subset

from autoopt.registry import load_strategies
from autoopt.strategy import Case
from autoopt.testing.strategies import sample_case, sample_facts
from autoopt.trial.shared import remove_copies
from autoopt_strategies.input.files import opened_files, paths_in, probe, root_of
from autoopt_strategies.input.prepared import FilesInMemory, moved

STRATEGY = load_strategies()["prepared_samples"]


class Folder(Dataset[Any]):
    """Samples in files, listed as torchvision's ImageFolder does."""

    def __init__(self, root: Path, elsewhere: Path | None = None) -> None:
        self.root, self.elsewhere = str(root), elsewhere
        self.samples = [(str(path), int(path.parent.name)) for path in sorted(root.rglob("*.bin"))]
        self.length = len(self.samples)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return np.fromfile(path, dtype="uint8") if self.elsewhere is None else self._other(path), label

    def _other(self, path: str) -> Any:
        assert self.elsewhere is not None
        with (self.elsewhere / Path(path).name).open("rb") as file:
            return np.frombuffer(file.read(), dtype="uint8")


class Opening(Folder):
    """The same, opened by Python."""

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
    found = probe(Opening(root), str(tmp_path / "memory"))
    assert found["root"] == str(root)
    assert found["bytes"] == 1200
    assert found["room"] > 0
    assert list((tmp_path / "memory").iterdir()) == [], "what was tried is gone"
    subset: Any = Subset(Opening(root), [1, 2, 3])
    assert probe(subset, str(tmp_path / "memory"))["root"] == str(root)


def test_samples_are_read_from_the_copies_which_go_with_the_dataset(root: Path, tmp_path: Path) -> None:
    plain = Opening(root)
    made = FilesInMemory(plain, str(root), str(tmp_path / "memory"))
    with opened_files() as opened:
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
    assert "not read from files" in probe([1, 2, 3], memory)["reason"]

    class Hidden(Opening):
        """Works its paths out of a constant."""

        def __getitem__(self, index: int) -> Any:
            with open(os.path.join(HIDDEN[0], "0", "0.bin"), "rb") as file:
                return file.read(), index

    HIDDEN.append(str(root))
    assert "samples are others, or not read" in probe(Hidden(root), memory)["reason"]
    assert "in memory already" in probe(Opening(root), str(tmp_path))["reason"]


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
    assert set(paths_in(held)) == {"/data/a.png", "/data/b.png", "/data/c.png", "/other/d.png", "/data/e.png"}


def test_without_a_named_folder_the_files_tell_it(root: Path) -> None:
    files = [str(path) for path in sorted(root.rglob("*.bin"))]

    class Listed(Dataset[Any]):
        def __init__(self) -> None:
            self.files = OrderedDict(enumerate(files))

    assert root_of(Listed(), files[:2]) == str(root)
    assert root_of(Listed(), ["/somewhere/else.bin"]) is None


def test_it_is_offered_where_storage_is_waited_for_and_the_files_fit() -> None:
    found = {"root": "/data", "bytes": 1 << 30, "room": 1 << 40}

    def told(case: Case, **changed: Any) -> str:
        inspected = {"prepared_samples": {"kept": {"reason": "random"}, "files": {**found, **changed}}}
        return STRATEGY.applies(dataclasses.replace(case, workload=sample_facts(inspected=inspected))).reason

    case = sample_case()
    assert told(case) == ""
    assert STRATEGY.predict(case, {"form": "files", "where": "memory", "root": "/data"}) is not None
    assert "GB of files" in told(case, bytes=1 << 39)
    assert "copying takes" in told(dataclasses.replace(case, seconds_left=10.0))
    assert case.pipeline is not None
    stages = tuple(s.model_copy(update={"seconds": 0.0}) if s.name == "storage" else s for s in case.pipeline.stages)
    warm = type(case.pipeline)(case.pipeline.round.model_copy(update={"stages": stages}))  # type: ignore[call-arg]
    assert "keeps the files in memory" in told(dataclasses.replace(case, pipeline=warm))


def test_copies_that_a_killed_process_has_left_are_found_by_its_number(root: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    made = FilesInMemory(Opening(root), str(root), str(memory))
    (memory / "prepared-files-1-other").mkdir()
    remove_copies(os.getpid(), memory)
    assert [path.name for path in memory.iterdir()] == ["prepared-files-1-other"]
    assert made.root.startswith(str(memory))
