"""Trim padding: batches are as wide as their longest sequence, not as the longest that there may be."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.input.batches import dataset_of
from autoopt_strategies.input.probes import spread
from autoopt_strategies.input.sequences import Trimmed, cut, narrowed, needed
from autoopt_strategies.predictions import LEAST_SAVING, compute_gain, declared, tried_gain
from autoopt_strategies.trying import SAME, Setting, Settings, kept

BATCHES = 8
BUCKETS = 4
"""Widths that a batch may have where each one is compiled or recorded."""


class TrimPadding(Strategy):
    """Cuts off the columns of a batch that are padding in every row.

    What it does: wraps the collate function: tensors of a batch lose the columns beyond its longest sequence, known
        from ``attention_mask`` or by the number with which all rows of ids end; widths are rounded up to a multiple.
        Evaluations of a script that make their batches alike get it, too.
    When it helps: sequences padded to a fixed maximum, which few of them reach.
    When it does not: batches that are padded to their longest already; packed sequences; padding at the left.
    What it costs: batches of different widths: with compilation or CUDA graphs a few widths are used, so that each is
        compiled once. It is verified on real batches that the loss is the same.
    Source: https://huggingface.co/docs/transformers/pad_truncation; Hugging Face course, "dynamic padding"
    """

    name = "trim_padding"
    title = "batches as wide as their longest sequence"
    stages = frozenset({"copy", "forward", "backward"})
    risk = Risk.NUMERIC
    example = Example({"multiple": 8}, inspected={"widths": [128, 128], "needed": [40, 64], "same": True, "ratio": 0.5})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if "widths" not in found:
            return Applies.no(found.get("reason") or "whether batches hold sequences is not known")
        if found.get("same") is False:
            return Applies.no("the model computes with the padding: without it the loss is another")
        if left_of(found) > 1.0 - LEAST_SAVING:
            return Applies.no("batches are as wide as their longest sequence already")
        kept = case.plan.setting("prepared_samples") or {}
        if kept.get("form") == "rows" or case.plan.setting("cuda_graphs") is not None:
            return Applies.no("batches of one width are on the device, or part of a recorded step")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """As it was tried on a batch; else by the columns that are left."""
        found = case.inspected(self.name)
        if "widths" not in found:
            return None
        share = left_of(found, setting["multiple"])
        ratio, tried = found.get("ratio"), left_of(found)
        if ratio is None:
            return declared(compute_gain(case, share))
        # what a batch costs next to its columns stays: it was tried with as many as are left without rounding up
        return tried_gain(case, max(0.05, 1.0 - (1.0 - ratio) * (1.0 - share) / (1.0 - tried)))

    def settings(self, case: Case) -> Settings:
        width = max(case.inspected(self.name)["widths"])
        few = max(8, -(-width // BUCKETS // 8) * 8)
        shapes_cost = case.setup.compile is not None and not case.setup.compile.dynamic
        if shapes_cost:
            yield {"multiple": few}
            return
        if not kept((yield {"multiple": 8})) and few != 8:
            yield {"multiple": few}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_collate(replace(Wrap.of(Trimmed, multiple=setting["multiple"]), evaluation=True))

    def recipe(self, setting: Setting) -> Recipe:
        multiple = setting["multiple"]
        code = (
            f"longest = -(-int(batch['attention_mask'].sum(1).max()) // {multiple}) * {multiple}  # in collate_fn\n"
            "batch = {name: tensor[:, :longest] for name, tensor in batch.items()}"
        )
        return Recipe.noted(
            code, f"pad each batch to its longest sequence: DataCollatorWithPadding(pad_to_multiple_of={multiple})"
        )

    def inspect(self, live: Any) -> Setting:
        """Widths of a few batches, whether the loss is the same without the padding, and how the seconds compare."""
        import torch

        loader, dataset = live.training.loader.loader, dataset_of(live.workload)
        if not spread(dataset):
            return {"reason": "samples are not read by their index"}
        size, pairs = getattr(loader.batch_sampler, "batch_size", None) or 1, []
        for number in range(min(BATCHES, max(1, len(dataset) // size))):
            samples = [dataset[(number * size * 7 + i) % len(dataset)] for i in range(size)]
            seen = needed(loader.collate_fn(samples))
            if seen is None:
                return {"reason": "batches hold neither an attention mask nor rows of ids"}
            pairs.append(seen)
        found: Setting = {"widths": [width for _, width in pairs], "needed": [real for real, _ in pairs]}
        left = left_of(found)
        if left > 1.0 - LEAST_SAVING:
            return found
        training, same = live.training, list[bool | None]()

        def average(batch: Any) -> Any:  # without as many columns as batches have too many
            seen = needed(batch)
            return batch if seen is None else narrowed(batch, seen[1], max(1, round(left * seen[1])))

        def narrow(batch: Any) -> Any:
            model = copy.deepcopy(training.model).eval()  # dropout would draw other numbers for another width
            with torch.no_grad():
                one, other = (float(training.loss(model, each)) for each in (batch, training.rebatched(batch, cut)))
            close = abs(one - other) <= SAME * max(abs(one), 1e-9)
            # what a script's model gives is not its loss, which may leave out what padding gives: probes tell that
            same.append(close or (False if training.takes_batches else None))
            return training.rebatched(batch, average)

        ratio = live.ratio_with(rebatch=narrow)
        return {**found, "same": same[0] if same else None, "ratio": ratio}


def left_of(found: Setting, multiple: int = 1) -> float:
    """Columns that are left of a few batches, over those that they have."""
    pairs = zip(found["needed"], found["widths"], strict=True)
    return float(sum(min(width, -(-real // multiple) * multiple) for real, width in pairs) / sum(found["widths"]))
