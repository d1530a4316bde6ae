"""Cache: the part of the dataset that is the same in every epoch, prepared once and kept in memory."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Change, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.common import PATIENCE, Setting, after_paying, gain, seconds_of
from autoopt_strategies.input.batches import dataset_of
from autoopt_strategies.input.cacheable import probe
from autoopt_strategies.input.workers import without_workers

PREPARED = "autoopt_strategies.input.prepared"
"""The module that a patch takes its code from; it imports torch."""
FREE = 0.5
"""Share of the free memory that a cache may take."""
LEFT = 0.02
"""Of a sample's seconds, what reading it from the cache takes at the least, where that was not measured."""


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
    excludes = frozenset(
        {"memory_map", "reduced_decoding", "turbo_decoding", "torch_format", "ram_disk", "threaded_loading"}
    )
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
        filling = self._reading(case) / max(1, self._workers(case))
        if case.seconds_left is not None and filling > PATIENCE * case.seconds_left:
            return Applies.no(f"reading them takes {filling:.0f} s of {case.seconds_left:.0f} s left for the search")
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
        filling = self.once_seconds(case, setting)
        if not filling:
            return step
        return after_paying(case, step, filling, least=filling / 2)

    def once_seconds(self, case: Case, setting: Setting) -> float:
        """All samples read once, by so many processes."""
        return float(self._reading(case) / max(1, setting.get("workers", 0)))

    def settings(self, case: Case) -> list[Setting]:
        found = case.inspected(self.name)
        prefix = None if found.get("deterministic") else found.get("prefix")
        return [{"prefix": prefix, "workers": self._workers(case)}]

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """No workers beside whole samples, some beside transforms that are left, to which the bottleneck moves."""
        if setting.get("prefix") is None:
            return without_workers(case)
        if case.loader_option("num_workers"):
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
        first, workers = setting.get("prefix"), setting.get("workers", 0)
        options = (*((("first", first),) if first is not None else ()), *((("workers", workers),) if workers else ()))
        return setup.with_dataset(Wrap(f"{PREPARED}:{'KeptSamples' if first is None else 'KeptHeads'}", options))

    def recipe(self, setting: Setting) -> Recipe:
        what = "all samples" if setting.get("prefix") is None else f"samples after {setting['prefix']} transforms"
        code = f"samples = [dataset[i] for i in range(len(dataset))]  # {what}, once, before training"
        note = {"_note": f"keep {what} in memory: {code}"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)

    def inspect(self, live: Any) -> Setting:
        """Whether samples, or a head of their transforms, are the same under other random numbers."""
        return probe(dataset_of(live.workload))

    def _reading(self, case: Case) -> float:
        """Seconds to read all samples in one process; 0 where that is not known."""
        return (case.inspected(self.name).get("sample_seconds") or 0.0) * (case.workload.train_samples or 0)

    def _workers(self, case: Case) -> int:
        return min(case.environment.cores or 1, 8) if self._reading(case) > 2.0 else 0

    def _bytes(self, case: Case) -> float | None:
        size = case.inspected(self.name).get("sample_bytes") or case.workload.dataset.sample_bytes
        count = case.workload.train_samples
        return float(size) * count if size and count else None


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
