"""How the images of a dataset are decoded, and in which other ways they could be: tried on a few samples."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from autoopt_strategies.common import Setting
from autoopt_strategies.compute.rewriting.source import users_path
from autoopt_strategies.input.batches import equal, leaves
from autoopt_strategies.input.decoding import Decoded, _called, replaced
from autoopt_strategies.input.images import jpeg_size
from autoopt_strategies.input.probes import sample_of, seconds_ratio, spread

CLOSE = 0.05
"""Mean difference of an image, in shares of its range, up to which it is the same image decoded otherwise."""
FORMATS = {"simplejpeg": ("JPEG",), "opencv": ("JPEG", "PNG"), "torchvision": ("JPEG", "PNG")}
"""Formats that each library is asked to read in Pillow's place."""
MODULES = {"simplejpeg": "simplejpeg", "opencv": "cv2", "torchvision": "torchvision.io"}
"""The import of each library, in the order in which they are asked."""
READING = {
    "PIL.Image": ("Pillow", ("open",)),
    "cv2": ("OpenCV", ("imread", "imdecode")),
    "imageio.v2": ("imageio", ("imread",)),
    "imageio.v3": ("imageio", ("imread",)),
    "torchvision.io": ("torchvision", ("read_image", "decode_image", "decode_jpeg", "decode_png")),
}
"""Modules, the reader's name, and the functions that read an image."""
INSTALLED = ("site-packages", "dist-packages")


# who decodes


def readers(dataset: Any, index: int) -> list[Setting]:
    """Calls that read an image while a sample is made, in their order.

    Returns:
        Of each ``reader``, the ``name`` of the function, the user's ``file`` and ``line``, and for Pillow's the image's
        ``format`` and ``mode``. A function that reads by another one stands before that one.
    """
    functions = [
        (found, (reader, name))
        for module, (reader, names) in READING.items()
        for name in names
        if (found := _plain(getattr(sys.modules.get(module), name, None))) is not None
    ]
    codes = {found.__code__: name for found, name in functions if hasattr(found, "__code__")}
    plain = [(found, name) for found, name in functions if not hasattr(found, "__code__")]
    seen: list[Setting] = []
    opened: list[Setting] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            seen.extend(_call(*name, frame) for found, name in plain if argument is found)
        elif event == "call" and frame.f_code in codes:
            seen.append(_call(*codes[frame.f_code], frame.f_back))
            if seen[-1]["reader"] == "Pillow":
                opened.append(seen[-1])
        elif event == "return" and opened and codes.get(frame.f_code, ("",))[0] == "Pillow":
            opened.pop().update(format=getattr(argument, "format", None), mode=getattr(argument, "mode", None))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        sample_of(dataset, index)
    finally:
        sys.setprofile(before)
    return seen


def _plain(function: Any) -> Any:
    """The library's own function, without the call that this strategy has put around it."""
    return function.args[-1] if isinstance(function, partial) and function.args else function


def _call(reader: str, name: str, frame: FrameType | None) -> Setting:
    """A call, with the innermost line that is neither an installed package's nor that of a call put around it."""
    while frame is not None and (
        any(part in Path(frame.f_code.co_filename).parts for part in INSTALLED) or frame.f_code is _called.__code__
    ):
        frame = frame.f_back
    if frame is None:
        return {"reader": reader, "name": name, "file": "", "line": 0}
    return {"reader": reader, "name": name, "file": users_path(frame.f_code.co_filename), "line": frame.f_lineno}


def calls(dataset: Any) -> list[Setting]:
    """Lines of the user's that have images read, each once."""
    found = [each for index in spread(dataset)[:1] for each in readers(dataset, index)]
    places = {(each["file"], each["line"], each["name"]) for each in found if each["reader"] in ("Pillow", "OpenCV")}
    return [{"file": file, "line": line, "name": name} for file, line, name in sorted(places)]


# by another library


