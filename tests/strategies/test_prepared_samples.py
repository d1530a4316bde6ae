"""Samples decoded at a reduced size, written to files, or read in another format: the same training comes out."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_strategies.input import cacheable, drafts, torch_format
from autoopt_strategies.input.memory_map import MapSamples
from autoopt_strategies.input.opencv import jpeg_of, jpeg_size
from autoopt_strategies.input.reduced_decoding import DecodeReduced
from tests.strategies.stand_ins import opencv

REGISTRY = load_strategies()


def photograph(number: int, width: int = 512, height: int = 384) -> bytes:
    """A smooth JPEG, as photographs are."""
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 2, height))
    bands = [127 + 120 * np.sin((k + 1) * x + number + y * k) for k in range(3)]
    file = io.BytesIO()
    Image.fromarray(np.stack(bands, -1).astype("uint8")).save(file, "JPEG", quality=90)
    return file.getvalue()


class Photographs(Dataset[Any]):
    """Decoded by Pillow, shrunk to ``side``; ``boxes`` gives a number worked out from the image's size as well."""

    def __init__(self, side: int = 48, boxes: bool = False) -> None:
        self.files = [photograph(number) for number in range(6)]
        self.side, self.boxes = side, boxes

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        width = image.size[0]
        small = np.asarray(image.resize((self.side, self.side)), dtype="float32") / 255
        label = width if self.boxes else index
        return torch.from_numpy(small).permute(2, 0, 1), label


def test_the_size_that_images_are_shrunk_to_is_seen() -> None:
    found = drafts.probe(Photographs(side=48))
    assert found["shorter"] == 48
    assert 0 < found["ratio"] <= 1
    assert "decoded whole" in drafts.probe(Photographs(side=300))["reason"]
    assert "no JPEG" in drafts.probe(torch.utils.data.TensorDataset(torch.ones(3)))["reason"]


def test_labels_that_follow_from_an_image_s_size_refuse_it() -> None:
    assert "more than the pixels" in drafts.probe(Photographs(boxes=True))["reason"]


class Cropped(Photographs):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(io.BytesIO(self.files[index]))
        return torch.from_numpy(np.array(image.resize((48, 48), box=(300, 200, 512, 384)))), index


def test_crops_in_pixels_of_the_whole_image_refuse_it() -> None:
    assert "cannot be made of an image of a reduced size" in drafts.probe(Cropped())["reason"]


def test_images_decoded_at_a_reduced_size_are_close_and_others_stay_as_they_are() -> None:
    plain = Photographs()
    drafted = DecodeReduced(48)(plain)
    assert len(drafted) == len(plain)
    for index in range(len(plain)):
        image, label = drafted[index]
        assert label == index
        assert float((image - plain[index][0]).abs().mean()) < 0.02
    assert Image.open(io.BytesIO(plain.files[0])).size == (512, 384), "outside the dataset nothing is reduced"


class ReadByOpencv(Photographs):
    """The same, read by OpenCV from files or from memory, and shrunk by it."""

    def __init__(self, folder: Path | None = None, side: int = 48, flags: int = 1) -> None:
        super().__init__(side)
        self.paths = [folder / f"{number}.jpg" for number in range(len(self.files))] if folder else []
        self.flags = flags
        for path, data in zip(self.paths, self.files, strict=False):
            path.write_bytes(data)

    def __getitem__(self, index: int) -> Any:
        import cv2

        if self.paths:
            image = cv2.imread(str(self.paths[index]), self.flags)
        else:
            image = cv2.imdecode(np.frombuffer(self.files[index], np.uint8), flags=self.flags)
        assert image is not None
        return torch.from_numpy(cv2.resize(image, (self.side, self.side))), index


@pytest.mark.parametrize("on_disk", [False, True])
def test_images_that_opencv_shrinks_are_decoded_at_a_reduced_size(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cv2 = opencv(monkeypatch)
    plain = ReadByOpencv(tmp_path if on_disk else None)
    found = drafts.probe(plain)
    assert (found["shorter"], found["reader"]) == (48, "opencv")
    sizes: list[Any] = []
    resize = cv2.resize
    monkeypatch.setattr(cv2, "resize", lambda image, *rest: sizes.append(image.shape) or resize(image, *rest))
    reduced = DecodeReduced(**{name: found[name] for name in ("shorter", "reader")})(plain)
    for index in range(len(plain)):
        image, label = reduced[index]
        assert label == index
        assert sizes.pop() == (48, 64, 3), "an eighth of 384 x 512"
        assert float((image.float() - plain[index][0].float()).abs().mean()) < 5
        assert sizes.pop() == (384, 512, 3), "outside of the dataset nothing is reduced"


@pytest.mark.parametrize("flags", [-1, 2, 17])
def test_what_opencv_is_asked_for_otherwise_stays(flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch)
    plain = ReadByOpencv(flags=flags)
    assert torch.equal(DecodeReduced(48, "opencv")(plain)[0][0], plain[0][0])


def test_images_of_opencv_that_are_not_shrunk_by_half_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch)
    assert "decoded whole" in drafts.probe(ReadByOpencv(side=300))["reason"]


