"""In which forms the samples of a dataset can be prepared once: tried on a few of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import cycle
from time import perf_counter
from typing import Any

from autoopt_strategies.common import Setting, ratio_in_turns
from autoopt_strategies.input.batches import equal, split, transformed

SPREAD, SEEDS = 12, 4
"""Samples from all over a dataset that are read one by one, and how often each is drawn."""
SIZE = 8
"""Batches that are read by one index, and their size."""
KINDS = ("tensor", "array", "list")
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


def kept(dataset: Any) -> Setting:
    """The part of a dataset that can be kept: ``deterministic``, or ``prefix`` with the ``share`` of its seconds."""
    try:
        len(dataset)
    except TypeError:
        return {"reason": "the dataset has no length"}
    indices = spread(dataset)
    if not indices or deterministic(dataset, indices):
        made, seconds = timed(dataset, indices)
        hit = hit_ratio(dataset, dict(zip(indices, made, strict=True)), ())
        found = {"deterministic": True, "share": 1.0, "sample_seconds": seconds, "hit": hit}
        threads = threads_ratio(dataset, indices, made, seconds)
        return {**found, "handing_seconds": handing_seconds(made), "threads": threads}
    chain = chain_of(dataset)
    if not chain:
        return {"reason": "samples are random, and there is no chain of transforms whose first part could be cached"}
    return _prefix(dataset, chain, indices)


def _prefix(dataset: Any, chain: list[Any], indices: list[int]) -> Setting:
    first = next((i for i, transform in enumerate(chain) if looks_random(transform)), len(chain))
    for length in range(first, 0, -1):
        head, rest = split(dataset, length)
        if deterministic(head, indices) and _composes(dataset, head, rest, indices):
            made, seconds = timed(head, indices)
            _, whole = timed(dataset, indices)
            size = max(item_bytes(sample) for sample in made)
            share = min(1.0, seconds / whole) if whole else 1.0
            hit = hit_ratio(dataset, dict(zip(indices, made, strict=True)), rest)
            found = {"prefix": length, "share": share, "sample_seconds": seconds, "sample_bytes": size, "hit": hit}
            return {**found, "handing_seconds": handing_seconds(made)}
    return {"reason": f"augmentation is random from the first transform on ({type(chain[0]).__name__})"}


class Indexed:
    """Samples that a function makes of their index."""

    def __init__(self, sample: Callable[[int], Any]) -> None:
        self.sample = sample

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def timed(dataset: Any, indices: Sequence[int]) -> tuple[list[Any], float]:
    """Samples, and the seconds that each of them took."""
    began = perf_counter()
    made = [dataset[index] for index in indices]
    return made, (perf_counter() - began) / max(1, len(indices))


def handing_seconds(samples: list[Any]) -> float:
    """Seconds that a process takes for each sample that another one has read for it."""
    from autoopt_strategies.input.prepared import as_bytes, from_bytes

    handed = as_bytes(samples)
    began = perf_counter()
    from_bytes(handed)
    return (perf_counter() - began) / max(1, len(samples))


def threads_ratio(dataset: Any, indices: list[int], made: list[Any], seconds: float) -> float | None:
    """Seconds of a sample that threads read at the same time over those of one thread.

    None where threads get other samples: a file that they share has one position.
    """
    from autoopt_strategies.input.prepared import ThreadedSamples

    if not indices or not seconds:
        return None
    threaded, began = ThreadedSamples(dataset, len(indices)), perf_counter()
    try:
        found = threaded.__getitems__(indices)
    except Exception:  # a handle that belongs to the thread that has made it
        return None
    ratio = (perf_counter() - began) / len(indices) / seconds
    return ratio if all(equal(one, other) for one, other in zip(made, found, strict=True)) else None


def hit_ratio(dataset: Any, samples: dict[int, Any], tail: tuple[Any, ...]) -> float:
    """Seconds of a sample from the cache over those of one that is prepared.

    Args:
        samples: by index, as they are kept.
        tail: transforms that a kept sample still goes through.
    """
    kept = Indexed(lambda index: transformed(samples[index], tail) if tail else samples[index])
    return min(1.0, seconds_ratio(dataset, kept, list(samples))) if samples else 1.0


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
    if not hasattr(item, "nbytes") and getattr(item, "__dict__", None):  # an object that holds them, as of a graph
        return 64 + sum(item_bytes(value) for value in vars(item).values())
    return int(getattr(item, "nbytes", 64))


def seed_everything(seed: int) -> None:
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def batches(dataset: Any, size: int) -> Setting:
    """``{"index": the kind that gives the same batches, "ratio": of their seconds}``, or ``{"reason": why none}``.

    Args:
        size: of a batch whose seconds are compared.
    """
    from torch.utils.data import default_collate

    from autoopt_strategies.input.prepared import IndexedBatches

    try:
        count = len(dataset)
    except TypeError:
        return {"reason": "the dataset has no length"}
    drawn = random.Random(0)
    groups = [[0, count - 1], *([drawn.randrange(count) for _ in range(min(SIZE, count))] for _ in range(SIZE))]
    try:
        expected = [default_collate([dataset[i] for i in group]) for group in groups]
    except Exception as error:
        return {"reason": f"samples cannot be collated by torch's default: {type(error).__name__}"}
    for kind in KINDS:
        indexed = IndexedBatches(dataset, kind)
        try:
            found = [indexed.__getitems__(group).batch for group in groups]
        except Exception:  # the dataset takes one index at a time
            continue
        if all(equal(one, other) for one, other in zip(found, expected, strict=True)):
            break
    else:
        return {"reason": "the dataset gives something else for many indices at once than for each of them"}
    many = getattr(dataset, "__getitems__", lambda group: [dataset[i] for i in group])
    timed_groups = [[drawn.randrange(count) for _ in range(size)] for _ in range(16)]
    one, other = cycle(timed_groups), cycle(timed_groups)
    ratio = ratio_in_turns(lambda: default_collate(many(next(one))), lambda: indexed.__getitems__(next(other)))
    return {"index": kind, "ratio": min(1.0, ratio)}


def tensors(dataset: Any, collate: Any) -> Setting:
    """``{"ratio": seconds in Hugging Face's torch format over those now}``, or ``{"reason": why not}``."""
    if type(dataset).__module__.split(".")[0] != "datasets" or not hasattr(dataset, "with_format"):
        return {"reason": f"{type(dataset).__name__} is no dataset of Hugging Face's"}
    if dataset.format["type"] is not None:
        return {"reason": f"the dataset has the format {dataset.format['type']!r} already"}
    other = dataset.with_format("torch")
    groups = [[(number * 32 + i) % len(dataset) for i in range(32)] for number in range(4)]

    def made(source: Any, group: list[int]) -> Any:
        return collate([source[i] for i in group])

    try:
        same = all(equal(made(dataset, group), made(other, group)) for group in groups)
    except Exception as error:  # a collate function that wants lists
        return {"reason": f"samples in the torch format cannot be collated: {type(error).__name__}: {error}"}
    if not same:
        return {"reason": "the torch format gives other batches: the collate function takes lists apart"}
    return {"ratio": min(1.0, ratio_in_turns(lambda: made(dataset, groups[0]), lambda: made(other, groups[0])))}


def spread(dataset: Any, count: int = SPREAD) -> list[int]:
    """Indices of samples from all over a dataset; none where they cannot be read one by one."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        return []
    return sorted({i * (len(dataset) - 1) // max(1, count - 1) for i in range(count)})


def sample_of(dataset: Any, index: int) -> Any:
    """A sample with the random draws that its index seeds, whoever reads it."""
    seed_everything(index)
    return dataset[index]


def seconds_ratio(one: Any, other: Any, indices: list[int]) -> float:
    """Seconds to read these samples of ``other`` over those of ``one``."""

    def reading(dataset: Any) -> Callable[[], Any]:
        return lambda: [dataset[index] for index in indices]

    return ratio_in_turns(reading(one), reading(other))
