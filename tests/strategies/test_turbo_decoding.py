"""Images by another library: the same pixels to the bit, and Pillow's own where it does not apply."""

from __future__ import annotations

import gc
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_strategies.input import turbo as turbo_module
from autoopt_strategies.input.decoders import missing
from autoopt_strategies.input.drafts import Drafted
from autoopt_strategies.input.readers import readers
from autoopt_strategies.input.turbo import Turbo, probe
from tests.strategies.stand_ins import opencv, torchvision_io

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
STRATEGY = load_strategies()["turbo_decoding"]


def jpeg(mode: str = "RGB", side: int = 96, form: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (side, side // 2, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form, quality=90)
    return file.getvalue()


class Files:
    """Samples are files in memory, or on the disk where a folder is given."""

    def __init__(self, *files: bytes, folder: Path | None = None, resized: bool = False) -> None:
        self.files: list[Any] = list(files)
        self.resized = resized
        if folder is not None:
            for number, data in enumerate(files):
                self.files[number] = folder / f"{number}.jpg"
                self.files[number].write_bytes(data)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        file = self.files[index]
        image = Image.open(file if isinstance(file, Path) else io.BytesIO(file))
        if self.resized:
            return np.asarray(image.convert("RGB").resize((8, 8)))
        return np.asarray(image.convert("RGB")), image.size, index


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The library of each image that one has decoded in Pillow's place."""
    calls: list[str] = []
    plain = turbo_module.decoded

    def counted(data: bytes, decoder: str) -> Any:
        array = plain(data, decoder)
        if array is not None:
            calls.append(decoder)
        return array

    monkeypatch.setattr(turbo_module, "decoded", counted)
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
    found = [Turbo(data, decoder)[index][0] for index in range(2)]
    assert decoded == [decoder] * 2
    assert all(np.array_equal(one, other) for one, other in zip(wanted, found, strict=True))
    assert data[0][1] == (48, 96)
    assert decoded == [decoder] * 2, "outside of the dataset Pillow decodes"


def test_png_is_decoded_by_those_that_read_it(decoder: str, decoded: list[str]) -> None:
    data = Files(jpeg(form="PNG"))
    assert np.array_equal(Turbo(data, decoder)[0][0], data[0][0])
    assert decoded == ([] if decoder == "simplejpeg" else [decoder])


@pytest.mark.parametrize(("mode", "form"), [("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("RGB", "BMP")])
def test_other_images_stay_pillow_s(mode: str, form: str, decoder: str, decoded: list[str]) -> None:
    data = Files(jpeg(mode, form=form))
    assert np.array_equal(Turbo(data, decoder)[0][0], data[0][0])
    assert not decoded


def test_an_image_that_is_drafted_is_decoded_at_its_reduced_size(decoder: str, decoded: list[str]) -> None:
    data = Files(jpeg(side=160), resized=True)
    both = Turbo(Drafted(data, 20), decoder)
    assert np.array_equal(both[0], Drafted(data, 20)[0])
    assert np.array_equal(Drafted(Turbo(data, decoder), 20)[0], Drafted(data, 20)[0])
    assert not decoded


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_broken_file_fails_as_it_does_with_pillow(form: str, decoder: str) -> None:
    data = Files(jpeg(form=form)[:700])
    with pytest.raises(OSError, match="truncated"):
        data[0]
    with pytest.raises(OSError, match="truncated"):
        Turbo(data, decoder)[0]


def test_an_image_that_is_turned_by_its_exif_stays_as_pillow_gives_it(decoder: str, decoded: list[str]) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(io.BytesIO(jpeg())).save(file, "JPEG", exif=exif)
    data = Files(file.getvalue())
    assert np.array_equal(Turbo(data, decoder)[0][0], data[0][0])
    assert decoded


class ByImageio(Files):
    def __getitem__(self, index: int) -> Any:
        import imageio.v3

        return imageio.v3.imread(self.files[index])


def test_what_imageio_reads_is_read_by_pillow(decoded: list[str]) -> None:
    pytest.importorskip("imageio")
    data = ByImageio(jpeg())
    assert np.array_equal(Turbo(data)[0], data[0])
    assert decoded == ["simplejpeg"]
    assert [each["reader"] for each in readers(data, 0)] == ["imageio", "Pillow"]


def test_the_fastest_library_that_gives_the_same_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch)
    seconds = {"simplejpeg": 0.8, "opencv": 0.6}
    monkeypatch.setattr(turbo_module, "seconds_ratio", lambda data, other, indices, turns: seconds[other.decoder])
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    found = probe(Files(*[jpeg(side=40)] * 8))
    assert (found["decoder"], found["ratio"]) == ("opencv", 0.6)
    assert found["others"] == {"torchvision": "not installed"}
    inspected = {"turbo_decoding": found}
    assert STRATEGY.applies(sample_case(inspected=inspected))
    assert list(STRATEGY.settings(sample_case(inspected=inspected))) == [{"decoder": "opencv"}]
    slower = {"turbo_decoding": {**found, "ratio": 1.02}}
    assert "1.02 of its seconds by opencv" in STRATEGY.applies(sample_case(inspected=slower)).reason


def test_a_library_that_gives_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch, off=1)
    for name in ("simplejpeg", "torchvision.io"):
        monkeypatch.setitem(sys.modules, name, None)
    reason = probe(Files(jpeg(side=40)))["reason"]
    assert "simplejpeg: not installed" in reason
    assert "opencv: gives other pixels" in reason


def test_a_library_that_cannot_be_imported_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist\nand more")

    monkeypatch.setattr("importlib.import_module", broken)
    assert missing("torchvision") == "cannot be imported: operator torchvision::nms does not exist"


def test_who_decodes_is_told_with_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    opencv(monkeypatch)
    assert probe(ByOpencv(jpeg()))["reason"].startswith("test_turbo_decoding.py:")
    assert "decodes by OpenCV" in probe(ByOpencv(jpeg()))["reason"]
    assert "opens images of JPEG in L" in probe(Files(jpeg("L")))["reason"]
    assert "no image is decoded" in probe([np.ones(3)])["reason"]


class ByOpencv(Files):
    def __getitem__(self, index: int) -> Any:
        import cv2

        return cv2.imdecode(np.frombuffer(self.files[index], np.uint8), cv2.IMREAD_COLOR), index
