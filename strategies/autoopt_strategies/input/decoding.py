"""Decoding: images are decoded in one call by another library, or no larger than they need to be."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.compute.rewriting.source import users_path
from autoopt_strategies.input.batches import Wrapper, dataset_of, equal, leaves
from autoopt_strategies.input.images import LIBRARIES, decoded, drafted, imdecode_reduced, imread_reduced, jpeg_size
from autoopt_strategies.input.probes import same_samples, sample_of, seconds_ratio, spread
from autoopt_strategies.predictions import LEAST_SAVING, tried_gain
from autoopt_strategies.trying import Setting, Settings, first_line, kept

CLOSE = 0.05
"""Mean difference of an image, in shares of its range, up to which it is the same image decoded otherwise."""
BOTH = frozenset({"JPEG", "PNG"})
MODULES = {"simplejpeg": ("simplejpeg", {"JPEG"}), "opencv": ("cv2", BOTH), "torchvision": ("torchvision.io", BOTH)}
"""The import of each library, in the order in which they are asked, and the formats that it reads in Pillow's place."""
READING = {
    "PIL.Image": ("Pillow", ("open",)),
    "cv2": ("OpenCV", ("imread", "imdecode")),
    "imageio.v2": ("imageio", ("imread",)),
    "imageio.v3": ("imageio", ("imread",)),
    "torchvision.io": ("torchvision", ("read_image", "decode_image", "decode_jpeg", "decode_png")),
}
"""Modules, the reader's name, and the functions that read an image."""
INSTALLED = ("site-packages", "dist-packages")
PARTS = "autoopt_strategies.input.images"
"""The module that a patch takes its code from."""
_active = threading.local()


@contextmanager
def replaced(changes: dict[tuple[str, str], Callable[..., Any]]) -> Iterator[None]:
    """While it lasts, calls of these functions in this thread go to ``change(plain, ...)``."""
    for module, name in changes:
        found = import_module(module)
        plain = getattr(found, name)
        if getattr(plain, "func", None) is not _called:
            setattr(found, name, partial(_called, (module, name), plain))
    before, _active.changes = getattr(_active, "changes", {}), changes
    try:
        yield
    finally:
        _active.changes = before


