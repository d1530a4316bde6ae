"""JPEG images decoded at a reduced size, and how far the images of a dataset are shrunk anyway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autoopt_strategies.common import Setting
from autoopt_strategies.input.batches import Wrapper, equal, leaves
from autoopt_strategies.input.decoding import sample_of, seconds_ratio, spread

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
    """A dataset whose JPEG images are decoded at the smallest scale that keeps ``shorter`` pixels a side."""

    def __init__(self, dataset: Any, shorter: int) -> None:
        super().__init__(dataset)
        self.shorter = shorter

    def __getitem__(self, index: Any) -> Any:
        with drafting(self.shorter):
            return self.dataset[index]


def probe(dataset: Any) -> Setting:
    """``{"shorter": pixels, "ratio": seconds so over seconds now}``, or ``{"reason": why not}``."""
    try:
        from PIL import Image
    except ImportError:
        return {"reason": "Pillow is not installed"}
    indices = spread(dataset)
    if not indices:
        return {"reason": "samples cannot be read one by one"}
    needs, sides = _needs(Image, dataset, indices)
    if not needs:
        return {"reason": "no JPEG image is decoded by Pillow and then shrunk"}
    shorter = max(needs)
    if min(sides) < 2 * shorter:
        return {"reason": f"images of {min(sides)} pixels are shrunk to {shorter}: less than half, so decoded whole"}
    drafted = Drafted(dataset, shorter)
    try:
        alike = all(_alike(sample_of(dataset, index), sample_of(drafted, index)) for index in indices)
    except Exception as error:  # boxes in pixels of the whole image
        return {"reason": f"samples cannot be made of an image of a reduced size: {type(error).__name__}: {error}"}
    if not alike:
        return {"reason": "samples differ in more than the pixels of an image when it is decoded at a reduced size"}
    return {"shorter": shorter, "ratio": min(1.0, seconds_ratio(dataset, drafted, indices))}


def _needs(image: Any, dataset: Any, indices: list[int]) -> tuple[list[int], list[int]]:
    """Of JPEG images: the shorter side that the first resize leaves of the whole image, and the one they come with."""
    opened, resized = image.open, image.Image.resize
    needs: list[int] = []
    sides: list[int] = []
    waiting: list[tuple[int, int]] = []

    def open_seen(*args: Any, **kwargs: Any) -> Any:
        found = opened(*args, **kwargs)
        if found.format == "JPEG":
            waiting.append(found.size)
        return found

    def resize_seen(self: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        if waiting:
            whole = waiting.pop()
            # A crop is shrunk by less than the whole would be; its share of the image must keep its pixels.
            left = max(target / now for target, now in zip(size, self.size, strict=True))
            sides.append(min(whole))
            needs.append(-int(-left * min(whole) // 1))
        return resized(self, size, *args, **kwargs)

    image.open, image.Image.resize = open_seen, resize_seen
    try:
        for index in indices:
            waiting.clear()
            sample_of(dataset, index)
            if waiting:  # decoded, and never shrunk
                return [], []
    finally:
        image.open, image.Image.resize = opened, resized
    return needs, sides


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
