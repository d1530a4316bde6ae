"""Who decodes the images of a dataset, and in which line of the user's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from autoopt_strategies.common import Setting
from autoopt_strategies.input.decoding import sample_of

READERS = {
    "PIL.Image": ("Pillow", ("open",)),
    "cv2": ("OpenCV", ("imread", "imdecode")),
    "imageio.v2": ("imageio", ("imread",)),
    "imageio.v3": ("imageio", ("imread",)),
    "torchvision.io": ("torchvision", ("read_image", "decode_image", "decode_jpeg", "decode_png")),
}
"""Modules, the reader's name, and the functions that read an image."""
INSTALLED = ("site-packages", "dist-packages")


def readers(dataset: Any, index: int) -> list[Setting]:
    """Calls that read an image while a sample is made, in their order.

    Returns:
        Of each ``reader``, the user's ``line`` (``file.py:12``), and for Pillow's the image's ``format`` and ``mode``.
        A function that reads by another one stands before that one.
    """
    functions = _functions()
    codes = {found.__code__: name for found, name in functions if hasattr(found, "__code__")}
    plain = [(found, name) for found, name in functions if not hasattr(found, "__code__")]
    seen: list[Setting] = []
    opened: list[Setting] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            seen.extend({"reader": name, "line": _line(frame)} for found, name in plain if argument is found)
        elif event == "call" and frame.f_code in codes:
            seen.append({"reader": codes[frame.f_code], "line": _line(frame.f_back)})
            if codes[frame.f_code] == "Pillow":
                opened.append(seen[-1])
        elif event == "return" and opened and codes.get(frame.f_code) == "Pillow":
            opened.pop().update(format=getattr(argument, "format", None), mode=getattr(argument, "mode", None))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        sample_of(dataset, index)
    finally:
        sys.setprofile(before)
    return seen


def _functions() -> list[tuple[Any, str]]:
    """Functions that read images, of the modules that are imported."""
    return [
        (found, reader)
        for module, (reader, names) in READERS.items()
        for name in names
        if (found := getattr(sys.modules.get(module), name, None)) is not None
    ]


def _line(frame: FrameType | None) -> str:
    """The innermost line that is not an installed package's."""
    while frame is not None and any(part in Path(frame.f_code.co_filename).parts for part in INSTALLED):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
