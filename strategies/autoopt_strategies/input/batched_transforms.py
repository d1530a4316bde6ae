"""Batched transforms: the end of torchvision's chain of transforms, done for a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.input.batches import Wrapper, dataset_of, split
from autoopt_strategies.input.prepared_samples import no_whole_batches
from autoopt_strategies.input.probes import chain_of, sample_of, spread
from autoopt_strategies.predictions import LEAST_SAVING, tried_gain
from autoopt_strategies.trying import Setting, ratio_in_turns

STATISTICS = ("mean", "std")
RANDOM = ("crop", "hflip", "vflip")
"""Operations that draw numbers, one for each image."""


def transformed_on_device(loss: Callable[..., Any], operations: list[Setting]) -> Callable[..., Any]:
    """The loss; batches of whole numbers go through the operations where the model is."""
    import torch

    def transformed(model: Any, batch: Any) -> Any:
        images, *others = batch
        if images.dtype != torch.uint8:  # of a dataset that transforms its own, as the validation's does
            return loss(model, batch)
        return loss(model, [applied(images, operations), *others])

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
        left, operations = setup.with_dataset(Wrap.of(untransformed, prefix=setting["prefix"])), setting["operations"]
        if setting["where"] == "device":
            return left.with_loss(Wrap.of(transformed_on_device, operations=operations))
        return left.with_collate(Wrap.of(TransformedBatches, operations=operations))

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
    """Whether what each transform makes of the image is one of the outcomes of its operation, to rounding."""
    import torch

    if isinstance(image, torch.Tensor) and image.dtype != torch.uint8:
        return False
    if not isinstance(image, torch.Tensor) and getattr(image, "mode", None) not in ("L", "RGB"):
        return False
    for transform, each in zip(transforms, operations, strict=True):
        made = pixels(transform(image))
        if not any(
            made.dtype == outcome.dtype
            and made.shape == outcome.shape
            and torch.allclose(made.to(torch.float32), outcome.to(torch.float32), rtol=1e-6, atol=1e-6)
            for outcome in outcomes(pixels(image), each)
        ):
            return False
        image = transform(image)
    return True


# operations on batches


def _crop(transform: Any) -> Setting | None:
    if getattr(transform, "padding_mode", "constant") != "constant" or getattr(transform, "pad_if_needed", False):
        return None
    if getattr(transform, "fill", 0) not in (0, None):
        return None
    padding = getattr(transform, "padding", None) or 0
    left_top = [padding] * 4 if isinstance(padding, int) else [int(side) for side in padding]
    left, top, right, bottom = left_top * 2 if len(left_top) == 2 else left_top
    height, width = (int(side) for side in transform.size)
    return {"op": "crop", "size": [height, width], "padding": [left, right, top, bottom]}


def _to_dtype(transform: Any) -> Setting | None:
    """``ToDtype`` scales where it is asked to, ``ConvertImageDtype`` always."""
    import torch

    return {"op": "scale"} if transform.dtype is torch.float32 and getattr(transform, "scale", True) else None


_MAKERS: dict[str, Any] = {
    "ToTensor": lambda transform: {"op": "scale"},
    "PILToTensor": lambda transform: {"op": "nothing"},
    "ToImage": lambda transform: {"op": "nothing"},
    "ToDtype": _to_dtype,
    "ConvertImageDtype": _to_dtype,
    "Normalize": lambda transform: {
        "op": "normalize",
        **{of: [*map(float, getattr(transform, of))] for of in STATISTICS},
    },
    "RandomHorizontalFlip": lambda transform: {"op": "hflip", "p": float(transform.p)},
    "RandomVerticalFlip": lambda transform: {"op": "vflip", "p": float(transform.p)},
    "RandomCrop": _crop,
}


def ending(chain: list[Any]) -> tuple[int, list[Setting]]:
    """Where the longest end of a chain begins that operations on batches can do, and these.

    They begin with images of whole numbers: one of them, and no more, makes shares of 255 of these.
    """
    found: list[Setting] = []
    for transform in reversed(chain):
        kind = type(transform)
        ours = kind.__module__.startswith("torchvision.transforms")  # v1 or v2
        made = _MAKERS[kind.__name__](transform) if ours and kind.__name__ in _MAKERS else None
        if made is None:
            break
        found.insert(0, made)
    kinds = [made["op"] for made in found]
    if kinds.count("scale") != 1 or ("normalize" in kinds and kinds.index("normalize") < kinds.index("scale")):
        return len(chain), []
    return len(chain) - len(found), found


def applied(images: Any, operations: Any) -> Any:
    """The operations on a batch of images, ``N x C x H x W``.

    Images that are numbers of floating point already went through those at the front that draw nothing: a cache kept
    them so.
    """
    front = images.is_floating_point()
    for each in operations:
        front = front and each["op"] not in RANDOM
        if not front:
            images = _done(images, each)
    return images


def _done(images: Any, each: Any) -> Any:
    """A batch of images after one operation."""
    import torch

    count, device = len(images), images.device
    if each["op"] == "scale" and not images.is_floating_point():
        return images.to(torch.float32).div_(255)
    if each["op"] == "normalize":
        mean, std = (torch.tensor(each[name], dtype=images.dtype, device=device).view(-1, 1, 1) for name in STATISTICS)
        return images.sub(mean).div_(std)
    if each["op"] in ("hflip", "vflip"):
        drawn = torch.rand(count, device=device) < each["p"]
        return torch.where(drawn.view(-1, 1, 1, 1), images.flip(3 if each["op"] == "hflip" else 2), images)
    if each["op"] == "crop":
        padded = torch.nn.functional.pad(images, each["padding"])
        rows, columns = (
            torch.randint(whole - part + 1, (count, 1), device=device) + torch.arange(part, device=device)
            for whole, part in zip(padded.shape[2:], each["size"], strict=True)
        )
        one = torch.arange(count, device=device).view(-1, 1, 1)
        # rows and columns of each image, its channels last: one gather for the whole batch
        found = padded.permute(0, 2, 3, 1)[one, rows.unsqueeze(2), columns.unsqueeze(1)]
        return found.permute(0, 3, 1, 2).contiguous()
    return images


def outcomes(image: Any, each: Setting) -> Any:
    """All that an operation may make of an image ``C x H x W``, one after the other."""
    import torch

    if each["op"] in ("hflip", "vflip"):
        yield image
        yield image.flip(2 if each["op"] == "hflip" else 1)
    elif each["op"] == "crop":
        height, width = each["size"]
        padded = torch.nn.functional.pad(image, each["padding"])
        for top in range(padded.shape[1] - height + 1):
            for left in range(padded.shape[2] - width + 1):
                yield padded[:, top : top + height, left : left + width]
    else:
        yield _done(image.unsqueeze(0), each)[0]


def pixels(image: Any) -> Any:
    """An image, or a tensor of one, as a tensor ``C x H x W``."""
    import numpy as np
    import torch

    if isinstance(image, torch.Tensor):
        return image
    array = np.array(image)
    return torch.from_numpy(array if array.ndim == 3 else array[..., None]).permute(2, 0, 1).contiguous()


class Untransformed(Wrapper):
    """A dataset without the end of its chain of transforms: the first part of a sample is a tensor of the image.

    Args:
        dataset: what is asked for everything but samples; a dataset that keeps what earlier transforms made included.
        source: whose samples are read.
    """

    def __init__(self, dataset: Any, source: Any) -> None:
        super().__init__(dataset)
        self.source = source

    def __getitem__(self, index: Any) -> Any:
        first, *others = self.source[index]
        return (pixels(first), *others)


def untransformed(dataset: Any, prefix: int) -> Untransformed:
    """A dataset without the end of its chain of transforms.

    Args:
        prefix: how many transforms at the front of the chain are left.
    """
    tail = dataset.__dict__.get("tail") if hasattr(dataset, "__dict__") else None
    if tail is None:
        return Untransformed(dataset, split(dataset, prefix)[0] if chain_of(dataset) else dataset)
    source = copy(dataset)  # a cache of what the first transforms make: it goes on with fewer
    source.tail = tuple(tail[: max(0, prefix - (len(chain_of(dataset)) - len(tail)))])
    return Untransformed(dataset, source)


class TransformedBatches:
    """``collate_fn`` whose batches of images go through the operations as a whole."""

    def __init__(self, collate: Any, operations: Any) -> None:
        self.collate, self.operations = collate, operations

    def __call__(self, samples: Any) -> Any:
        import torch

        images, *others = self.collate(samples)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a batch is too little work to wake threads for, whom a busy core keeps waiting
        try:
            return [applied(images, self.operations), *others]
        finally:
            torch.set_num_threads(threads)
