"""Turbo decoding: colour JPEG images that Pillow opens are decoded by simplejpeg."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, tried_gain
from autoopt_strategies.input.batches import dataset_of
from autoopt_strategies.input.decoding import read_each_time
from autoopt_strategies.input.turbo import Turbo, probe

LEAST_SAVING = 0.03


def decode_turbo(dataset: Any) -> Any:
    """The dataset with its JPEG images decoded by simplejpeg."""
    return Turbo(dataset)


class TurboDecoding(Strategy):
    """Decodes the JPEG images that Pillow opens by simplejpeg, in one call instead of line by line.

    What it does: while a sample is read, colour images that ``PIL.Image.open`` opens get their pixels from
        ``simplejpeg.decode_jpeg``; other formats and modes, and images drafted to another size, stay Pillow's.
    When it helps: decoding of JPEG images is a good part of preparing a sample: a quarter less of it.
    When it does not: images that are shrunk a lot, for which reduced decoding does more; other decoders; samples kept.
    What it costs: an installed simplejpeg. It is proven on real samples that pixels are the same to the bit.
    Source: https://gitlab.com/jfolz/simplejpeg; https://libjpeg-turbo.org
    """

    name = "turbo_decoding"
    title = "JPEG decoded by simplejpeg"
    stages = frozenset({"preparation"})
    risk = Risk.EXACT
    after = frozenset({"reduced_decoding"})
    example = Example(inspected={"ratio": 0.7})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if not (able := read_each_time(case)):
            return able
        if "ratio" not in found:
            return Applies.no(found.get("reason") or "whether Pillow decodes JPEG images is not known")
        if found["ratio"] > 1.0 - LEAST_SAVING:
            return Applies.no(f"a sample takes {found['ratio']:.2f} of its seconds with simplejpeg (tried)")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        ratio = case.inspected(self.name).get("ratio")
        return None if ratio is None else tried_gain(case, ratio, ("preparation",))

    def settings(self, case: Case) -> list[Setting]:
        return [{}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(decode_turbo)

    def recipe(self, setting: Setting) -> Recipe:
        code = "image = Image.fromarray(simplejpeg.decode_jpeg(data))  # instead of Image.open(file).convert('RGB')"
        note = {"_note": f"in the dataset: {code}"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)

    def inspect(self, live: Any) -> Setting:
        """Whether samples are the same with simplejpeg, and what reading one takes."""
        return probe(dataset_of(live.workload))