def test_the_size_of_a_jpeg_file_is_read_off_its_header() -> None:
    for width, height in ((512, 384), (33, 7)):
        data = photograph(0, width, height)
        assert jpeg_size(data) == (width, height)
        assert jpeg_size(b"\xff\xd8\xff" + data[2:]) == (width, height), "fill bytes before a marker"
    assert jpeg_size(b"\x89PNG and more") is None
    assert jpeg_size(photograph(0)[:20]) is None
    assert jpeg_of("no/such/file") == b""


class Varied(Dataset[Any]):
    """Every kind of part that a sample may have."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(np.full((4, 6, 3), index, "uint8"))
        return {
            "x": torch.full((2, 3), index / 3),
            "a": np.arange(index, index + 4),
            "n": (index, index / 2, index > 2),
        }, image


def same(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_of_files_are_the_samples(workers: int, tmp_path: Path) -> None:
    plain = Varied()
    rows = MapSamples(workers=workers, directory=str(tmp_path))(plain)
    for index in range(len(plain)):
        assert cacheable.equal(rows[index], plain[index])
    again = pickle.loads(pickle.dumps(rows))  # as a worker that is spawned gets it
    assert cacheable.equal(again[3], plain[3])
    loaded = list(DataLoader(rows, batch_size=None, collate_fn=same, num_workers=1))
    assert cacheable.equal(loaded[4], plain[4])
    assert len(list(tmp_path.iterdir())) == 1
    del rows, again
    assert list(tmp_path.iterdir()) == [], "the files go with the dataset, and not with a worker"


class Uneven(Varied):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(index + 1)


def test_samples_that_differ_in_shape_are_kept_end_to_end(tmp_path: Path) -> None:
    plain = Uneven()
    found = cacheable.probe(plain)
    assert found["static"] is False
    case = sample_case(available_ram_bytes=1 << 29, inspected={"memory_map": {**FOUND, **found}})
    assert REGISTRY["memory_map"].applies(case)
    (setting,) = REGISTRY["memory_map"].settings(case)
    assert setting["ragged"]
    with pytest.raises(ValueError, match="sample 1 is float32"):
        MapSamples(directory=str(tmp_path))(plain)
    rows = MapSamples(directory=str(tmp_path), ragged=True)(plain)
    again = pickle.loads(pickle.dumps(rows))
    for index in range(len(plain)):
        assert cacheable.equal(rows[index], plain[index])
        assert cacheable.equal(again[index], plain[index])
    assert cacheable.equal(rows[-1], plain[4])


class Texts(Varied):
    """Of any length, empty ones as well, beside photographs of any size and a number."""

    def __init__(self, longest: int = 4) -> None:
        self.longest = longest

    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(np.full((4 + index, 6, 3), index, "uint8"))
        return {"ids": torch.arange(index % (self.longest + 1)), "a": np.zeros((index, 0, 2)), "image": image}, index


@pytest.mark.parametrize("longest", [4, 0])
def test_parts_that_are_empty_or_images_are_kept_end_to_end(longest: int, tmp_path: Path) -> None:
    plain = Texts(longest)
    rows = MapSamples(workers=1, directory=str(tmp_path), ragged=True)(plain)
    loaded = list(DataLoader(rows, batch_size=None, collate_fn=same, num_workers=1))
    assert all(cacheable.equal(loaded[index], plain[index]) for index in range(len(plain)))


class Deeper(Varied):
    def __getitem__(self, index: int) -> Any:
        return torch.ones((1,) * (index + 1))


def test_samples_that_differ_in_axes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no row beside those before it"):
        MapSamples(directory=str(tmp_path), ragged=True)(Deeper())


FOUND = {"deterministic": True, "static": True, "sample_seconds": 0.01, "free_disk_bytes": 1 << 40}


def test_writing_is_weighed_against_the_planned_run() -> None:
    strategy = REGISTRY["memory_map"]
    little = sample_case(available_ram_bytes=1 << 29, inspected={"memory_map": FOUND})
    assert strategy.applies(little)
    slow = sample_case(available_ram_bytes=1 << 29, inspected={"memory_map": {**FOUND, "sample_seconds": 100.0}})
    assert "it pays after" in strategy.applies(slow).reason
    assert "fit into memory" in strategy.applies(sample_case(inspected={"memory_map": FOUND})).reason
    full = sample_case(available_ram_bytes=1 << 29, inspected={"memory_map": {**FOUND, "free_disk_bytes": 1 << 20}})
    assert "do not fit on the disk" in strategy.applies(full).reason


def test_a_dataset_of_hugging_face_s_gives_the_same_batches_in_the_torch_format() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"ids": np.arange(64 * 8).reshape(64, 8).tolist(), "label": list(range(64))})

    def collate(rows: list[Any]) -> Any:
        return torch.stack([torch.as_tensor(row["ids"]) for row in rows]), torch.tensor([int(r["label"]) for r in rows])

    found = torch_format.probe(data, collate)
    assert 0 < found["ratio"] <= 1
    assert isinstance(torch_format.as_tensors(data)[0]["ids"], torch.Tensor)
    lists = torch_format.probe(data, torch.utils.data.default_collate)  # takes lists apart, column by column
    assert "other batches" in lists["reason"]
    assert "already" in torch_format.probe(data.with_format("numpy"), collate)["reason"]
    assert "no dataset of Hugging Face's" in torch_format.probe(Varied(), collate)["reason"]