def _called(key: tuple[str, str], plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    changes = getattr(_active, "changes", {})
    if key not in changes:
        return plain(*args, **kwargs)
    with replaced({}):
        return changes[key](plain, *args, **kwargs)


@dataclass(frozen=True)
class Decode:
    """``dataset -> dataset`` whose images are decoded otherwise: ``by`` a library, or at a reduced size whose
    ``shorter`` side keeps so many pixels, where ``reader`` (``pillow`` or ``opencv``) opens them.
    """

    by: str = ""
    shorter: int = 0
    reader: str = "pillow"

    def __call__(self, dataset: Any) -> Decoded:
        return Decoded(dataset, self)

    def changes(self) -> dict[tuple[str, str], Callable[..., Any]]:
        """The functions that are called in the place of a library's, for :func:`replaced`."""
        if self.by:
            return {("PIL.Image", "open"): lambda plain, *a, **k: decoded(plain(*a, **k), LIBRARIES[self.by])}
        if self.reader == "pillow":
            return {("PIL.Image", "open"): lambda plain, *a, **k: drafted(plain(*a, **k), self.shorter)}
        return {
            ("cv2", "imread"): lambda _, *a, **k: imread_reduced(*a, **k, shorter=self.shorter),
            ("cv2", "imdecode"): lambda _, *a, **k: imdecode_reduced(*a, **k, shorter=self.shorter),
        }


class Decoded(Wrapper):
    """A dataset while whose samples are made some functions of libraries are replaced."""

    def __init__(self, dataset: Any, how: Decode) -> None:
        super().__init__(dataset)
        self.how = how

    def __getitem__(self, index: Any) -> Any:
        with replaced(self.how.changes()):
            return self.dataset[index]


class Decoding(Strategy):
    """Decodes images in one call by another library, or no larger than they need to be.

    What it does: where the dataset opens an image. ``by``: colour JPEG and PNG files that Pillow opens get their pixels
        from simplejpeg, OpenCV or torchvision, whichever is installed and fastest. ``shorter``: JPEG images that are
        shrunk anyway are decoded at a half, a quarter or an eighth of their size (``Image.draft``; OpenCV's
        ``IMREAD_REDUCED``). A patch changes the line that opens the image.
    When it helps: photographs of thousands of pixels, shrunk to a few hundred; decoding that is a good part of a
        sample.
    When it does not: images near the size that is trained on, random crops of a small part, other formats; of samples
        that are kept only the first reading gains. OpenCV or torchvision used already are as fast as the others.
    What it costs: at a reduced size pixels differ a little, as from another filter; another library must be installed,
        and gives the same pixels to the bit. Both are tried on real samples, and refused where more differs.
    Source: https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.draft;
        https://docs.opencv.org/4.x/d8/d6a/group__imgcodecs__flags.html; https://gitlab.com/jfolz/simplejpeg
    """

    name = "decoding"
    title = "images decoded otherwise"
    stages = frozenset({"storage", "preparation"})
    risk = Risk.NUMERIC
    example = Example(
        {"shorter": 64, "reader": "pillow", "calls": []},
        inspected={"reduced": {"shorter": 64, "reader": "pillow", "ratio": 0.4}},
    )

    def applies(self, case: Case) -> Applies:
        facts, found = case.workload.dataset, case.inspected(self.name)
        if not facts.map_style or (facts.has_getitems and facts.type != "TensorDataset"):
            return Applies.no("samples are not read one by one from the dataset")
        if next(iter(self.settings(case)), None) is not None:
            return Applies.yes()
        reduced, by = found.get("reduced") or {}, found.get("by") or {}
        if "ratio" in by:
            return Applies.no(f"a sample takes {by['ratio']:.2f} of its seconds by {by['by']} (tried)")
        reasons = dict.fromkeys(each["reason"] for each in (reduced, by) if each.get("reason"))
        return Applies.no("; ".join(reasons) or "whether images are decoded is not known")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Of samples that are kept, only the first reading of each takes less."""
        ratio = (case.inspected(self.name).get("reduced" if "shorter" in setting else "by") or {}).get("ratio")
        if (case.plan.setting("prepared_samples") or {}).get("form") not in ("samples", "rows", "unaugmented"):
            return tried_gain(case, ratio, ("preparation",))
        prepared = case.inspected("prepared_samples")
        seen = [prepared.get(form) or {} for form in ("unaugmented", "kept")]
        sample = next((each["sample_seconds"] for each in seen if "sample_seconds" in each), None)
        if ratio is None or sample is None or case.pipeline is None or not case.planned_steps:
            return None
        once, run = sample * (case.workload.train_samples or 0), case.planned_steps * case.pipeline.step_seconds
        ends = ((run + each * once) / (run + each * once * ratio) for each in (1.0, 0.5, 2.0))
        value, *others = ends  # evaluations read samples, too, and how much a run takes is seen again
        return Estimate(value=value, low=min(value, *others), high=max(value, *others), n=1).as_kind("tried")

    def settings(self, case: Case) -> Settings:
        """The faster of both; at a reduced size just what the resize needs, and where that costs quality twice it."""
        found = case.inspected(self.name)
        reduced, by, calls = found.get("reduced") or {}, found.get("by") or {}, found.get("calls") or []
        if "shorter" in reduced and reduced["ratio"] <= by.get("ratio", 1.0):
            setting = {"shorter": reduced["shorter"], "reader": reduced["reader"], "calls": calls}
            if kept((yield setting)) or kept((yield {**setting, "shorter": 2 * reduced["shorter"]})):
                return
        if by.get("ratio", 1.0) <= 1.0 - LEAST_SAVING:
            yield {"by": by["by"], "calls": calls}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(Decode(**{name: value for name, value in setting.items() if name != "calls"}))

    def recipe(self, setting: Setting) -> Recipe:
        shorter, used = setting.get("shorter"), ["drafted"]
        lines = {"open": f"drafted({{call}}, shorter={shorter})"}
        if "by" in setting:
            lines, used = {"open": f"decoded({{call}}, by_{setting['by']})"}, ["decoded", f"by_{setting['by']}"]
        elif setting["reader"] == "opencv":
            names, used = ("imread", "imdecode"), []
            lines = {name: f"{name}_reduced({{arguments}}, shorter={shorter})" for name in names}
        edits = tuple(
            Edit(
                "call",
                lines=(each["file"], str(each["line"]), each["name"], lines[each["name"]]),
                parts=tuple(f"{PARTS}:{name}" for name in used or [f"{each['name']}_reduced"]),
            )
            for each in setting["calls"]
            if each["name"] in lines
        )
        code = next(iter(lines.values())).format(call="Image.open(path)", arguments="path")
        return Recipe.noted(f"image = {code}", f"in the dataset: image = {code}", edits=edits)

    def inspect(self, live: Any) -> Setting:
        """Who decodes in which lines, which library makes the same samples, and how far images are shrunk anyway."""
        dataset = dataset_of(live.workload)
        if not spread(dataset):
            return {"reduced": {"reason": "samples cannot be read one by one"}}
        return {"reduced": reduced_size(dataset), "by": fastest_library(dataset), "calls": reading_calls(dataset)}


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


def reading_calls(dataset: Any) -> list[Setting]:
    """Lines of the user's that have images read, each once."""
    found = (each for each in readers(dataset, spread(dataset)[0]) if each["reader"] in ("Pillow", "OpenCV"))
    places = {(each["file"], each["line"], each["name"]) for each in found}
    return [{"file": file, "line": line, "name": name} for file, line, name in sorted(places)]


# by another library


def fastest_library(dataset: Any) -> Setting:
    """The library that makes the same samples in the fewest seconds.

    Returns:
        ``{"by", "ratio": seconds with it over those now}``, or ``{"reason": why none}``.
    """
    indices = spread(dataset)
    seen = readers(dataset, indices[0])
    formats = {each["format"] for each in seen if each["reader"] == "Pillow" and each["mode"] == "RGB"}
    if not seen:
        return {"reason": "no image is decoded by Pillow"}
    if not formats & BOTH:
        first = seen[0]
        why = f"decodes by {first['reader']}, which decodes a file in one call already"
        if first["reader"] == "Pillow":
            why = f"opens images of {first['format']} in {first['mode']}: no colour JPEG or PNG"
        return {"reason": f"{Path(first['file']).name}:{first['line']} {why}"}
    ratios: dict[str, float] = {}
    others: dict[str, str] = {}
    for library, (_, read) in MODULES.items():
        other = Decode(by=library)(dataset)
        if not formats & read:
            others[library] = f"does not read {', '.join(sorted(map(str, formats)))}"
        elif why := missing(library):
            others[library] = why
        elif not same_samples(dataset, other, indices):
            others[library] = "gives other pixels: it was built with another library than Pillow"
        else:
            ratios[library] = seconds_ratio(dataset, other, indices)
    if not ratios:
        return {"reason": "; ".join(f"{library}: {why}" for library, why in others.items())}
    best = min(ratios, key=lambda library: ratios[library])
    return {"by": best, "ratio": ratios[best]}


def missing(library: str) -> str:
    """Why a library cannot be had here; empty where it can."""
    module, _ = MODULES[library]
    try:
        import_module(module)
    except Exception as error:  # torchvision next to another torch than the one that it was built for
        if isinstance(error, ModuleNotFoundError) and error.name in (module, module.split(".")[0]):
            return "not installed"
        first, *_ = (*str(error).splitlines(), type(error).__name__)
        return f"cannot be imported: {first}"
    return ""


# at a reduced size


def reduced_size(dataset: Any) -> Setting:
    """``{"shorter": pixels, "reader", "ratio": seconds so over seconds now}``, or ``{"reason": why not}``."""
    indices = spread(dataset)
    for reader in ("pillow", "opencv"):
        seen = _shrunk(reader, dataset, indices)
        if not seen:
            continue
        shorter, side = max(needed for needed, _ in seen), min(there for _, there in seen)
        if side < 2 * shorter:
            return {"reason": f"images of {side} pixels are shrunk to {shorter}: less than half, so decoded whole"}
        other = Decode(shorter=shorter, reader=reader)(dataset)
        try:
            alike = same_samples(dataset, other, indices, alike=_alike)
        except Exception as error:  # boxes in pixels of the whole image
            return {"reason": f"samples cannot be made of an image of a reduced size: {first_line(error)}"}
        if not alike:
            return {"reason": "samples differ in more than the pixels of an image when it is decoded at a reduced size"}
        return {"shorter": shorter, "reader": reader, "ratio": min(1.0, seconds_ratio(dataset, other, indices))}
    return {"reason": "no JPEG image is decoded by Pillow or OpenCV and then shrunk"}


def _shrunk(reader: str, dataset: Any, indices: list[int]) -> list[tuple[int, int]]:
    """Pixels that the first resize of each JPEG image needs of the whole image's shorter side, and that this has.

    Empty where one of them is not resized, or where nobody reads them so.
    """
    from unittest.mock import patch

    try:
        from PIL import Image
    except ImportError:
        return []
    if reader == "opencv" and "cv2" not in sys.modules:
        return []
    found: list[tuple[int, int]] = []
    waiting: list[tuple[int, int]] = []  # width and height of images that were decoded, and not resized yet
    resize = Image.Image.resize

    def shrinks(now: Any, target: Any) -> None:
        if waiting:
            whole = waiting.pop()
            # A crop is shrunk by less than the whole would be; its share of the image must keep its pixels.
            left = max(wanted / side for wanted, side in zip(target, now, strict=True))
            found.append((-int(-left * min(whole) // 1), min(whole)))

    def opened(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        image = plain(*args, **kwargs)
        if image.format == "JPEG":
            waiting.append(image.size)
        return image

    def read(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        image = plain(*args, **kwargs)
        if image is not None and args:  # a path, or the bytes of a file
            whole = Path(args[0]).read_bytes() if isinstance(args[0], (str, PathLike)) else bytes(args[0])
            if jpeg_size(whole):
                waiting.append(image.shape[1::-1])
        return image

    def resized(plain: Callable[..., Any], image: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain(image, *args, **kwargs)
        shrinks(image.shape[1::-1], made.shape[1::-1])
        return made

    def resized_by_pillow(image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        shrinks(image.size, size)
        return resize(image, size, *args, **kwargs)

    watched: dict[tuple[str, str], Callable[..., Any]] = {("PIL.Image", "open"): opened}
    if reader == "opencv":
        watched = {("cv2", "imread"): read, ("cv2", "imdecode"): read, ("cv2", "resize"): resized}
    with patch.object(Image.Image, "resize", resized_by_pillow), replaced(watched):
        for index in indices:
            waiting.clear()
            sample_of(dataset, index)
            if waiting:  # decoded, and never shrunk
                return []
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether two samples are equal but for the pixels of images, which are close."""
    import numpy as np

    ours, theirs = leaves(one), leaves(other)
    if len(ours) != len(theirs):
        return False
    for left, right in zip(ours, theirs, strict=True):
        if equal(left, right):
            continue
        first, second = np.asarray(left), np.asarray(right)
        if first.shape != second.shape or first.dtype != second.dtype or first.ndim < 2:
            return False
        first, second = first.astype(float), second.astype(float)
        if np.abs(first - second).mean() > CLOSE * max(float(np.ptp(first)), 1e-9):
            return False
    return True
