"""Libraries that decode a whole image file in one call, and whether they can be had."""

from __future__ import annotations

from typing import Any

MODULES = {"simplejpeg": "simplejpeg", "opencv": "cv2", "torchvision": "torchvision.io"}
"""The import of each decoder, in the order in which they are asked."""
FORMATS = {"simplejpeg": ("JPEG",), "opencv": ("JPEG", "PNG"), "torchvision": ("JPEG", "PNG")}
"""Formats that each is asked to read in Pillow's place."""


def decoded(data: bytes, decoder: str) -> Any:
    """Pixels ``H x W x 3`` of a file (uint8, RGB); None where the decoder is not there, or does not read it whole."""
    try:
        if decoder == "opencv":
            return by_opencv(data) if ends_whole(data) else None
        if decoder == "torchvision":
            return by_torchvision(data) if ends_whole(data) else None
        import simplejpeg  # type: ignore[import-untyped]

        return simplejpeg.decode_jpeg(data)
    except Exception:  # whatever it says of the file: Pillow says it in the words that are expected
        return None


def by_opencv(data: bytes) -> Any:
    """By OpenCV, which turns an image as its EXIF tells unless it is asked not to."""
    import cv2  # type: ignore[import-not-found, unused-ignore]
    import numpy as np

    rgb = getattr(cv2, "IMREAD_COLOR_RGB", None)  # since 4.10
    flags = (cv2.IMREAD_COLOR if rgb is None else rgb) | cv2.IMREAD_IGNORE_ORIENTATION
    array = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    return array if rgb is not None or array is None else np.ascontiguousarray(array[..., ::-1])


def by_torchvision(data: bytes) -> Any:
    """By torchvision, which gives ``C x H x W``."""
    import torch
    from torchvision.io import ImageReadMode, decode_image  # type: ignore[import-not-found, unused-ignore]

    pixels = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
    return pixels.permute(1, 2, 0).contiguous().numpy()


def ends_whole(data: bytes) -> bool:
    """Whether a JPEG or PNG file ends as it should: OpenCV fills what is missing of others with grey."""
    if data[:2] == b"\xff\xd8":
        return data.rstrip(b"\0\r\n ").endswith(b"\xff\xd9")
    return data[-8:-4] == b"IEND"


def missing(decoder: str) -> str:
    """Why a decoder cannot be had here; empty where it can."""
    from importlib import import_module

    module = MODULES[decoder]
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name in (module, module.split(".")[0]):
            return "not installed"
        return f"cannot be imported: {error}"
    except Exception as error:  # torchvision beside another torch than the one that it was built for
        return f"cannot be imported: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return ""
