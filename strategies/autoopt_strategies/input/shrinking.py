"""How far images are shrunk after they were decoded, watched while samples are made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autoopt_strategies.input.opencv import jpeg_of, jpeg_size


@dataclass
class Shrinking:
    """Pixels of JPEG images: what the first resize needs of the whole image's shorter side, and what that has.

    ``waiting``: width and height of images that were decoded, and not resized yet.
    """

    needs: list[int] = field(default_factory=list)
    sides: list[int] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)

    def resized(self, now: Any, target: Any) -> None:
        """An image of some size, or what is left of it, is made one of another size."""
        if self.waiting:
            whole = self.waiting.pop()
            # A crop is shrunk by less than the whole would be; its share of the image must keep its pixels.
            left = max(wanted / side for wanted, side in zip(target, now, strict=True))
            self.sides.append(min(whole))
            self.needs.append(-int(-left * min(whole) // 1))


@contextmanager
def pillow_watched(seen: Shrinking) -> Iterator[None]:
    """JPEG images that Pillow opens, and what it resizes."""
    from PIL import Image

    opened = Image.open

    def open_seen(*args: Any, **kwargs: Any) -> Any:
        found = opened(*args, **kwargs)
        if found.format == "JPEG":
            seen.waiting.append(found.size)
        return found

    Image.open = open_seen
    try:
        with resizes_watched(seen):
            yield
    finally:
        Image.open = opened


@contextmanager
def resizes_watched(seen: Shrinking) -> Iterator[None]:
    """Sizes that Pillow resizes images to, as it does so, into ``seen``."""
    from PIL import Image

    resized = Image.Image.resize

    def resize_seen(self: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        seen.resized(self.size, size)
        return resized(self, size, *args, **kwargs)

    Image.Image.resize = resize_seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        Image.Image.resize = resized  # type: ignore[method-assign]


@contextmanager
def opencv_watched(seen: Shrinking) -> Iterator[None]:
    """JPEG images that OpenCV reads, and what it or Pillow resizes; nothing where the user does not use it."""
    cv2 = sys.modules.get("cv2")
    if cv2 is None:
        yield
        return
    plain = {name: getattr(cv2, name) for name in ("imread", "imdecode", "resize")}

    def imread_seen(*args: Any, **kwargs: Any) -> Any:
        return noted(plain["imread"](*args, **kwargs), jpeg_of(args[0]) if args else b"")

    def imdecode_seen(*args: Any, **kwargs: Any) -> Any:
        return noted(plain["imdecode"](*args, **kwargs), bytes(args[0]) if args else b"")

    def noted(image: Any, data: bytes) -> Any:
        if image is not None and jpeg_size(data):
            seen.waiting.append(image.shape[1::-1])
        return image

    def resize_seen(image: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain["resize"](image, *args, **kwargs)
        seen.resized(image.shape[1::-1], made.shape[1::-1])
        return made

    vars(cv2).update(imread=imread_seen, imdecode=imdecode_seen, resize=resize_seen)
    try:
        with resizes_watched(seen):
            yield
    finally:
        vars(cv2).update(plain)


READERS = {"pillow": pillow_watched, "opencv": opencv_watched}
"""Who decodes, and how it is watched."""
