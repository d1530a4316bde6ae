"""Images decoded otherwise: by another library, or at a reduced size; Pillow's own where neither applies."""

from __future__ import annotations

import gc
import io
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from autoopt.records import Change, Plan
from autoopt.testing.strategies import sample_case
from autoopt_strategies.input import decoding
from autoopt_strategies.input.decoding import Decode
from autoopt_strategies.input.images import LIBRARIES, jpeg_size
from scripted import REGISTRY, changed_lines, put, sites_in
from tests.strategies.stand_ins import opencv, torchvision_io

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
STRATEGY = REGISTRY["decoding"]


def jpeg(mode: str = "RGB", side: int = 96, form: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (side, side // 2, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form, quality=90)
    return file.getvalue()


class Files(Dataset[Any]):
    """Samples are files in memory, or on the disk where a folder is given, each as ``read`` makes it of its file."""

    def __init__(self, *files: bytes, read: Any = None, folder: Path | None = None) -> None:
        self.files: list[Any] = list(files)
        self.read = read or whole
        if folder is not None:
            for number, data in enumerate(files):
                self.files[number] = folder / f"{number}.jpg"
                self.files[number].write_bytes(data)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.read(self.files[index], index)


def opened(file: Any) -> Any:
    return Image.open(file if isinstance(file, Path) else io.BytesIO(file))


def whole(file: Any, index: int) -> Any:
    image = opened(file)
    return np.asarray(image.convert("RGB")), image.size, index


def shrunk(file: Any, index: int, side: int = 48, box: Any = None) -> Any:
    small = np.asarray(opened(file).convert("RGB").resize((side, side), box=box), dtype="float32") / 255
    return torch.from_numpy(small).permute(2, 0, 1), index


def with_width(file: Any, index: int) -> Any:
    """A label that is worked out from the image's size."""
    image = opened(file).convert("RGB")
    return torch.from_numpy(np.asarray(image.resize((48, 48)), dtype="float32")), image.size[0]


def by_imageio(file: Any, index: int) -> Any:
    import imageio.v3

    return imageio.v3.imread(file)


def by_opencv(file: Any, index: int, side: int | None = None, flags: int = 1) -> Any:
    import cv2

    if isinstance(file, Path):
        image = cv2.imread(str(file), flags)
    else:
        image = cv2.imdecode(np.frombuffer(file, np.uint8), flags=flags)
    return torch.from_numpy(image if side is None else cv2.resize(image, (side, side))), index


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The library of each image that one has decoded in Pillow's place."""
    calls: list[str] = []

    def counted(by: str) -> Any:
        plain = LIBRARIES[by]

        def counting(data: bytes) -> Any:
            pixels = plain(data)
            if pixels is not None:
                calls.append(by)
            return pixels

        return counting

    for name in tuple(LIBRARIES):
        monkeypatch.setitem(LIBRARIES, name, counted(name))
    return calls


@pytest.fixture(params=["simplejpeg", "opencv", "torchvision"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each library; where one is not installed, a stand-in with its functions, arguments and order of axes."""
    name: str = request.param
    if name == "opencv":
        opencv(monkeypatch)
    if name == "torchvision":
        torchvision_io(monkeypatch)
    return name


@pytest.mark.parametrize("on_disk", [False, True])
def test_pixels_are_the_same_to_the_bit(decoder: str, on_disk: bool, tmp_path: Path, decoded: list[str]) -> None:
    data = Files(jpeg(), jpeg(side=40), folder=tmp_path if on_disk else None)
    wanted = [data[index][0] for index in range(2)]
    gc.collect()
    found = [Decode(decoder)(data)[index][0] for index in range(2)]
    assert decoded == [decoder] * 2
    assert all(np.array_equal(one, other) for one, other in zip(wanted, found, strict=True))
    assert data[0][1] == (48, 96)
    assert decoded == [decoder] * 2, "outside of the dataset Pillow decodes"


@pytest.mark.parametrize(
    ("mode", "form"), [("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("RGB", "BMP"), ("RGB", "PNG")]
)
def test_images_that_a_library_does_not_read_stay_pillow_s(
    mode: str, form: str, decoder: str, decoded: list[str]
) -> None:
    data, reads = Files(jpeg(mode, form=form)), (mode, form) == ("RGB", "PNG") and decoder != "simplejpeg"
    assert np.array_equal(Decode(decoder)(data)[0][0], data[0][0])
    assert decoded == [decoder] * reads


def test_an_image_that_is_drafted_is_decoded_at_its_reduced_size(decoded: list[str]) -> None:
    data = Files(jpeg(side=160), read=partial(shrunk, side=8))
    small = Decode(shorter=20)(data)[0]
    assert not np.array_equal(small[0], data[0][0])
    assert not decoded


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_broken_file_fails_as_it_does_with_pillow(form: str, decoder: str) -> None:
    data = Files(jpeg(form=form)[:700])
    with pytest.raises(OSError, match="truncated"):
        data[0]
    with pytest.raises(OSError, match="truncated"):
        Decode(decoder)(data)[0]


def test_an_image_that_is_turned_by_its_exif_stays_as_pillow_gives_it(decoder: str, decoded: list[str]) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(io.BytesIO(jpeg())).save(file, "JPEG", exif=exif)
    data = Files(file.getvalue())
    assert np.array_equal(Decode(decoder)(data)[0][0], data[0][0])
    assert decoded


def test_what_imageio_reads_is_read_by_pillow(decoded: list[str]) -> None:
    pytest.importorskip("imageio")
    data = Files(jpeg(), read=by_imageio)
    assert np.array_equal(Decode("simplejpeg")(data)[0], data[0])
    assert decoded == ["simplejpeg"]
    assert [each["reader"] for each in decoding.readers(data, 0)] == ["imageio", "Pillow"]


def test_the_fastest_library_that_gives_the_same_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch)
    seconds = {"simplejpeg": 0.8, "opencv": 0.6}
    monkeypatch.setattr(decoding, "seconds_ratio", lambda data, other, indices: seconds[other.how.by])
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    found = decoding.fastest_library(Files(*[jpeg(side=40)] * 8))
    assert (found["by"], found["ratio"]) == ("opencv", 0.6)
    inspected = {"decoding": {"by": found}}
    assert STRATEGY.applies(sample_case(inspected=inspected))
    assert list(STRATEGY.settings(sample_case(inspected=inspected))) == [{"by": "opencv", "calls": []}]
    slower = {"decoding": {"by": {**found, "ratio": 1.02}}}
    assert "1.02 of its seconds by opencv" in STRATEGY.applies(sample_case(inspected=slower)).reason


def test_a_library_that_gives_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch, off=1)
    for name in ("simplejpeg", "torchvision.io"):
        monkeypatch.setitem(sys.modules, name, None)
    reason = decoding.fastest_library(Files(jpeg(side=40)))["reason"]
    assert "simplejpeg: not installed" in reason
    assert "opencv: gives other pixels" in reason


def test_a_library_that_cannot_be_imported_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist\nand more")

    monkeypatch.setattr(decoding, "import_module", broken)
    assert decoding.missing("torchvision") == "cannot be imported: operator torchvision::nms does not exist"


def test_who_decodes_is_told_with_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch)
    assert decoding.fastest_library(Files(jpeg(), read=by_opencv))["reason"].startswith("test_decoding.py:")
    assert "decodes by OpenCV" in decoding.fastest_library(Files(jpeg(), read=by_opencv))["reason"]
    assert "opens images of JPEG in L" in decoding.fastest_library(Files(jpeg("L")))["reason"]
    assert "no image is decoded" in decoding.fastest_library([np.ones(3)])["reason"]


def photograph(number: int, width: int = 512, height: int = 384) -> bytes:
    """A smooth JPEG, as photographs are."""
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 2, height))
    bands = [127 + 120 * np.sin((k + 1) * x + number + y * k) for k in range(3)]
    file = io.BytesIO()
    Image.fromarray(np.stack(bands, -1).astype("uint8")).save(file, "JPEG", quality=90)
    return file.getvalue()


def photographs(read: Any = shrunk, folder: Path | None = None, **how: Any) -> Files:
    return Files(*map(photograph, range(6)), read=partial(read, **how), folder=folder)


def test_the_size_that_images_are_shrunk_to_is_seen_and_the_line_stays_the_user_s() -> None:
    dataset = photographs()
    before = decoding.reading_calls(dataset)
    found = decoding.reduced_size(dataset)
    assert found["shorter"] == 48
    assert 0 < found["ratio"] <= 1
    assert decoding.reading_calls(dataset) == before
    assert before[0]["file"].endswith("test_decoding.py")


def test_images_decoded_at_a_reduced_size_are_close_and_others_stay_as_they_are() -> None:
    plain = photographs()
    drafted = Decode(shorter=48)(plain)
    assert len(drafted) == len(plain)
    for index in range(len(plain)):
        image, label = drafted[index]
        assert label == index
        assert float((image - plain[index][0]).abs().mean()) < 0.02
    assert Image.open(io.BytesIO(plain.files[0])).size == (512, 384), "outside the dataset nothing is reduced"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (partial(photographs, side=300), "decoded whole"),
        (partial(photographs, by_opencv, side=300), "decoded whole"),
        (lambda: torch.utils.data.TensorDataset(torch.ones(3)), "no JPEG"),
        pytest.param(partial(photographs, with_width), "more than the pixels", id="labels of an image's size"),
        pytest.param(
            partial(photographs, box=(300, 200, 512, 384)),
            "cannot be made of an image of a reduced size",
            id="crops",
        ),
    ],
)
def test_what_cannot_be_decoded_at_a_reduced_size_says_why(
    make: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opencv(monkeypatch)
    assert reason in decoding.reduced_size(make())["reason"]


@pytest.mark.parametrize("on_disk", [False, True])
def test_images_that_opencv_shrinks_are_decoded_at_a_reduced_size(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cv2 = opencv(monkeypatch)
    plain = photographs(by_opencv, tmp_path if on_disk else None, side=48)
    found = decoding.reduced_size(plain)
    assert (found["shorter"], found["reader"]) == (48, "opencv")
    sizes: list[Any] = []
    resize = cv2.resize
    monkeypatch.setattr(cv2, "resize", lambda image, *rest: sizes.append(image.shape) or resize(image, *rest))
    reduced = Decode(shorter=found["shorter"], reader=found["reader"])(plain)
    for index in range(len(plain)):
        image, label = reduced[index]
        assert label == index
        assert sizes.pop() == (48, 64, 3), "an eighth of 384 x 512"
        assert float((image.float() - plain[index][0].float()).abs().mean()) < 5
        assert sizes.pop() == (384, 512, 3), "outside of the dataset nothing is reduced"


@pytest.mark.parametrize("flags", [-1, 2, 17])
def test_what_opencv_is_asked_for_otherwise_stays(flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch)
    plain = photographs(by_opencv, side=48, flags=flags)
    assert torch.equal(Decode(shorter=48, reader="opencv")(plain)[0][0], plain[0][0])


def test_the_size_of_a_jpeg_file_is_read_off_its_header() -> None:
    for width, height in ((512, 384), (33, 7)):
        data = photograph(0, width, height)
        assert jpeg_size(data) == (width, height)
        assert jpeg_size(b"\xff\xd8\xff" + data[2:]) == (width, height), "fill bytes before a marker"
    assert jpeg_size(b"\x89PNG and more") is None
    assert jpeg_size(photograph(0)[:20]) is None


SCRIPT = """\
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        return torch.tensor(image.resize((8, 8)).getdata(0)), index


loader = DataLoader(Photos([]), batch_size=2)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(None).sum()
loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("setting", "line", "names"),
    [
        ({"shorter": 48, "reader": "pillow"}, "drafted(Image.open(self.files[index]), shorter=48)", "drafted"),
        ({"by": "simplejpeg"}, "decoded(Image.open(self.files[index]), by_simplejpeg)", "by_simplejpeg, decoded"),
    ],
)
def test_a_patch_changes_the_line_that_opens_the_image(
    setting: dict[str, Any], line: str, names: str, tmp_path: Path
) -> None:
    sites = sites_in(tmp_path, SCRIPT)
    number = SCRIPT[: SCRIPT.index("Image.open")].count("\n") + 1
    calls = [{"file": "train.py", "line": number, "name": "open"}]
    change = Change(strategy="decoding", setting={**setting, "calls": calls})
    found = put(sites, change)
    assert [change.how for change in found.changes] == ["patched"]
    ours = found.patch.diff.split("--- /dev/null")[0]
    assert changed_lines(ours) == [
        f"+from prepared import {names}",
        '-        image = Image.open(self.files[index]).convert("RGB")',
        f'+        image = {line}.convert("RGB")',
    ]
    module = found.texts["prepared.py"]
    assert module.count("\n") < 50
    assert not any(word in module for word in ("autoopt", "Any", "cv2", "torchvision"))
    compile(module, "prepared.py", "exec")


def test_the_line_is_changed_in_what_a_patch_keeps_by_index(tmp_path: Path) -> None:
    script = SCRIPT.replace("return torch", "image = image.rotate(torch.rand(1).item())\n        return torch")
    sites = sites_in(tmp_path, script)
    opened, drawn = (script[: script.index(text)].count("\n") + 1 for text in ("Image.open", "image = image.rotate"))
    calls = [{"file": "train.py", "line": opened, "name": "open"}]
    split = {"file": "train.py", "function": "Photos.__getitem__", "line": drawn}
    changes = (
        Change(strategy="decoding", setting={"shorter": 48, "reader": "pillow", "calls": calls}),
        Change(strategy="prepared_samples", setting={"form": "unaugmented", "where": "memory", "split": split}),
    )
    found = put(sites, *changes)
    assert [change.how for change in found.changes] == ["patched", "patched"]
    kept = found.texts["train.py"].split("def unaugmented")[1].split("def __getitem__")[0]
    assert "drafted(Image.open(self.files[index]), shorter=48)" in kept


class Turned(Dataset[Any]):
    def __init__(self, file: bytes) -> None:
        self.file = file

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        image = Image.open(io.BytesIO(self.file)).convert("RGB").resize((8, 8))
        turned = torch.rand(1).item() < 0.5
        return np.asarray(image.rotate(90) if turned else image)


def test_samples_that_are_kept_are_decoded_otherwise_once() -> None:
    line = Turned.__getitem__.__code__.co_firstlineno + 2
    kept = {"form": "unaugmented", "split": {"line": line}, "where": "memory"}
    small = {"shorter": 8, "reader": "pillow"}
    both = Change(strategy="prepared_samples", setting=kept), Change(strategy="decoding", setting=small)
    plan = Plan(changes=both)
    wrapped: Any = Turned(jpeg(side=512))
    for wrap in REGISTRY.fold(REGISTRY.order(plan)).dataset:
        wrapped = wrap(wrapped)
    torch.manual_seed(0)
    plain, found = Turned(jpeg(side=512)), [wrapped[index] for index in range(4)]
    torch.manual_seed(0)
    wanted = [plain[index] for index in range(4)]
    assert all(0 < np.abs(a.astype(float) - b).mean() < 20 for a, b in zip(found, wanted, strict=True))


def test_of_samples_that_are_kept_the_first_reading_takes_less() -> None:
    reduced = {"reduced": {"shorter": 64, "reader": "pillow", "ratio": 0.25}}
    kept = {"unaugmented": {"sample_seconds": 0.02, "where": {}}}
    keeping = Plan(changes=(Change(strategy="prepared_samples", setting={"form": "unaugmented"}),))
    case = replace(sample_case(inspected={"decoding": reduced, "prepared_samples": kept}), plan=keeping)
    setting = next(iter(STRATEGY.settings(case)))
    often, once = STRATEGY.predict(replace(case, plan=Plan()), setting), STRATEGY.predict(case, setting)
    assert STRATEGY.applies(case)
    assert 1.0 < once.low < once.value < often.value
