"""Batch fetching: one indexing operation for the whole batch instead of one for each sample."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Change, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.common import Setting, gain, seconds_of, tried_gain
from autoopt_strategies.input.batches import collate_whole, dataset_of, equal
from autoopt_strategies.input.cache import PREPARED
from autoopt_strategies.input.workers import without_workers

KINDS = ("tensor", "array", "list")
CHECKED, SIZE = 6, 8


class BatchFetch(Strategy):
    """Reads a batch with one indexing operation where the dataset's samples are rows of tensors or arrays.

    What it does: gives the dataset ``__getitems__``, which torch's loader asks for whole batches.
    When it helps: samples are so small that Python and collating cost more than the data.
    When it does not: samples are files, or computed one by one; then ``dataset[indices]`` fails or gives
        something else, and it is not applied.
    What it costs: nothing. It is proven on real samples that both ways give the same batch to the bit.
    Source: https://docs.pytorch.org/docs/stable/data.html (``__getitems__``)
    """

    name = "batch_fetch"
    title = "whole batches by one index"
    stages = frozenset({"preparation", "collate"})
    risk = Risk.EXACT
    example = Example({"index": "tensor"}, inspected={"index": "tensor", "ratio": 0.2})

    def applies(self, case: Case) -> Applies:
        refused = no_whole_batches(case)
        if refused:
            return refused
        found = case.inspected(self.name)
        if "index" not in found:
            return Applies.no(found.get("reason") or "the dataset does not take many indices at once")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        ratio = case.inspected(self.name).get("ratio")
        if ratio is None:
            return None
        if not self.companions(case, setting):
            return tried_gain(case, ratio, ("preparation", "collate"))
        left = {name: seconds_of(case, name) * ratio for name in ("preparation", "collate")}
        estimate = gain(case, left, workers=0)
        return None if estimate is None else estimate.as_kind("tried")

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """No workers: one index takes less than handing a batch over."""
        return without_workers(case)

    def settings(self, case: Case) -> list[Setting]:
        return [{"index": case.inspected(self.name).get("index", "tensor")}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(Wrap(f"{PREPARED}:IndexedBatches", (("index", setting["index"]),))).with_loader(
            collate_fn=collate_whole
        )

    def recipe(self, setting: Setting) -> Recipe:
        line = {"tensor": "torch.as_tensor(indices)", "array": "np.asarray(indices)", "list": "list(indices)"}
        code = (
            "class Batches(MyDataset):\n    def __getitems__(self, indices):\n"
            f"        return self[{line[setting['index']]}]\n"
            "DataLoader(Batches(...), collate_fn=lambda batch: batch, ...)"
        )
        note = {"_note": "give the dataset __getitems__(indices) that returns the whole batch, and collate_fn=identity"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)

    def inspect(self, live: Any) -> Setting:
        """Which kind of index gives the same batches to the bit, and how the seconds compare."""
        dataset = dataset_of(live.workload)
        found = probe(dataset)
        if "index" in found:
            found["ratio"] = seconds_ratio(dataset, found["index"], live.training.loader.batch_size or SIZE)
        return found


def fetched(dataset: Any, indices: list[int], index: str) -> Any:
    """A batch read in one operation."""
    from autoopt_strategies.input.prepared import IndexedBatches

    return IndexedBatches(dataset, index).__getitems__(indices).batch


def probe(dataset: Any) -> Setting:
    """``{"index": kind}``, the kind of index that gives the same batches, or ``{"reason": why there is none}``."""
    import random

    from torch.utils.data import default_collate

    try:
        count = len(dataset)
    except TypeError:
        return {"reason": "the dataset has no length"}
    drawn = random.Random(0)
    groups = [[0, count - 1], *([drawn.randrange(count) for _ in range(min(SIZE, count))] for _ in range(CHECKED))]
    try:
        expected = [default_collate([dataset[i] for i in group]) for group in groups]
    except Exception as error:
        return {"reason": f"samples cannot be collated by torch's default: {type(error).__name__}"}
    for kind in KINDS:
        try:
            if not all(
                equal(fetched(dataset, group, kind), batch) for group, batch in zip(groups, expected, strict=True)
            ):
                continue
        except Exception:  # the dataset takes one index at a time
            continue
        return {"index": kind}
    return {"reason": "the dataset gives something else for many indices at once than for each of them"}


def seconds_ratio(dataset: Any, kind: str, size: int, turns: int = 15) -> float:
    """Seconds of a batch by one index over those sample by sample, collated: the median over turns."""
    import random
    import statistics
    from time import perf_counter

    from torch.utils.data import default_collate

    from autoopt_strategies.input.prepared import IndexedBatches

    many, indexed = getattr(dataset, "__getitems__", None), IndexedBatches(dataset, kind)
    drawn, count, ratios = random.Random(1), len(dataset), []
    for _ in range(turns + 1):
        group = [drawn.randrange(count) for _ in range(size)]
        began = perf_counter()
        default_collate(many(group) if many else [dataset[i] for i in group])
        middle = perf_counter()
        indexed.__getitems__(group)
        ratios.append((perf_counter() - middle) / (middle - began))
    return min(1.0, statistics.median(ratios[1:]))


def no_whole_batches(case: Case) -> Applies | None:
    """Why batches cannot come out of the dataset whole; None where they can."""
    facts = case.workload
    if not facts.dataset.map_style:
        return Applies.no(f"{facts.dataset.type} is an IterableDataset, which is not indexed")
    if facts.loader.custom_collate:
        return Applies.no("the loader collates in a way of its own")
    if not facts.batch_size:
        return Applies.no("the loader does not batch")
    if facts.dataset.has_getitems and facts.dataset.type not in ("Subset", "TensorDataset"):
        return Applies.no("the dataset fetches whole batches already")
    return None
