"""JPEG images that Pillow opens, decoded by simplejpeg: the same pixels from the same library, in one call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autoopt_strategies.common import Setting
from autoopt_strategies.input.batches import Wrapper, equal
from autoopt_strategies.input.decoding import sample_of, seconds_ratio, spread


@contextmanager
def turbo() -> Iterator[None]:
    """While it lasts, colour JPEG images that ``PIL.Image.open`` opens in this thread are decoded by simplejpeg."""
    from PIL import Image

    opened = Image.open
    wanted = getattr(opened, "turbo", None)  # by whichever copy of this code came first: an exported script has one
    if wanted is None:
        wanted = threading.local()

        def open_turbo(*args: Any, **kwargs: Any) -> Any:
            image = opened(*args, **kwargs)
            if getattr(wanted, "on", False) and image.format == "JPEG" and image.mode == "RGB":
                decode_at_once(image)
            return image

        open_turbo.turbo = wanted  # type: ignore[attr-defined]
        for name, value in vars(opened).items():  # what another change of the plan has noted there
            setattr(open_turbo, name, value)
        Image.open = open_turbo
    before, wanted.on = getattr(wanted, "on", False), True
    try:
        yield
    finally:
        wanted.on = before


def decode_at_once(image: Any) -> None:
    """Lets an open JPEG image be decoded by simplejpeg when its pixels are asked for; by Pillow where that cannot."""
    from PIL import Image

    size = image.size

    def load() -> Any:
        del image.load  # no cycle of image and function is left behind
        drafted = image.size != size or image.mode != "RGB" or getattr(image, "decoderconfig", ())
        if image.tile and not drafted:
            array = _decoded(image.fp)
            if array is not None and array.shape[1::-1] == size:
                image.im = Image.fromarray(array).im
                image.tile, image.readonly = [], 0
                if getattr(image, "_exclusive_fp", False):
                    image.fp.close()
                image.fp = None
        return image.load()

    image.load = load


def _decoded(file: Any) -> Any:
    """Pixels of a whole file, or None where simplejpeg is not there or does not read it."""
    try:
        import simplejpeg  # type: ignore[import-untyped]

        place = file.tell()
        file.seek(0)
        data = file.read()
        file.seek(place)
        return simplejpeg.decode_jpeg(data)
    except (ImportError, OSError, ValueError):
        return None


class Turbo(Wrapper):
    """A dataset whose JPEG images are decoded by simplejpeg."""

    def __getitem__(self, index: Any) -> Any:
        with turbo():
            return self.dataset[index]


def probe(dataset: Any) -> Setting:
    """``{"ratio": seconds with simplejpeg over seconds now}``, or ``{"reason": why not}``."""
    from importlib.util import find_spec

    if find_spec("PIL") is None:
        return {"reason": "Pillow is not installed"}
    if find_spec("simplejpeg") is None:
        return {"reason": "simplejpeg is not installed (the extra 'jpeg')"}
    indices = spread(dataset)
    if not indices:
        return {"reason": "samples cannot be read one by one"}
    other = Turbo(dataset)
    if not _decodes(dataset, indices[0]):
        return {"reason": "no colour JPEG image is decoded by Pillow"}
    for index in indices:
        if not equal(sample_of(dataset, index), sample_of(other, index)):
            return {"reason": "simplejpeg gives other pixels: Pillow was built with another library"}
    return {"ratio": seconds_ratio(dataset, other, indices)}


def _decodes(dataset: Any, index: int) -> bool:
    """Whether reading a sample opens a colour JPEG image by Pillow."""
    from PIL import Image

    opened, seen = Image.open, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        image = opened(*args, **kwargs)
        seen.append(image.format == "JPEG" and image.mode == "RGB")
        return image

    Image.open = watched
    try:
        sample_of(dataset, index)
    finally:
        Image.open = opened
    return any(seen)
