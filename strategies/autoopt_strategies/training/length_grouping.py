"""Length grouping: sequences of about the same length meet in a batch."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from autoopt import Applies, Case, Change, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.input.batches import dataset_of
from autoopt_strategies.input.probes import spread
from autoopt_strategies.input.sequences import GroupByLength, Grouped, needed, padded, size_of, tensors
from autoopt_strategies.predictions import LEAST_SAVING, after_paying, at_most, compute_gain, declared
from autoopt_strategies.trying import Setting, Settings, while_kept

SAMPLES, SECONDS = 2048, 2.0
POOLS = (50, 200)
GROUPING = "autoopt_strategies.input.sequences:group_by_length"
"""What a script's patch puts its loader through."""


class LengthGrouping(Strategy):
    """Makes batches of sequences that are about as long, so that little of them is padding.

    What it does: sorts the samples of every so many batches by length, and shuffles the batches as before; each
        sample is still read once an epoch, and no random number more is drawn.
    When it helps: sequences of very different lengths in batches that are padded to their longest.
    When it does not: sequences of one length; batches of one sample; losses that compare the samples of a batch.
    What it costs: every sample is read once before training, to learn its length, which is charged. Batches are less
        random, so that time to the target decides, with more than one seed.
    Source: https://huggingface.co/docs/transformers/main_classes/trainer (group_by_length);
        Khomenko et al., "Accelerating recurrent neural network training using sequence bucketing", 2016
    """

    name = "length_grouping"
    title = "batches of about the same length"
    stages = frozenset({"copy", "forward", "backward"})
    risk = Risk.TRAINING
    example = Example(
        {"pool": 50},
        inspected={"now": 0.4, "grouped": {"50": 0.08}, "sample_seconds": 1e-5, "follows": True},
        losses=None,
    )

    def applies(self, case: Case) -> Applies:
        facts, found = case.workload, case.inspected(self.name)
        if not facts.dataset.map_style or facts.loader.custom_batch_sampler:
            return Applies.no("the order of samples is not the loader's to change")
        if facts.loader.shuffle is False:
            return Applies.no("samples come in an order of your own, which is kept")
        if "now" not in found:
            return Applies.no(found.get("reason") or "how long samples are is not known")
        trimmed = case.inspected("trim_padding")
        same = trimmed.get("same", "widths" in trimmed)  # None: what it computes cannot be compared, and probes tell
        if not found["follows"] and same is False:
            return Applies.no("batches have one width, whatever the lengths of their samples")
        saving = 1.0 - self._left(found, POOLS[0])
        if saving < LEAST_SAVING:
            return Applies.no(f"grouping would save {saving:.1%} of what batches hold")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At the very best the step takes as much less as its batches hold less padding."""
        found = case.inspected(self.name)
        if "now" not in found:
            return None
        best = declared(at_most(compute_gain(case, self._left(found, setting["pool"]))))
        return after_paying(case, best, found["sample_seconds"] * (case.workload.dataset.samples or 0))

    def settings(self, case: Case) -> Settings:
        return while_kept({"pool": pool} for pool in POOLS)

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        if case.inspected(self.name).get("follows", True) or case.plan.setting("trim_padding") is not None:
            return []
        return [Change(strategy="trim_padding", setting={"multiple": 8})]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_sampler(GroupByLength(setting["pool"]))

    def recipe(self, setting: Setting) -> Recipe:
        pool = setting["pool"]
        code = (
            f"sampler = LengthGroupedSampler(batch_size, lengths, mega_batch_mult={pool})"
            "  # transformers.trainer_pt_utils"
        )
        edits = (Edit("loader_made", (f"group_by_length({{loader}}, pool={pool})",), parts=(GROUPING,)),)
        note = f"a sampler that sorts every {pool} batches by length"
        return Recipe.noted(code, note, edits, transformers={"group_by_length": True})

    def inspect(self, live: Any) -> Setting:
        """Share of padding now and in groups, by the lengths of some samples; whether batches follow their lengths."""
        loader, dataset = live.training.loader.loader, dataset_of(live.workload)
        if not spread(dataset):
            return {"reason": "samples are not read by their index"}
        size = getattr(loader.batch_sampler, "batch_size", None) or 1
        if size < 2:
            return {"reason": "each batch holds one sample"}
        samples: list[tuple[int, int]] = []
        began = perf_counter()
        for place in range(min(SAMPLES, len(dataset))):
            index = place * 7919 % len(dataset)
            samples.append((size_of(dataset[index]), index))
            of_one_length = len(samples) == 2 * size and len({length for length, _ in samples}) == 1
            if of_one_length or perf_counter() - began > SECONDS:
                break
        seconds = (perf_counter() - began) / len(samples)
        shares = padding_shares([length for length, _ in samples], size)
        if shares is None:
            return {"reason": "samples are all of one length"}
        ordered = sorted(samples)
        short, long = ([dataset[index] for _, index in part] for part in (ordered[:size], ordered[-size:]))
        follows = _width(loader.collate_fn(short)) != _width(loader.collate_fn(long))
        return {**shares, "sample_seconds": seconds, "follows": follows}

    def _left(self, found: Setting, pool: int) -> float:
        """Padded elements of batches in groups, over those of batches now."""
        grouped: float = found["grouped"].get(str(pool), min(found["grouped"].values()))
        return float((1.0 - found["now"]) / (1.0 - grouped))


def padding_shares(lengths: list[int], size: int) -> Setting | None:
    """``{"now": share of padding in the order of the list, "grouped": share by pool}``; None where all are as long."""
    whole = sum(lengths)
    if min(lengths) == max(lengths) or len(lengths) < 2 * size:
        return None
    grouped = {}
    for pool in POOLS:
        order = Grouped(range(len(lengths)), tuple(lengths), size, pool)
        grouped[str(pool)] = 1.0 - whole / padded([lengths[place] for place in order], size)
    return {"now": 1.0 - whole / padded(lengths, size), "grouped": grouped}


def _width(batch: Any) -> Any:
    """The width of a batch's sequences, or all shapes where it has none."""
    found = needed(batch)
    return found[1] if found is not None else [tuple(tensor.shape) for _, tensor in tensors(batch)]
