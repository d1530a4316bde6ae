"""Images that Pillow opens, decoded by another library: the same pixels, in one call instead of line by line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autoopt_strategies.common import Setting
from autoopt_strategies.input.batches import Wrapper, equal
from autoopt_strategies.input.decoders import FORMATS, MODULES, decoded, missing
from autoopt_strategies.input.decoding import TURNS, sample_of, seconds_ratio, spread
from autoopt_strategies.input.readers import readers


@contextmanager
def turbo(decoder: str) -> Iterator[None]:
    """While it lasts, colour images that ``PIL.Image.open`` opens in this thread are decoded by that library."""
    from PIL import Image

    opened = Image.open
    wanted = getattr(opened, "turbo", None)  # by whichever copy of this code came first: an exported script has one
    if wanted is None:
        wanted = threading.local()

        def open_turbo(*args: Any, **kwargs: Any) -> Any:
            image = opened(*args, **kwargs)
            chosen = getattr(wanted, "decoder", None)
            if chosen and image.mode == "RGB" and image.format in FORMATS[chosen]:
                decode_at_once(image, chosen)
            return image

        open_turbo.turbo = wanted  # type: ignore[attr-defined]
        for name, value in vars(opened).items():  # what another change of the plan has noted there
            setattr(open_turbo, name, value)
        Image.open = open_turbo
    before, wanted.decoder = getattr(wanted, "decoder", None), decoder
    try:
        yield
    finally:
        wanted.decoder = before


def decode_at_once(image: Any, decoder: str) -> None:
    """Lets an open image be decoded by a library when its pixels are asked for; by Pillow where that cannot."""
    from PIL import Image

    size = image.size

    def load() -> Any:
        del image.load  # no cycle of image and function is left behind
        if image.tile and not changed(image, size):
            array = decoded(bytes_of(image.fp), decoder)
            if array is not None and array.shape == (size[1], size[0], 3):
                image.im = Image.fromarray(array).im
                image.tile, image.readonly = [], 0
                if getattr(image, "_exclusive_fp", False):
                    image.fp.close()
                image.fp = None
        return image.load()

    image.load = load


def changed(image: Any, size: Any) -> bool:
    """Whether other pixels than the file's, or other channels than three of a byte, are asked of an open image."""
    drafted = image.size != size or image.mode != "RGB" or getattr(image, "decoderconfig", ())
    frames = getattr(image, "is_animated", False)
    deep = image.format == "PNG" and image.tile[0][3] != "RGB"
    return bool(drafted or frames or deep)


def bytes_of(file: Any) -> bytes:
    """The whole file, which stays where it was read to; empty where it cannot be read again."""
    try:
        place = file.tell()
        file.seek(0)
        data = file.read()
        file.seek(place)
        return bytes(data)
    except (OSError, ValueError):
        return b""


class Turbo(Wrapper):
    """A dataset whose images are decoded by ``decoder`` where Pillow opens them."""

    def __init__(self, dataset: Any, decoder: str = "simplejpeg") -> None:
        super().__init__(dataset)
        self.decoder = decoder

    def __getitem__(self, index: Any) -> Any:
        with turbo(self.decoder):
            return self.dataset[index]


def probe(dataset: Any) -> Setting:
    """The library that makes the same samples in the fewest seconds.

    Returns:
        ``{"decoder", "ratio": seconds with it over seconds now, "others": why not each other}``, or
        ``{"reason": why none}``.
    """
    indices = spread(dataset)
    if not indices:
        return {"reason": "samples cannot be read one by one"}
    seen = readers(dataset, indices[0])
    formats = {each["format"] for each in seen if each["reader"] == "Pillow" and each["mode"] == "RGB"}
    if not formats & {"JPEG", "PNG"}:
        return {"reason": _not_pillow_s(seen)}
    ratios: dict[str, float] = {}
    others: dict[str, str] = {}
    for decoder in MODULES:
        if why := _refused(dataset, indices, decoder, formats):
            others[decoder] = why
        else:
            ratios[decoder] = seconds_ratio(dataset, Turbo(dataset, decoder), indices, turns=1)
    if not ratios:
        return {"reason": "; ".join(f"{decoder}: {why}" for decoder, why in others.items())}
    best = min(ratios, key=lambda decoder: ratios[decoder])
    ratio = seconds_ratio(dataset, Turbo(dataset, best), indices, turns=TURNS)
    return {"decoder": best, "ratio": ratio, "others": others}


def _refused(dataset: Any, indices: list[int], decoder: str, formats: set[Any]) -> str:
    """Why a library does not decode these images in Pillow's place; empty where it gives the same samples."""
    if not formats & set(FORMATS[decoder]):
        return f"does not read {', '.join(sorted(map(str, formats)))}"
    if why := missing(decoder):
        return why
    other = Turbo(dataset, decoder)
    alike = all(equal(sample_of(dataset, index), sample_of(other, index)) for index in indices)
    return "" if alike else "gives other pixels: it was built with another library than Pillow"


def _not_pillow_s(seen: list[Setting]) -> str:
    """Why nothing is to be replaced, with who decodes instead."""
    if not seen:
        return "no image is decoded by Pillow"
    first = seen[0]
    if first["reader"] == "Pillow":
        return f"{first['line']} opens images of {first['format']} in {first['mode']}: no colour JPEG or PNG"
    return f"{first['line']} decodes by {first['reader']}, which decodes a file in one call already"
