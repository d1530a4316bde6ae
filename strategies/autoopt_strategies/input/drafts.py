"""JPEG images decoded at a reduced size, and how far the images of a dataset are shrunk anyway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from autoopt_strategies.common import Setting
from autoopt_strategies.input.batches import Wrapper, equal, leaves
from autoopt_strategies.input.decoding import sample_of, seconds_ratio, spread
from autoopt_strategies.input.opencv import reducing
from autoopt_strategies.input.shrinking import READERS, Shrinking

CLOSE = 0.05
"""Mean difference of an image, in shares of its range, up to which it is the same image decoded otherwise."""


@contextmanager
def drafting(shorter: int | None) -> Iterator[None]:
    """While it lasts, ``PIL.Image.open`` in this thread has JPEG images decoded no larger than they need to be."""
    from PIL import Image

    opened = Image.open
    wanted = getattr(opened, "wanted", None)  # by whichever copy of this code came first: an exported script has one
    if wanted is None:
        wanted = threading.local()

        def open_draft(*args: Any, **kwargs: Any) -> Any:
            image = opened(*args, **kwargs)
            least = getattr(wanted, "shorter", None)
            if least and image.format == "JPEG":
                image.draft(None, (least, least))  # libjpeg scales in the frequency domain: 1/2, 1/4 or 1/8
            return image

        open_draft.wanted = wanted  # type: ignore[attr-defined]
        Image.open = open_draft
    before, wanted.shorter = getattr(wanted, "shorter", None), shorter
    try:
        yield
    finally:
        wanted.shorter = before


class Drafted(Wrapper):
    """A dataset whose JPEG images are decoded at the smallest scale that keeps ``shorter`` pixels a side.

    Args:
        reader: ``pillow`` or ``opencv``, which decodes them.
    """

    def __init__(self, dataset: Any, shorter: int, reader: str = "pillow") -> None:
        super().__init__(dataset)
        self.shorter, self.reader = shorter, reader

    def __getitem__(self, index: Any) -> Any:
        with reducing(self.shorter) if self.reader == "opencv" else drafting(self.shorter):
            return self.dataset[index]


def probe(dataset: Any) -> Setting:
    """``{"shorter": pixels, "reader", "ratio": seconds so over seconds now}``, or ``{"reason": why not}``."""
    indices = spread(dataset)
    if not indices:
        return {"reason": "samples cannot be read one by one"}
    for reader in READERS:
        needs, sides = _needs(reader, dataset, indices)
        if needs:
            return _tried(dataset, indices, reader, max(needs), min(sides))
    return {"reason": "no JPEG image is decoded by Pillow or OpenCV and then shrunk"}


def _tried(dataset: Any, indices: list[int], reader: str, shorter: int, side: int) -> Setting:
    """The same, for samples whose images of at least ``side`` pixels are shrunk to ``shorter``."""
    if side < 2 * shorter:
        return {"reason": f"images of {side} pixels are shrunk to {shorter}: less than half, so decoded whole"}
    drafted = Drafted(dataset, shorter, reader)
    try:
        alike = all(_alike(sample_of(dataset, index), sample_of(drafted, index)) for index in indices)
    except Exception as error:  # boxes in pixels of the whole image
        return {"reason": f"samples cannot be made of an image of a reduced size: {type(error).__name__}: {error}"}
    if not alike:
        return {"reason": "samples differ in more than the pixels of an image when it is decoded at a reduced size"}
    ratio = min(1.0, seconds_ratio(dataset, drafted, indices))
    return {"shorter": shorter, "reader": reader, "ratio": ratio}


def _needs(reader: str, dataset: Any, indices: list[int]) -> tuple[list[int], list[int]]:
    """Of JPEG images: the shorter side that the first resize leaves of the whole image, and the one they come with."""
    seen = Shrinking()
    with ExitStack() as stack:
        try:
            stack.enter_context(READERS[reader](seen))
        except ImportError:
            return [], []
        for index in indices:
            seen.waiting.clear()
            sample_of(dataset, index)
            if seen.waiting:  # decoded, and never shrunk
                return [], []
    return seen.needs, seen.sides


def _alike(one: Any, other: Any) -> bool:
    """Whether two samples are equal but for the pixels of images, which are close."""
    import numpy as np

    pairs = list(zip(leaves(one), leaves(other), strict=False))
    if len(leaves(one)) != len(leaves(other)):
        return False
    for left, right in pairs:
        if equal(left, right):
            continue
        first, second = np.asarray(left), np.asarray(right)
        if first.shape != second.shape or first.dtype != second.dtype or first.ndim < 2:
            return False
        first, second = first.astype(float), second.astype(float)
        if np.abs(first - second).mean() > CLOSE * max(float(np.ptp(first)), 1e-9):
            return False
    return True
