"""Torch format: a Hugging Face dataset gives tensors straight from its Arrow table."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, tried_gain
from autoopt_strategies.input.batches import dataset_of, equal

BATCHES, SIZE = 4, 32


def as_tensors(dataset: Any) -> Any:
    """The dataset in the torch format, where it has formats; any other as it is."""
    return dataset.with_format("torch") if _formats(dataset) else dataset


def _formats(dataset: Any) -> bool:
    return type(dataset).__module__.split(".")[0] == "datasets" and hasattr(dataset, "with_format")


class TorchFormat(Strategy):
    """Reads a Hugging Face dataset in the torch format rather than as Python lists.

    What it does: ``dataset.with_format("torch")``.
    When it helps: columns of token ids or arrays, which are otherwise made into Python lists number by number, and
        into tensors again when they are collated.
    When it does not: text columns; images, which are decoded either way.
    What it costs: nothing. It is proven on real samples that batches are the same to the bit.
    Source: https://huggingface.co/docs/datasets/use_with_pytorch
    """

    name = "torch_format"
    title = "dataset in the torch format"
    stages = frozenset({"storage", "preparation", "collate"})
    risk = Risk.EXACT
    example = Example(inspected={"ratio": 0.1})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if "ratio" not in found:
            return Applies.no(found.get("reason") or "the dataset is none of Hugging Face's")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        ratio = case.inspected(self.name).get("ratio")
        return None if ratio is None else tried_gain(case, ratio, ("preparation", "collate"))

    def settings(self, case: Case) -> list[Setting]:
        return [{}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(as_tensors)

    def recipe(self, setting: Setting) -> Recipe:
        code = 'dataset = dataset.with_format("torch")'
        note = {"_note": code}
        edits = (Edit("dataset", ('{dataset}.with_format("torch")',)),)
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note, edits=edits)

    def inspect(self, live: Any) -> Setting:
        """Whether batches are the same in the torch format, and how the seconds compare."""
        return probe(dataset_of(live.workload), live.training.loader.loader.collate_fn)


def probe(dataset: Any, collate: Any) -> Setting:
    """``{"ratio": seconds in the torch format over seconds now}``, or ``{"reason": why not}``."""
    import statistics
    from time import perf_counter

    if not _formats(dataset):
        return {"reason": f"{type(dataset).__name__} is no dataset of Hugging Face's"}
    if dataset.format["type"] is not None:
        return {"reason": f"the dataset has the format {dataset.format['type']!r} already"}
    other, ratios = as_tensors(dataset), []
    for number in range(BATCHES):
        indices = [(number * SIZE + i) % len(dataset) for i in range(SIZE)]
        began = perf_counter()
        usual = collate([dataset[i] for i in indices])
        middle = perf_counter()
        try:
            changed = collate([other[i] for i in indices])
        except Exception as error:  # a collate function that wants lists
            return {"reason": f"samples in the torch format cannot be collated: {type(error).__name__}: {error}"}
        ratios.append((perf_counter() - middle) / (middle - began))
        if not equal(usual, changed):
            return {"reason": "the torch format gives other batches: the collate function takes lists apart"}
    return {"ratio": min(1.0, statistics.median(ratios))}
