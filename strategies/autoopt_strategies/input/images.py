"""Images decoded otherwise: in one call by another library, or no larger than they need to be. A patch holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCALES = {8: 64, 4: 32, 2: 16}
"""By how much sides are divided, and the flag that asks OpenCV for it, the smallest image first."""


def drafted(image: Any, shorter: int) -> Any:
    """An open image that Pillow decodes no larger than it needs to be: its shorter side keeps so many pixels.

    libjpeg scales by 2, 4 or 8 as it decodes; images of other formats stay as they are.
    """
    image.draft(None, (shorter, shorter))
    return image


def decoded(image: Any, by: Callable[[bytes], Any]) -> Any:
    """An open colour image with the pixels that a library decodes in one call; as it is where that cannot."""
    from PIL import Image

    deep = image.format == "PNG" and image.tile[0][3] != "RGB"
    if image.mode != "RGB" or image.format not in ("JPEG", "PNG") or deep or getattr(image, "is_animated", False):
        return image
    place = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(place)
    try:
        pixels = by(data)
    except Exception:  # whatever it says of the file: Pillow says it in the words that are expected
        return image
    if pixels is None or pixels.shape != (image.height, image.width, 3):
        return image
    image.im, image.tile, image.readonly = Image.fromarray(pixels).im, [], 0
    if getattr(image, "_exclusive_fp", False):  # opened from a path
        image.fp.close()
    image.fp = None
    return image


def by_simplejpeg(data: bytes) -> Any:
    """Pixels ``H x W x 3`` of a JPEG file (uint8, RGB)."""
    import simplejpeg  # type: ignore[import-untyped]

    return simplejpeg.decode_jpeg(data)


def by_opencv(data: bytes) -> Any:
    """The same, of PNG files as well; None where a file is cut off, whose rest would be grey."""
    import cv2  # type: ignore[import-not-found, unused-ignore]
    import numpy as np

    if not ends_whole(data):
        return None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    return np.ascontiguousarray(pixels[..., ::-1])


def by_torchvision(data: bytes) -> Any:
    """The same by torchvision."""
    import torch
    from torchvision.io import ImageReadMode, decode_image  # type: ignore[import-not-found, unused-ignore]

    if not ends_whole(data):
        return None
    pixels = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
    return pixels.permute(1, 2, 0).contiguous().numpy()


def ends_whole(data: bytes) -> bool:
    """Whether a JPEG or PNG file ends as it should."""
    return data.rstrip(b"\0\r\n ").endswith(b"\xff\xd9") if data[:2] == b"\xff\xd8" else data[-8:-4] == b"IEND"


LIBRARIES = {"simplejpeg": by_simplejpeg, "opencv": by_opencv, "torchvision": by_torchvision}


def imread_reduced(path: Any, flags: int = 1, *, shorter: int) -> Any:
    """``cv2.imread``, which decodes a JPEG file no larger than it needs to be."""
    import cv2

    with open(path, "rb") as file:
        return cv2.imread(path, flags | reducing(file.read(), flags, shorter))


def imdecode_reduced(data: Any, flags: int = 1, *, shorter: int) -> Any:
    """``cv2.imdecode``, which decodes a JPEG file no larger than it needs to be."""
    import cv2

    return cv2.imdecode(data, flags | reducing(bytes(data), flags, shorter))


def reducing(data: bytes, flags: int, shorter: int) -> int:
    """The flag for the smallest image whose shorter side keeps so many pixels; 0 for the whole one."""
    size = jpeg_size(data)
    if size is None or flags & ~(1 | 128 | 256):  # more than colour or grey of a byte is asked for
        return 0
    return next((flag for scale, flag in SCALES.items() if min(size) // scale >= shorter), 0)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Width and height that a JPEG file's frame header reports; None where it is no such file."""
    place = 2
    while data[:2] == b"\xff\xd8" and place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # the frame header of any way to encode
            height, width = data[place + 5 : place + 7], data[place + 7 : place + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        filled = marker == 0xFF
        place += 1 if filled else 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None
