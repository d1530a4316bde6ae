"""JPEG by simplejpeg: the same pixels to the bit, and Pillow's own where it does not apply."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_strategies.input import turbo as turbo_module
from autoopt_strategies.input.drafts import Drafted
from autoopt_strategies.input.turbo import Turbo, probe

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
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often simplejpeg has decoded."""
    calls: list[int] = []
    plain = turbo_module._decoded

    def counted(file: Any) -> Any:
        calls.append(1)
        return plain(file)

    monkeypatch.setattr(turbo_module, "_decoded", counted)
    return calls


@pytest.mark.parametrize("on_disk", [False, True])
def test_pixels_are_the_same_to_the_bit(on_disk: bool, tmp_path: Path, decoded: list[int]) -> None:
    data = Files(jpeg(), jpeg(side=40), folder=tmp_path if on_disk else None)
    wanted = [data[index][0] for index in range(2)]
    gc.collect()
    found = [Turbo(data)[index][0] for index in range(2)]
    assert len(decoded) == 2
    assert all(np.array_equal(one, other) for one, other in zip(wanted, found, strict=True))
    assert data[0][1] == (48, 96)
    assert len(decoded) == 2, "outside of the dataset Pillow decodes"


@pytest.mark.parametrize("file", [jpeg("L"), jpeg("CMYK"), jpeg(form="PNG")], ids=["grey", "cmyk", "png"])
def test_other_images_stay_pillow_s(file: bytes, decoded: list[int]) -> None:
    data = Files(file)
    assert np.array_equal(Turbo(data)[0][0], data[0][0])
    assert not decoded


def test_an_image_that_is_drafted_is_decoded_at_its_reduced_size(decoded: list[int]) -> None:
    data = Files(jpeg(side=160), resized=True)
    both = Turbo(Drafted(data, 20))
    assert np.array_equal(both[0], Drafted(data, 20)[0])
    assert np.array_equal(Drafted(Turbo(data), 20)[0], Drafted(data, 20)[0])
    assert not decoded


def test_a_broken_file_fails_as_it_does_with_pillow() -> None:
    data = Files(jpeg()[:700])
    with pytest.raises(OSError, match="truncated"):
        data[0]
    with pytest.raises(OSError, match="truncated"):
        Turbo(data)[0]


def test_it_is_tried_where_pillow_decodes_colour_jpeg() -> None:
    found = probe(Files(*[jpeg(side=400)] * 8))
    assert found["ratio"] > 0
    assert STRATEGY.applies(sample_case(inspected={"turbo_decoding": {"ratio": 0.7}}))
    assert "1.02 of its seconds" in STRATEGY.applies(sample_case(inspected={"turbo_decoding": {"ratio": 1.02}})).reason
    assert "no colour JPEG" in probe(Files(jpeg(form="PNG")))["reason"]
