"""Turbo decoding: colour images that Pillow opens are decoded by the fastest library that is installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, tried_gain
from autoopt_strategies.input.batches import dataset_of
from autoopt_strategies.input.decoding import read_each_time
from autoopt_strategies.input.turbo import Turbo, probe

LEAST_SAVING = 0.03


_CODE = {
    "simplejpeg": "image = Image.fromarray(simplejpeg.decode_jpeg(data))",
    "opencv": (
        "flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION\n"
        "image = Image.fromarray(cv2.imdecode(np.frombuffer(data, np.uint8), flags))"
    ),
    "torchvision": 'image = torchvision.io.decode_image(data, mode="RGB")',
}


@dataclass(frozen=True)
class DecodeTurbo:
    """``dataset -> dataset`` whose images are decoded by a library in Pillow's place."""

    decoder: str = "simplejpeg"

    def __call__(self, dataset: Any) -> Turbo:
        return Turbo(dataset, self.decoder)


class TurboDecoding(Strategy):
    """Decodes the images that Pillow opens by another library, in one call instead of line by line.

    What it does: while a sample is read, colour images that ``PIL.Image.open`` opens get their pixels from simplejpeg
        (JPEG), OpenCV or torchvision (JPEG, PNG), whichever is installed and fastest; other formats and modes, files
        that are cut off, and images drafted to another size stay Pillow's. imageio reads by Pillow, too.
    When it helps: decoding is a good part of preparing a sample: a quarter less of it for JPEG, as much for small PNG.
    When it does not: images that are shrunk a lot, for which reduced decoding does more; OpenCV or torchvision used
        already, which are as fast as simplejpeg; samples kept.
    What it costs: an installed simplejpeg, OpenCV or torchvision. It is proven on real samples that pixels are the
        same to the bit; a library that gives others is not used.
    Source: https://gitlab.com/jfolz/simplejpeg; https://docs.opencv.org/4.x/d4/da8/group__imgcodecs.html
    """

    name = "turbo_decoding"
    title = "images decoded in one call"
    stages = frozenset({"preparation"})
    risk = Risk.EXACT
    after = frozenset({"reduced_decoding"})
    example = Example({"decoder": "simplejpeg"}, inspected={"decoder": "simplejpeg", "ratio": 0.7})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if not (able := read_each_time(case)):
            return able
        if "decoder" not in found:
            return Applies.no(found.get("reason") or "whether Pillow decodes images is not known")
        if found["ratio"] > 1.0 - LEAST_SAVING:
            return Applies.no(f"a sample takes {found['ratio']:.2f} of its seconds by {found['decoder']} (tried)")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        ratio = case.inspected(self.name).get("ratio")
        return None if ratio is None else tried_gain(case, ratio, ("preparation",))

    def settings(self, case: Case) -> list[Setting]:
        return [{"decoder": case.inspected(self.name)["decoder"]}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(DecodeTurbo(**setting))

    def recipe(self, setting: Setting) -> Recipe:
        code = f"{_CODE[setting.get('decoder', 'simplejpeg')]}  # instead of Image.open(file).convert('RGB')"
        note = {"_note": f"in the dataset: {code}"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)

    def inspect(self, live: Any) -> Setting:
        """Which library makes the same samples, and in what share of their seconds."""
        return probe(dataset_of(live.workload))
