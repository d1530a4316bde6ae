"""Decoding: images are decoded in one call by another library, or no larger than they need to be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import LEAST_SAVING, Setting, Settings, kept, tried_gain
from autoopt_strategies.input.batches import Wrapper, dataset_of
from autoopt_strategies.input.images import LIBRARIES, decoded, drafted, imdecode_reduced, imread_reduced

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


class Decoded(Wrapper):
    """A dataset whose images are decoded otherwise: ``by`` a library, or at a reduced size whose ``shorter`` side
    keeps so many pixels, where ``reader`` (``pillow`` or ``opencv``) opens them.
    """

    def __init__(self, dataset: Any, by: str = "", shorter: int = 0, reader: str = "pillow") -> None:
        super().__init__(dataset)
        self.by, self.shorter, self.reader = by, shorter, reader

    def __getitem__(self, index: Any) -> Any:
        with replaced(self._changes()):
            return self.dataset[index]

    def _changes(self) -> dict[tuple[str, str], Callable[..., Any]]:
        if self.by:
            return {("PIL.Image", "open"): lambda plain, *a, **k: decoded(plain(*a, **k), LIBRARIES[self.by])}
        if self.reader == "pillow":
            return {("PIL.Image", "open"): lambda plain, *a, **k: drafted(plain(*a, **k), self.shorter)}
        return {
            ("cv2", "imread"): lambda _, *a, **k: imread_reduced(*a, **k, shorter=self.shorter),
            ("cv2", "imdecode"): lambda _, *a, **k: imdecode_reduced(*a, **k, shorter=self.shorter),
        }


@dataclass(frozen=True)
class Decode:
    """``dataset -> dataset`` whose images are decoded otherwise; arguments as of :class:`Decoded`."""

    by: str = ""
    shorter: int = 0
    reader: str = "pillow"

    def __call__(self, dataset: Any) -> Decoded:
        return Decoded(dataset, self.by, self.shorter, self.reader)


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
        shorter, used = setting.get("shorter"), dict[str, tuple[str, ...]]()
        if "by" in setting:
            lines = {"open": f"decoded({{call}}, by_{setting['by']})"}
            used = {"open": ("decoded", f"by_{setting['by']}")}
        elif setting["reader"] == "pillow":
            lines, used = {"open": f"drafted({{call}}, shorter={shorter})"}, {"open": ("drafted",)}
        else:
            names = ("imread", "imdecode")
            lines = {name: f"{name}_reduced({{arguments}}, shorter={shorter})" for name in names}
            used = {name: (f"{name}_reduced",) for name in names}
        edits = tuple(
            Edit(
                "call",
                lines=(each["file"], str(each["line"]), each["name"], lines[each["name"]]),
                parts=tuple(f"autoopt_strategies.input.images:{name}" for name in used[each["name"]]),
            )
            for each in setting["calls"]
            if each["name"] in lines
        )
        code = next(iter(lines.values())).format(call="Image.open(path)", arguments="path")
        return Recipe.noted(f"image = {code}", f"in the dataset: image = {code}", edits=edits)

    def inspect(self, live: Any) -> Setting:
        """Who decodes in which lines, which library makes the same samples, and how far images are shrunk anyway."""
        from autoopt_strategies.input import decoders

        dataset = dataset_of(live.workload)
        return {
            "reduced": decoders.reduced(dataset),
            "by": decoders.by(dataset),
            "calls": decoders.calls(dataset),
        }
