"""Cache: the part of the dataset that is the same in every epoch, prepared once and kept in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Change, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, after_paying, gain, seconds_of
from autoopt_strategies.input.batches import Wrapper, dataset_of, equal, leaves

FREE = 0.5
"""Share of the free memory that a cache may take."""
LEFT = 0.02
"""Of a sample's seconds, what reading it from the cache takes at the least, where that was not measured."""
SAMPLES, SEEDS = 12, 4
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


@dataclass(frozen=True)
class CacheSamples:
    """``dataset -> dataset`` in memory.

    Args:
        prefix: how many transforms of the dataset's ``transform`` are cached; None: whole samples.
        workers: processes that read it, once.
    """

    prefix: int | None = None
    workers: int = 0

    def __call__(self, dataset: Any) -> Cached:
        import torch
        from torch.utils.data import DataLoader

        source, tail = dataset, ()
        if self.prefix is not None:
            source, tail = split(dataset, self.prefix)
        loader = DataLoader(
            source, batch_size=None, collate_fn=same, num_workers=self.workers, generator=torch.Generator()
        )
        return Cached(dataset, [kept_apart(sample) for sample in loader], tail)


def split(dataset: Any, prefix: int) -> tuple[Any, tuple[Any, ...]]:
    """The dataset with only the first transforms of its chain, and the rest of the chain."""
    import copy

    head = copy.copy(dataset)
    chain = copy.copy(dataset.transform)
    rest = tuple(chain.transforms[prefix:])
    chain.transforms = list(chain.transforms[:prefix])
    head.transform = chain
    # torchvision keeps the same chain a second time, in the order in which it calls it.
    if hasattr(head, "transforms") and hasattr(head.transforms, "transform"):
        head.transforms = copy.copy(head.transforms)
        head.transforms.transform = chain
    return head, rest


class Cache(Strategy):
    """Keeps in memory what every epoch prepares again.

    What it does: reads all samples once, before the first step; where the dataset has a chain of transforms
        (``dataset.transform.transforms``), only those before the first random one.
    When it helps: decoding and resizing take the time, several epochs are planned, and the memory is there.
    When it does not: augmentation is random from the start, or samples are slices of memory already; a
        single epoch pays the whole price for nothing.
    What it costs: memory for all samples, and one reading of the dataset before the first step, charged
        to the run. Refused where the samples take more than half of the free memory.
    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (loading)
    """

    name = "cache"
    title = "samples kept in memory"
    stages = frozenset({"storage", "preparation"})
    risk = Risk.EXACT
    example = Example({"prefix": None, "workers": 0}, inspected={"deterministic": True, "sample_seconds": 1e-3})

    def applies(self, case: Case) -> Applies:
        facts, found = case.workload, case.inspected(self.name)
        if not facts.dataset.map_style:
            return Applies.no(f"{facts.dataset.type} is an IterableDataset, whose samples have no index")
        if not facts.batch_size:
            return Applies.no("the loader does not batch, so that training might change a cached sample in place")
        if facts.loader.multiprocessing_context in ("spawn", "forkserver"):
            return Applies.no("workers that are not forked would each get a copy of the cache")
        if not found.get("deterministic") and not found.get("prefix"):
            return Applies.no(
                found.get("reason") or "the samples of the dataset are not known to be the same every time"
            )
        wanted = self._bytes(case)
        free = facts.available_ram_bytes
        if wanted is None or free is None:
            return Applies.no("how much memory the samples would take is not known")
        if wanted > FREE * free:
            return Applies.no(f"the samples would take {_gigabytes(wanted)} of {_gigabytes(free)} free memory")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        found = case.inspected(self.name)
        left = found.get("hit", max(1.0 - found.get("share", 1.0), LEFT))
        preparation = seconds_of(case, "preparation")
        beside = {change.strategy: change.setting for change in self.companions(case, setting)}
        step = gain(
            case,
            {"storage": 0.0, "preparation": preparation * left},
            workers=beside.get("workers", {}).get("num_workers"),
            threads=beside.get("threads", {}).get("threads"),
        )
        seconds = found.get("sample_seconds")
        if seconds is None or not case.workload.train_samples:
            return step
        filling = seconds * case.workload.train_samples / max(1, setting.get("workers", 0))
        return after_paying(case, step, filling, least=filling / 2)

    def settings(self, case: Case) -> list[Setting]:
        found = case.inspected(self.name)
        filling = (found.get("sample_seconds") or 0.0) * (case.workload.train_samples or 0)
        workers = min(case.environment.cores or 1, 8) if filling > 2.0 else 0
        return [{"prefix": None if found.get("deterministic") else found.get("prefix"), "workers": workers}]

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """Workers for what the cache leaves to be prepared: one alone moves the bottleneck to the other."""
        if setting.get("prefix") is None or case.loader_option("num_workers"):
            return []
        number = max(1, (case.environment.cores or 2) // 2)
        found = [
            Change(
                strategy="workers",
                setting={"num_workers": number, "prefetch_factor": 2, "persistent_workers": True},
            )
        ]
        if case.device == "cpu" and (case.environment.cores or 1) > number:
            found.append(Change(strategy="threads", setting={"threads": (case.environment.cores or 1) - number}))
        return found

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(CacheSamples(setting.get("prefix"), setting.get("workers", 0)))

    def recipe(self, setting: Setting) -> Recipe:
        what = "all samples" if setting.get("prefix") is None else f"samples after {setting['prefix']} transforms"
        code = f"samples = [dataset[i] for i in range(len(dataset))]  # {what}, once, before training"
        note = {"_note": f"keep {what} in memory: {code}"}
        line = "[{dataset}[index] for index in range(len({dataset}))]"
        edits = (Edit("dataset", (line,)),) if setting.get("prefix") is None else ()
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note, edits=edits)

    def inspect(self, live: Any) -> Setting:
        """Whether samples, or a head of their transforms, are the same under other random numbers."""
        return probe(dataset_of(live.workload))

    def _bytes(self, case: Case) -> float | None:
        size = case.inspected(self.name).get("sample_bytes") or case.workload.dataset.sample_bytes
        count = case.workload.train_samples
        return float(size) * count if size and count else None


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


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
    chain = getattr(getattr(dataset, "transform", None), "transforms", None)
    if not isinstance(chain, (list, tuple)) or not chain:
        return {"reason": "samples are random, and there is no chain of transforms whose first part could be cached"}
    return _prefix(dataset, list(chain), indices)


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


def hit_ratio(dataset: Any, samples: dict[int, Any], tail: tuple[Any, ...], turns: int = 9) -> float:
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
    ratios = [1 / max(seconds(dataset), 1e-9) * seconds(kept) for _ in range(turns if samples else 0)]
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
