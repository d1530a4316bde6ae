"""The part of a dataset's samples that is the same every time."""

from __future__ import annotations

from typing import Any

from autoopt_strategies.common import Setting
from autoopt_strategies.input.batches import equal, leaves, split, transformed

SAMPLES, SEEDS = 12, 4
TURNS = 9
NAMES = ("random", "jitter", "augment", "erasing", "noise", "mixup", "cutout", "cutmix", "dropout")


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

    class Kept:
        def __getitem__(self, index: int) -> Any:
            return transformed(samples[index], tail) if tail else samples[index]

    def seconds(source: Any) -> float:
        began = perf_counter()
        for index in samples:
            source[index]
        return perf_counter() - began

    kept = Kept()
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
        if not equal(whole, transformed(sample, rest)):
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
