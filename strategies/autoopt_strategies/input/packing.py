"""Packing: the sequences of a batch laid end to end in fewer rows, each attending to itself alone."""

from __future__ import annotations

import copy
import functools
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.compute.rewriting.source import Refused, with_method
from autoopt_strategies.predictions import tried_gain
from autoopt_strategies.trying import CLOSE, Setting, first_line

LEAST_SAVING = 0.1
"""Of a batch's places: a mask that is no plain causal one costs more than the operator's own."""
NEEDED = ("input_ids", "attention_mask", "labels")
IGNORED = -100
"""The label that transformers' losses leave out."""


def pack_sequences(model: Any, multiple: int = 8) -> Any:
    """The model, in place, that packs the sequences of the batches that it trains on.

    Args:
        multiple: of which the rows' width is one.
    """
    plain = type(model).forward

    @functools.wraps(plain)  # a trainer reads its signature
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training and not args and packable(kwargs):
            # A cache of keys and values would make the library take the positions for those of one long sequence.
            others = {name: value for name, value in kwargs.items() if name not in NEEDED}
            kwargs = {**others, **packed(kwargs, multiple), "use_cache": False}
        return plain(self, *args, **kwargs)

    model.__class__ = with_method(type(model), "forward", forward)
    return model


def packable(batch: Any) -> bool:
    """Whether a batch is ids, mask and labels of one shape, and says nothing of positions itself."""
    if not hasattr(batch, "keys") or any(batch.get(name) is None for name in NEEDED):
        return False
    if any(batch.get(name) is not None for name in ("position_ids", "token_type_ids", "inputs_embeds")):
        return False
    shape = batch["input_ids"].shape
    return len(shape) == 2 and all(batch[name].shape == shape for name in NEEDED)


def packed(batch: Any, multiple: int) -> dict[str, Any]:
    """Ids, labels and positions of the real places of a batch, in rows as wide as its longest sequence.

    Positions begin anew with each sequence, which shows transformers where one ends. The first of each predicts
    nothing. What is left of a row is a sequence of its own, of which no label counts.
    """
    import torch

    ids, real = batch["input_ids"], batch["attention_mask"] != 0
    counts = real.sum(1)
    lengths, starts = counts.tolist(), (counts.cumsum(0) - counts).tolist()
    width = -(-max(lengths) // multiple) * multiple
    rows = placed(lengths, width)
    source = torch.full((len(rows), width), -1)
    positions = torch.zeros(len(rows), width, dtype=torch.long)
    for row, members in enumerate(rows):
        place = 0
        for member in members:
            length = lengths[member]
            source[row, place : place + length] = starts[member] + torch.arange(length)
            positions[row, place : place + length] = torch.arange(length)
            place += length
        positions[row, place:] = torch.arange(width - place)
    source, positions = source.to(ids.device), positions.to(ids.device)
    taken = source.clamp(min=0)
    labels = batch["labels"][real][taken].masked_fill((source < 0) | (positions == 0), IGNORED)
    return {"input_ids": ids[real][taken], "labels": labels, "position_ids": positions}


def placed(lengths: list[int], width: int) -> list[list[int]]:
    """Which sequences share a row: the longest first, each in the first row that has room for it."""
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        if not lengths[number]:
            continue
        row = next((row for row, left in enumerate(room) if left >= lengths[number]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(width)
        rows[row].append(number)
        room[row] -= lengths[number]
    return rows


class Packing(Strategy):
    """Packs the sequences of a batch into fewer rows, instead of padding each to the longest.

    What it does: a hook on models of transformers lays the real tokens of ``input_ids`` and ``labels`` end to end, in
        rows as wide as the longest sequence, and gives ``position_ids`` that begin anew with each: the library then
        masks attention so that each sequence sees itself alone. The samples of a step stay what they are.
    When it helps: fine-tuning on texts of very different lengths, where half of each batch is padding.
    When it does not: texts that are cut to one length already; models that compute positions or masks otherwise; one
        sample in a batch.
    What it costs: a mask of blocks where the operator's own causal one did. It is verified on a real batch that loss
        and gradients are the same.
    Source: Krell et al., "Efficient sequence packing without cross-contamination", 2021;
        https://huggingface.co/docs/transformers (``DataCollatorWithFlattening``)
    """

    name = "packing"
    title = "sequences packed into rows"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    excludes = frozenset({"trim_padding", "length_grouping"})
    example = Example({"multiple": 8}, inspected={"left": 0.5, "same": True, "ratio": 0.6})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if "left" not in found:
            return Applies.no(found.get("reason") or "whether batches hold padded sequences is not known")
        if found["left"] > 1.0 - LEAST_SAVING:
            return Applies.no(f"packed, a batch still has {found['left']:.0%} of its places")
        if not found.get("same"):
            return Applies.no(found.get("reason") or "loss and gradients are others when sequences are packed")
        if case.setup.compile is not None or case.plan.setting("cuda_graphs") is not None:
            return Applies.no("rows of another number in each step would be compiled or recorded again")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        return tried_gain(case, case.inspected(self.name).get("ratio"))

    def settings(self, case: Case) -> list[Setting]:
        return [{"multiple": 8}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_model(Wrap.of(pack_sequences, multiple=setting["multiple"]))

    def recipe(self, setting: Setting) -> Recipe:
        code = "DataLoader(..., collate_fn=DataCollatorWithFlattening())  # transformers: one row, positions begin anew"
        note = "pack sequences: transformers.DataCollatorWithFlattening(), samples without padding"
        return Recipe.noted(code, note)

    def inspect(self, live: Any) -> Setting:
        """Places that are left of a batch, whether loss and gradients are the same, and how the seconds compare."""
        from autoopt_strategies.compute.rewriting.survey import check, gradients

        model = live.training.model
        if not any(kind.__name__ == "PreTrainedModel" for kind in type(model).__mro__):
            return {"reason": "the model is none of transformers'"}
        batch = live.training.next()[0]
        if not packable(batch):
            return {"reason": "batches are no padded input_ids with attention_mask and labels"}
        left = packed(batch, 8)["input_ids"].numel() / batch["input_ids"].numel()
        if left > 1.0 - LEAST_SAVING:
            return {"left": left}
        try:
            expected = gradients(model, live.training.loss, batch)
            packed_ones = gradients(pack_sequences(copy.deepcopy(model).train()), live.training.loss, batch)
            check(expected, packed_ones, "loss and gradients", share=CLOSE)
        except Refused:
            return {"left": left, "same": False}
        except Exception as error:  # a model that has no use for positions, or a loss of its own
            return {"left": left, "same": False, "reason": f"packed, the model fails: {first_line(error)}"}
        return {"left": left, "same": True, "ratio": live.ratio_with(pack_sequences)}
