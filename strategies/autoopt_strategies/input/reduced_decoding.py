"""Reduced decoding: JPEG images that are shrunk anyway are decoded at a half, a quarter or an eighth of their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, kept, tried_gain
from autoopt_strategies.input.batches import dataset_of
from autoopt_strategies.input.decoding import read_each_time
from autoopt_strategies.input.drafts import Drafted, probe


@dataclass(frozen=True)
class DecodeReduced:
    """``dataset -> dataset`` that decodes images at a reduced size."""

    shorter: int
    reader: str = "pillow"

    def __call__(self, dataset: Any) -> Drafted:
        return Drafted(dataset, self.shorter, self.reader)


class ReducedDecoding(Strategy):
    """Decodes JPEG images at a half, a quarter or an eighth of their size where they are shrunk to less anyway.

    What it does: ``Image.draft`` before Pillow decodes, with the shorter side that the first resize needs; where OpenCV
        decodes (``imread``, ``imdecode``), the flag ``IMREAD_REDUCED_COLOR_2``, ``4`` or ``8`` that keeps as much.
    When it helps: photographs of thousands of pixels, shrunk to a few hundred: decoding takes a quarter of the time,
        and resizing less.
    When it does not: images near the size that is trained on; random crops of a small part; other formats.
    What it costs: pixels differ a little, as from another filter. Refused where anything but an image differs,
        such as boxes worked out from the image's size.
    Source: https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.draft;
        https://docs.opencv.org/4.x/d8/d6a/group__imgcodecs__flags.html
    """

    name = "reduced_decoding"
    title = "JPEG decoded at a reduced size"
    stages = frozenset({"storage", "preparation"})
    risk = Risk.NUMERIC
    example = Example({"shorter": 64, "reader": "pillow"}, inspected={"shorter": 64, "reader": "pillow", "ratio": 0.4})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if not (able := read_each_time(case)):
            return able
        if "shorter" not in found:
            return Applies.no(found.get("reason") or "no JPEG image is known to be decoded and then shrunk")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        ratio = case.inspected(self.name).get("ratio")
        return None if ratio is None else tried_gain(case, ratio, ("preparation",))

    def settings(self, case: Case) -> Settings:
        """Just what the resize needs; where that costs quality, twice as much."""
        found = case.inspected(self.name)
        shorter, reader = found["shorter"], found.get("reader", "pillow")
        if not kept((yield {"shorter": shorter, "reader": reader})):
            yield {"shorter": 2 * shorter, "reader": reader}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(DecodeReduced(**setting))

    def recipe(self, setting: Setting) -> Recipe:
        side = setting["shorter"]
        line = f"image.draft(None, ({side}, {side}))"
        code, where = f"image = Image.open(path)\n{line}  # before it is decoded", "after Image.open"
        if setting.get("reader") == "opencv":
            line = "image = cv2.imread(path, cv2.IMREAD_REDUCED_COLOR_4)"
            code, where = (
                f"{line}  # 2, 4 or 8: the shorter side keeps {side} pixels",
                "in the place of cv2.imread(path)",
            )
        note = {"_note": f"in the dataset, {where}: {line}"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)

    def inspect(self, live: Any) -> Setting:
        """The shorter side that images are shrunk to, and what reading a sample takes so."""
        return probe(dataset_of(live.workload))
