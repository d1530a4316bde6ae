"""Accumulation: the same effective batch in fewer large pieces, or in more small ones that fit."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.input.batches import leaves
from autoopt_strategies.predictions import COMPUTE, batch_now, gain, issued, memory_used, per_sample, seconds_of
from autoopt_strategies.trying import Setting, Settings, kept

FULL = 0.85
"""Share of the device memory from which on smaller pieces are worth a try."""
HALVING_COST = 0.05
"""Share of a step that halving the pieces is expected to cost: a guess, by which what does not fit is tried."""
MOST_PIECES = 64
"""Of a batch that does not fit: more of them save less than a 64th of what its activations take."""
PART = "autoopt_strategies.training.accumulation:pieces"


def pieces(count: int, *batch: Any) -> Iterator[tuple[Any, ...]]:
    """A batch in so many pieces: of each its share of the samples, and its part of every argument.

    Tensors and lists of one entry a sample are cut; what else is given is in each piece as it is.
    """
    import torch

    def lengths(value: Any) -> list[int]:
        return [len(leaf) for leaf in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.dim()]

    samples = lengths(batch)[0]
    size = -(-samples // count)

    def cut(value: Any, start: int) -> Any:
        if isinstance(value, dict):
            return {key: cut(part, start) for key, part in value.items()}
        if isinstance(value, (list, tuple)) and lengths(value):
            return [cut(part, start) for part in value]
        return value[start : start + size] if hasattr(value, "__len__") and len(value) == samples else value

    for start in range(0, samples, size):
        yield (min(size, samples - start) / samples, *(cut(value, start) for value in batch))


class Accumulation(Strategy):
    """Splits the batch of an optimizer step into other micro-batches; the gradient stays the same.

    What it does: sets the micro-batch and how many of them make a step; their product does not change. Of a script it
        changes the numbers where they are made, if its loss is a mean and the batches of an epoch divide evenly.
    When it helps: larger pieces where several small ones leave the device idle; smaller ones where the
        whole does not fit, or leaves the caches.
    When it does not: a batch that fits and keeps the device busy.
    What it costs: smaller pieces cost launches, larger ones memory. The training is the same but for rounding; dropout
        draws other masks, and a mean over words weighs them otherwise, which gradients show. BatchNorm would see other
        statistics, so it is refused there. A loss that is logged after its division is of another scale.
    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    """

    name = "accumulation"
    title = "other micro-batches"
    stages = frozenset({"forward", "backward", "host"})
    risk = Risk.NUMERIC
    after = frozenset({"batch_size"})
    example = Example({"size": 8, "accumulation": 2}, facts={"accumulation": 4}, losses=1e-4)

    def applies(self, case: Case) -> Applies:
        impossible = _impossible(case)
        if impossible:
            return Applies.no(impossible)
        size, count = batch_now(case)
        used = memory_used(case)
        if _larger(case) or (size > 1 and (not case.fits or (used or 0.0) > FULL)):
            return Applies.yes()
        if count > 1:
            return Applies.no("an epoch's batches do not divide into larger ones: its last step would weigh otherwise")
        if size < 2:
            return Applies.no("a batch of one sample cannot be split")
        return Applies.no("the whole batch fits in one piece" + (f", with {used:.0%} of the memory" if used else ""))

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Larger pieces share what each piece pays once."""
        times = setting["size"] / batch_now(case)[0]
        factor = per_sample(case, times)
        if factor is None:
            return None
        changed = {name: seconds_of(case, name) * factor for name in COMPUTE}
        return gain(case, {**changed, **issued(case, passes=1 / times)})

    def settings(self, case: Case) -> Settings:
        for setting in _larger(case):
            if kept((yield setting)):
                return
        if (memory_used(case) or 0.0) > FULL:
            size, count = batch_now(case)
            while size % 2 == 0 and not kept((yield {"size": size // 2, "accumulation": 2 * count})):
                size, count = size // 2, 2 * count

    def memory_savings(self, case: Case) -> Iterator[tuple[float, Setting]]:
        """Ever smaller pieces; each halving launches the same kernels twice as often."""
        size, count = batch_now(case)
        if _impossible(case):
            return
        for pieces in (number for number in range(2, min(size, MOST_PIECES) + 1) if size % number == 0):
            yield HALVING_COST * log2(pieces), {"size": size // pieces, "accumulation": count * pieces}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_batch(size=setting["size"], accumulation=setting["accumulation"])

    def recipe(self, setting: Setting) -> Recipe:
        size, count = setting["size"], setting["accumulation"]
        return Recipe(
            pytorch=(
                f"batch_size = {size}\nfor batch in {count}_micro_batches:\n"
                f"    (loss(model, batch) / {count}).backward()\noptimizer.step()"
            ),
            lightning={"accumulate_grad_batches": count, "_note": f"DataLoader(..., batch_size={size})"},
            transformers={"per_device_train_batch_size": size, "gradient_accumulation_steps": count},
            accelerate={"gradient_accumulation_steps": count, "_note": f"DataLoader(..., batch_size={size})"},
            edits=(Edit("batch", arguments=dict(setting), parts=(PART,)),),
        )


def _impossible(case: Case) -> str:
    """Why the batch cannot be cut otherwise; empty where it can."""
    facts = case.workload
    if facts.loader.custom_batch_sampler:
        return "the loader's own batch sampler decides the batch"
    if not facts.batch_size:
        return "the batch size is not known: the loader does not batch"
    if facts.model.has_batchnorm:
        return "BatchNorm takes its statistics from the micro-batch, which must stay as it is"
    return ""


def _larger(case: Case) -> list[Setting]:
    """Larger pieces and fewer of them, the largest first.

    A script divides each loss by the number of batches in a whole step, also in a last one that has fewer: its epochs
    must end with the same steps in larger batches.
    """
    loader, (size, count) = case.workload.loader, batch_now(case)
    divisors = [times for times in range(count, 1, -1) if count % times == 0]
    if case.sites is not None and case.sites.of("loader_training"):
        batches, rest = divmod(loader.samples or 0, size)
        one_epoch = case.planned_steps and case.planned_steps * size * count <= (loader.samples or 0)
        if loader.samples is None or (rest and not loader.drop_last and not one_epoch):
            return []
        divisors = [times for times in divisors if one_epoch or batches % times == 0]
    return [{"size": size * times, "accumulation": count // times} for times in divisors]
