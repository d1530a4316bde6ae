"""JPEG images that OpenCV reads, decoded at a reduced size."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SCALES = {8: 64, 4: 32, 2: 16}
"""By how much sides are divided, and the flag that asks OpenCV for it, the smallest image first."""
WITH = 1 | 128 | 256
"""Flags that may stand beside it: colour, in either order of channels, and no turning by EXIF."""


@contextmanager
def reducing(shorter: int | None) -> Iterator[None]:
    """While it lasts, OpenCV in this thread decodes JPEG images no larger than they need to be."""
    import cv2  # type: ignore[import-not-found, unused-ignore]

    wanted = getattr(cv2.imread, "wanted", None)  # by whichever copy of this code came first
    if wanted is None:
        wanted = threading.local()
        cv2.imread, cv2.imdecode = read_reduced(cv2.imread, cv2.imdecode, wanted)
    before, wanted.shorter = getattr(wanted, "shorter", None), shorter
    try:
        yield
    finally:
        wanted.shorter = before


def read_reduced(imread: Any, imdecode: Any, wanted: Any) -> tuple[Any, Any]:
    """Both of OpenCV's functions, which ask for a reduced image where ``wanted.shorter`` says so."""
    import numpy as np

    def reduced(data: Any, flags: int | None) -> Any:
        least = getattr(wanted, "shorter", None)
        flag = scale_flag(data, least) if least and flags is not None else 0
        return imdecode(np.frombuffer(data, np.uint8), flags | flag) if flag and flags is not None else None

    def imread_reduced(*args: Any, **kwargs: Any) -> Any:
        image = None
        if getattr(wanted, "shorter", None) and args:
            image = reduced(jpeg_of(args[0]), plain_flags(args, kwargs))
        return imread(*args, **kwargs) if image is None else image

    def imdecode_reduced(*args: Any, **kwargs: Any) -> Any:
        image = None
        if getattr(wanted, "shorter", None) and args and getattr(args[0], "dtype", None) == np.uint8:
            image = reduced(args[0].tobytes(), plain_flags(args, kwargs))
        return imdecode(*args, **kwargs) if image is None else image

    imread_reduced.wanted = wanted  # type: ignore[attr-defined]
    return imread_reduced, imdecode_reduced


def plain_flags(args: Any, kwargs: Any) -> int | None:
    """The flags of a call; None where it asks for more than colour or grey of a byte."""
    flags = args[1] if len(args) == 2 else kwargs.get("flags", 1)
    plain = len(args) <= 2 and set(kwargs) <= {"flags"} and isinstance(flags, int) and not flags & ~WITH
    return flags if plain else None


def jpeg_of(path: Any) -> bytes:
    """A JPEG file's bytes; empty where it is another file, or none."""
    try:
        with open(path, "rb") as file:
            start = file.read(2)
            return start + file.read() if start == b"\xff\xd8" else b""
    except (OSError, TypeError):
        return b""


def scale_flag(data: bytes, least: int) -> int:
    """The flag for the smallest image whose shorter side keeps ``least`` pixels; 0 for the whole one."""
    size = jpeg_size(data)
    return next((flag for scale, flag in SCALES.items() if size and min(size) // scale >= least), 0)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Width and height that a JPEG file's frame header tells; None where it is no such file."""
    place = 2
    while data[:2] == b"\xff\xd8" and place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # the frame header of any way to encode
            height, width = data[place + 5 : place + 7], data[place + 7 : place + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        filled = marker == 0xFF
        place += 1 if filled else 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None