def by(dataset: Any) -> Setting:
    """The library that makes the same samples in the fewest seconds.

    Returns:
        ``{"by", "ratio": seconds with it over those now, "others": why not each other}``, or ``{"reason": why none}``.
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
    for library in MODULES:
        other = Decoded(dataset, by=library)
        if not formats & set(FORMATS[library]):
            others[library] = f"does not read {', '.join(sorted(map(str, formats)))}"
        elif why := missing(library):
            others[library] = why
        elif not all(equal(sample_of(dataset, index), sample_of(other, index)) for index in indices):
            others[library] = "gives other pixels: it was built with another library than Pillow"
        else:
            ratios[library] = seconds_ratio(dataset, other, indices)
    if not ratios:
        return {"reason": "; ".join(f"{library}: {why}" for library, why in others.items())}
    best = min(ratios, key=lambda library: ratios[library])
    return {"by": best, "ratio": ratios[best], "others": others}


def missing(library: str) -> str:
    """Why a library cannot be had here; empty where it can."""
    module = MODULES[library]
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name in (module, module.split(".")[0]):
            return "not installed"
        return f"cannot be imported: {error}"
    except Exception as error:  # torchvision next to another torch than the one that it was built for
        return f"cannot be imported: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return ""


def _not_pillow_s(seen: list[Setting]) -> str:
    """Why nothing is to be replaced, with who decodes instead."""
    if not seen:
        return "no image is decoded by Pillow"
    first = seen[0]
    place = f"{Path(first['file']).name}:{first['line']}"
    if first["reader"] == "Pillow":
        return f"{place} opens images of {first['format']} in {first['mode']}: no colour JPEG or PNG"
    return f"{place} decodes by {first['reader']}, which decodes a file in one call already"


# at a reduced size


def reduced(dataset: Any) -> Setting:
    """``{"shorter": pixels, "reader", "ratio": seconds so over seconds now}``, or ``{"reason": why not}``."""
    indices = spread(dataset)
    if not indices:
        return {"reason": "samples cannot be read one by one"}
    for reader in ("pillow", "opencv"):
        seen = _shrunk(reader, dataset, indices)
        if not seen.needs:
            continue
        shorter, side = max(seen.needs), min(seen.sides)
        if side < 2 * shorter:
            return {"reason": f"images of {side} pixels are shrunk to {shorter}: less than half, so decoded whole"}
        other = Decoded(dataset, shorter=shorter, reader=reader)
        try:
            alike = all(_alike(sample_of(dataset, index), sample_of(other, index)) for index in indices)
        except Exception as error:  # boxes in pixels of the whole image
            return {"reason": f"samples cannot be made of an image of a reduced size: {type(error).__name__}: {error}"}
        if not alike:
            return {"reason": "samples differ in more than the pixels of an image when it is decoded at a reduced size"}
        return {"shorter": shorter, "reader": reader, "ratio": min(1.0, seconds_ratio(dataset, other, indices))}
    return {"reason": "no JPEG image is decoded by Pillow or OpenCV and then shrunk"}


def _shrunk(reader: str, dataset: Any, indices: list[int]) -> Shrinking:
    """How far JPEG images are shrunk; nothing where one of them is not, or where nobody reads them so."""
    seen = Shrinking()
    try:
        from PIL import Image
    except ImportError:
        return seen
    if reader == "opencv" and "cv2" not in sys.modules:
        return seen
    resize = Image.Image.resize

    def resized(image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        seen.resized(image.size, size)
        return resize(image, size, *args, **kwargs)

    with patch.object(Image.Image, "resize", resized), replaced(seen.watchers(reader)):
        for index in indices:
            seen.waiting.clear()
            sample_of(dataset, index)
            if seen.waiting:  # decoded, and never shrunk
                return Shrinking()
    return seen


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

    def watchers(self, reader: str) -> dict[tuple[str, str], Callable[..., Any]]:
        """Functions that read or resize an image, for :func:`replaced`: each called as it is, and seen."""
        if reader == "pillow":
            return {("PIL.Image", "open"): self._opened}
        return {("cv2", "imread"): self._read, ("cv2", "imdecode"): self._read, ("cv2", "resize"): self._resized}

    def _opened(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        image = plain(*args, **kwargs)
        if image.format == "JPEG":
            self.waiting.append(image.size)
        return image

    def _read(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        image = plain(*args, **kwargs)
        if image is not None and args:  # a path, or the bytes of a file
            whole = Path(args[0]).read_bytes() if isinstance(args[0], (str, PathLike)) else bytes(args[0])
            if jpeg_size(whole):
                self.waiting.append(image.shape[1::-1])
        return image

    def _resized(self, plain: Callable[..., Any], image: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain(image, *args, **kwargs)
        self.resized(image.shape[1::-1], made.shape[1::-1])
        return made
