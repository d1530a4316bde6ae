"""Transforms of torchvision at the end of a dataset's chain, as operations on a whole batch of images."""

from __future__ import annotations

from copy import copy
from typing import Any

from autoopt_strategies.common import Setting
from autoopt_strategies.input.batches import Wrapper, split
from autoopt_strategies.input.probes import chain_of

STATISTICS = ("mean", "std")
RANDOM = ("crop", "hflip", "vflip")
"""Operations that draw numbers, one for each image."""


def operation(transform: Any) -> Setting | None:
    """A transform of torchvision (v1 or v2) as plain data; None where there is no operation on batches for it."""
    kind = type(transform)
    if not kind.__module__.startswith("torchvision.transforms"):
        return None
    made = _MAKERS.get(kind.__name__)
    return None if made is None else made(transform)


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
    start = len(chain)
    while start and (made := operation(chain[start - 1])) is not None:
        found.insert(0, made)
        start -= 1
    kinds = [made["op"] for made in found]
    if kinds.count("scale") != 1 or ("normalize" in kinds and kinds.index("normalize") < kinds.index("scale")):
        return len(chain), []
    return start, found


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


def proven(transform: Any, each: Setting, image: Any) -> bool:
    """Whether what a transform makes of an image is one of the outcomes of the operation, to rounding."""
    import torch

    made = pixels(transform(image))
    return any(
        made.dtype == outcome.dtype
        and made.shape == outcome.shape
        and torch.allclose(made.to(torch.float32), outcome.to(torch.float32), rtol=1e-6, atol=1e-6)
        for outcome in outcomes(pixels(image), each)
    )
