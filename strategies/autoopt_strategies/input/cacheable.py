"""The part of a dataset's samples that is the same every time, and a dataset that keeps it."""

from __future__ import annotations

from typing import Any

from autoopt_strategies.common import Setting
from autoopt_strategies.input.batches import Wrapper, equal, leaves

SAMPLES, SEEDS = 12, 4
TURNS = 9
NAMES = ("random", "jitter", "augment", "erasing", "noise", "mixup", "cutout", "cutmix", "dropout")


class Cached(Wrapper):
    """All samples of a dataset, read once. Workers that are forked share them.

    Args:
        dataset: deterministic as far as it is cached.
        samples: its samples; where ``tail`` is given, as they are before it.
        tail: transforms for the first part of each sample, applied afresh every time.
    """

    def __init__(self, dataset: Any, samples: list[Any] | dict[int, Any], tail: tuple[Any, ...] = ()) -> None:
        super().__init__(dataset)
        self.samples = samples
        self.tail = tail

    def __getitem__(self, index: Any) -> Any:
        sample = self.samples[index]
        if not self.tail:
            return sample
        first = copied(sample[0])
        for transform in self.tail:
            first = transform(first)
        return (first, *sample[1:])


def copied(item: Any) -> Any:
    """A copy, so that a transform that works in place does not reach the cache."""
    copy = getattr(item, "clone", None) or getattr(item, "copy", None)
    return copy() if copy is not None else item


def same(samples: Any) -> Any:
    """``collate_fn`` that leaves a sample as it is."""
    return samples


def kept_apart(sample: Any) -> Any:
    """The sample with tensors of its own, rather than such that hold a worker's shared memory open."""
    import torch

    if isinstance(sample, torch.Tensor):
        return sample.clone()
    if isinstance(sample, dict):
        return {key: kept_apart(value) for key, value in sample.items()}
    if type(sample) in (tuple, list):
        return type(sample)(kept_apart(value) for value in sample)
    return sample


def chain_of(dataset: Any) -> list[Any]:
    """The transforms that images of a dataset go through (``dataset.transform.transforms``), those of a subset, too."""
    while is_subset(dataset):
        dataset = dataset.dataset
    chain = getattr(getattr(dataset, "transform", None), "transforms", None)
    return list(chain) if isinstance(chain, (list, tuple)) else []


def is_subset(dataset: Any) -> bool:
    """Whether a dataset picks samples of another one, as ``random_split`` makes it."""
    from torch.utils.data import Subset

    return type(dataset) is Subset


def split(dataset: Any, prefix: int) -> tuple[Any, tuple[Any, ...]]:
    """The dataset with only the first transforms of its chain, and the rest of the chain."""
    import copy

    head = copy.copy(dataset)
    if is_subset(dataset):
        head.dataset, rest = split(dataset.dataset, prefix)
        return head, rest
    chain = copy.copy(dataset.transform)
    rest = tuple(chain.transforms[prefix:])
    chain.transforms = list(chain.transforms[:prefix]) or [same]  # one of torchvision's v2 must not be empty
    head.transform = chain
    # torchvision keeps the same chain a second time, in the order in which it calls it.
    if hasattr(head, "transforms") and hasattr(head.transforms, "transform"):
        head.transforms = copy.copy(head.transforms)
        head.transforms.transform = chain
    return head, rest


