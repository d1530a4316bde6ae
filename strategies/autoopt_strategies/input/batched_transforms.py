"""Batched transforms: the end of torchvision's chain of transforms, done for a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.common import LEAST_SAVING, Setting, ratio_in_turns, tried_gain
from autoopt_strategies.input.batches import dataset_of, split
from autoopt_strategies.input.prepared_samples import no_whole_batches
from autoopt_strategies.input.probes import chain_of, sample_of, spread
from autoopt_strategies.input.transforms import TransformedBatches, Untransformed, applied, ending, proven

MODULE = "autoopt_strategies.input.transforms"


@dataclass(frozen=True)
class TransformOnDevice:
    """``loss -> loss``: batches of whole numbers go through the operations where the model is."""

    operations: tuple[Setting, ...]

    def __call__(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def transformed(model: Any, batch: Any) -> Any:
            images, *others = batch
            if images.dtype != torch.uint8:  # of a dataset that transforms its own, as the validation's does
                return loss(model, batch)
            return loss(model, [applied(images, self.operations), *others])

        return transformed


class BatchedTransforms(Strategy):
    """Flips, crops, scales and normalizes a whole batch of images at once, rather than each image.

    What it does: takes the end of torchvision's chain of transforms (``ToTensor``, ``Normalize``, ``RandomCrop``,
        ``RandomHorizontalFlip`` and their like) out of the dataset and does it to batches: when they are collated, in
        the workers; on CUDA on the device, to which a quarter of the bytes then travels.
    When it helps: small images, for which calling each transform costs more than what it does; a device that waits.
    When it does not: chains that end with transforms of another kind; images that differ in size there; a collate
        function of one's own.
    What it costs: each image draws from the same distribution, but other numbers. It is verified on real samples,
        transform by transform, that what yours makes is among the outcomes, to rounding.
    Source: https://docs.pytorch.org/vision/stable/transforms.html (v2 on batches); Riba et al., "Kornia", WACV 2020
    """

    name = "batched_transforms"
    title = "transforms on whole batches"
    stages = frozenset({"preparation", "collate"})
    risk = Risk.NUMERIC
    after = frozenset({"prepared_samples"})
    example = Example(
        {"prefix": 0, "operations": [{"op": "scale"}], "where": "collate"},
        inspected={"prefix": 0, "operations": [{"op": "scale"}], "ratio": 0.3},
    )

    def applies(self, case: Case) -> Applies:
        found, refused = case.inspected(self.name), no_whole_batches(case)
        if refused:
            return Applies.no(refused)
        if "ratio" not in found:
            return Applies.no(found.get("reason") or "no chain of torchvision's transforms is known")
        if found["ratio"] > 1.0 - LEAST_SAVING:
            return Applies.no(f"a batch takes {found['ratio']:.2f} of its seconds so (tried)")
        kept = case.plan.setting("prepared_samples")
        if kept is not None and kept["form"] in ("samples", "rows", "batches"):
            return Applies.no("the transformed samples are kept")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        return tried_gain(case, case.inspected(self.name).get("ratio"), ("preparation", "collate"))

    def settings(self, case: Case) -> list[Setting]:
        found = case.inspected(self.name)
        setting = {"prefix": found["prefix"], "operations": found["operations"], "where": "collate"}
        on_device = [{**setting, "where": "device"}] if case.device == "cuda" and case.sites is None else []
        return [*on_device, setting]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        left = setup.with_dataset(Wrap(f"{MODULE}:untransformed", (("prefix", setting["prefix"]),)))
        if setting["where"] == "device":
            return left.with_loss(TransformOnDevice(tuple(setting["operations"])))
        return left.with_collate(Wrap(f"{MODULE}:TransformedBatches", (("operations", setting["operations"]),)))

    def recipe(self, setting: Setting) -> Recipe:
        names = ", ".join(each["op"] for each in setting["operations"] if each["op"] != "nothing")
        code = (
            f"# take these out of the dataset's transform, and do them to each batch, with v2 or kornia: {names}\n"
            "images = augment(images)  # N x C x H x W, uint8; numbers are drawn for each image"
        )
        return Recipe.noted(code, f"transforms on batches: {names}")

    def inspect(self, live: Any) -> Setting:
        """The end of the chain that batches can go through, verified, and how the seconds of a batch compare."""
        return probe(dataset_of(live.workload), live.training.loader.batch_size or 8)


def probe(dataset: Any, size: int) -> Setting:
    """``{"prefix", "operations", "ratio": seconds of a batch so over those now}``, or ``{"reason": why not}``."""
    from torch.utils.data import default_collate

    chain = chain_of(dataset)
    if not chain:
        return {"reason": "the dataset has no chain of transforms (transform.transforms)"}
    prefix, operations = ending(chain)
    if not operations:
        return {"reason": f"the chain of transforms ends with {type(chain[-1]).__name__}, for which batches have none"}
    indices, head = spread(dataset), split(dataset, prefix)[0]
    for index in indices:
        sample = sample_of(head, index)
        if not isinstance(sample, tuple) or not _proves(chain[prefix:], operations, sample[0]):
            return {"reason": "an image after the transforms is none of the outcomes that batches would draw from"}
    source, whole = Untransformed(dataset, head), TransformedBatches(default_collate, operations)
    group = [number % len(dataset) for number in range(size)]
    try:
        ratio = ratio_in_turns(
            lambda: default_collate([dataset[index] for index in group]),
            lambda: whole([source[index] for index in group]),
        )
    except RuntimeError:
        return {"reason": "images differ in size before these transforms"}
    return {"prefix": prefix, "operations": operations, "ratio": min(1.0, ratio)}


def _proves(transforms: list[Any], operations: list[Setting], image: Any) -> bool:
    """Whether each transform does to the image what its operation may do to it."""
    import torch

    if isinstance(image, torch.Tensor) and image.dtype != torch.uint8:
        return False
    if not isinstance(image, torch.Tensor) and getattr(image, "mode", None) not in ("L", "RGB"):
        return False
    for transform, each in zip(transforms, operations, strict=True):
        if not proven(transform, each, image):
            return False
        image = transform(image)
    return True