def probe(dataset: Any) -> Setting:
    """The part of a dataset that can be cached: ``deterministic``, or ``prefix`` with the ``share`` of its seconds."""
    from time import perf_counter

    try:
        count = len(dataset)
    except TypeError:
        return {"reason": "the dataset has no length"}
    indices = sorted({i * (count - 1) // max(1, SAMPLES - 1) for i in range(SAMPLES)})
    began = perf_counter()
    if not indices or deterministic(dataset, indices):
        seconds = (perf_counter() - began) / max(1, len(indices) * SEEDS)
        hit = hit_ratio(dataset, {index: dataset[index] for index in indices}, ())
        static = same_shapes([dataset[index] for index in indices])
        return {"deterministic": True, "share": 1.0, "sample_seconds": seconds, "hit": hit, "static": static}
    chain = chain_of(dataset)
    if not chain:
        return {"reason": "samples are random, and there is no chain of transforms whose first part could be cached"}
    return _prefix(dataset, chain, indices)


def _prefix(dataset: Any, chain: list[Any], indices: list[int]) -> Setting:
    from time import perf_counter

    length = next((i for i, transform in enumerate(chain) if looks_random(transform)), len(chain))
    while length:
        head, rest = split(dataset, length)
        if deterministic(head, indices) and _composes(dataset, head, rest, indices):
            began = perf_counter()
            made = [head[index] for index in indices]
            seconds = (perf_counter() - began) / len(indices)
            began = perf_counter()
            for index in indices:
                dataset[index]
            whole = (perf_counter() - began) / len(indices)
            size = max(item_bytes(sample) for sample in made)
            share = min(1.0, seconds / whole) if whole else 1.0
            hit = hit_ratio(dataset, dict(zip(indices, made, strict=True)), rest)
            found = {"prefix": length, "share": share, "sample_seconds": seconds, "sample_bytes": size, "hit": hit}
            return {**found, "static": same_shapes(made)}
        length -= 1
    return {"reason": f"augmentation is random from the first transform on ({type(chain[0]).__name__})"}


def same_shapes(samples: list[Any]) -> bool:
    """Whether the parts of all samples have the same shapes, so that they could be rows of arrays."""
    import numpy as np

    def shapes(sample: Any) -> list[Any]:
        return [np.shape(part) for part in leaves(sample)]

    return all(shapes(sample) == shapes(samples[0]) for sample in samples)


def hit_ratio(dataset: Any, samples: dict[int, Any], tail: tuple[Any, ...]) -> float:
    """Seconds of a sample from the cache over those of one that is prepared: the median over turns.

    Args:
        samples: by index, as they are kept.
        tail: transforms that a kept sample still goes through.
    """
    import statistics
    from time import perf_counter

    def seconds(source: Any) -> float:
        began = perf_counter()
        for index in samples:
            source[index]
        return perf_counter() - began

    kept = Cached(dataset, samples, tail)
    ratios = [1 / max(seconds(dataset), 1e-9) * seconds(kept) for _ in range(TURNS if samples else 0)]
    return min(1.0, statistics.median(ratios)) if ratios else 1.0


def deterministic(dataset: Any, indices: list[int]) -> bool:
    """Whether samples are the same to the bit under other random numbers."""
    seen: list[list[Any]] = []
    for seed in range(SEEDS):
        seed_everything(seed)
        seen.append([dataset[index] for index in indices])
    return all(equal(seen[0], other) for other in seen[1:])


def _composes(dataset: Any, head: Any, rest: tuple[Any, ...], indices: list[int]) -> bool:
    """Whether the head followed by the rest, on the first part of a sample, is the sample."""
    for index in indices:
        sample = head[index]
        if not isinstance(sample, tuple):
            return False
        seed_everything(index)
        whole = dataset[index]
        seed_everything(index)
        first = copied(sample[0])
        for transform in rest:
            first = transform(first)
        if not equal(whole, (first, *sample[1:])):
            return False
    return True


def looks_random(transform: Any) -> bool:
    """Whether a transform's name says that it draws numbers: a rare draw may not show in a few tries."""
    name = (getattr(transform, "__name__", "") or type(transform).__name__).lower()
    return any(part in name for part in NAMES)


def item_bytes(item: Any) -> int:
    """Bytes of the tensors, arrays and images in a sample."""
    if isinstance(item, dict):
        return sum(item_bytes(value) for value in item.values())
    if isinstance(item, (list, tuple)):
        return sum(item_bytes(value) for value in item)
    if hasattr(item, "mode") and hasattr(item, "size") and hasattr(item, "getbands"):
        return int(item.size[0] * item.size[1] * len(item.getbands()))
    return int(getattr(item, "nbytes", 64))


def seed_everything(seed: int) -> None:
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
