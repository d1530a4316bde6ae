"""The whole dataset on the device: a batch is one indexing operation, nothing is copied."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.common import Setting, after_paying, gain, seconds_of
from autoopt_strategies.input.batch_fetch import no_whole_batches
from autoopt_strategies.input.batches import collate_whole
from autoopt_strategies.input.cache import PREPARED

SHARE = 0.25
"""Share of the device memory, or of the free memory where the CPU is the device, that the data may take."""


class DeviceDataset(Strategy):
    """Keeps a small dataset on the device as one batch and takes rows of it.

    What it does: collates all samples once; each batch is one ``index_select``. No workers, no copies.
    When it helps: small samples that are the same every time, and a small model: the input side's Python,
        collating and copies are what the step waits for. On the CPU too.
    When it does not: samples are random, or differ in shape; data larger than a quarter of the memory.
    What it costs: memory on the device, and one reading of the dataset before the first step.
    Source: Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024, section 2
    """

    name = "device_dataset"
    title = "whole dataset on the device"
    stages = frozenset({"storage", "preparation", "collate", "pin", "copy"})
    risk = Risk.EXACT
    after = frozenset({"workers", "batch_fetch", "cache"})
    excludes = frozenset(
        {"workers", "worker_threads", "batch_fetch", "cache", "memory_map", "threaded_loading", "pin_memory",
         "device_prefetch", "reduced_decoding", "turbo_decoding", "torch_format", "ram_disk"}
    )  # fmt: skip
    example = Example({"device": "cpu"})

    def applies(self, case: Case) -> Applies:
        facts = case.workload
        refused = no_whole_batches(case)
        if refused:
            return refused
        if facts.dataset.deterministic is not True:
            return Applies.no("samples are random, or not known to be the same every time")
        if not facts.batch_bytes:
            return Applies.no("batches hold no tensors")
        if facts.beside_tensors:
            return Applies.no(f"batches hold more than tensors, which cannot be put into one ({facts.beside_tensors})")
        if facts.static_shapes is False:
            return Applies.no("samples differ in shape, so that they do not fit into one tensor")
        size = (facts.dataset.sample_bytes or facts.batch_bytes // (facts.batch_size or 1)) * (facts.train_samples or 0)
        room = facts.available_ram_bytes if case.device == "cpu" else case.environment.device_memory_bytes
        if not size or not room:
            return Applies.no("the size of the data, or of the memory, is not known")
        if size > SHARE * room:
            return Applies.no(f"the data takes {size / 1e9:.1f} GB, more than a quarter of {room / 1e9:.1f} GB")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """The input side shrinks to rows copied at memory speed and one launch for each tensor."""
        peaks = case.environment.peaks
        if case.pipeline is None or not peaks.memory_bytes_per_second:
            return None
        rows = 2 * case.workload.batch_bytes / peaks.memory_bytes_per_second
        rows += (peaks.launch_seconds or 0.0) * (2 * len(case.workload.batch) + 4)
        changed = dict.fromkeys(("storage", "preparation", "pin", "copy"), 0.0) | {"collate": rows}
        return after_paying(case, gain(case, changed, workers=0), self.once_seconds(case, setting) or 0.0)

    def once_seconds(self, case: Case, setting: Setting) -> float | None:
        """All samples prepared once; unknown before their stages were measured."""
        if case.pipeline is None:
            return None
        work = sum(seconds_of(case, name) for name in ("storage", "preparation", "collate"))
        return work * (case.workload.train_samples or 0) / (case.workload.batch_size or 1)

    def settings(self, case: Case) -> list[Setting]:
        return [{"device": case.environment.device}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        options = () if setting["device"] == "cpu" else (("device", setting["device"]),)
        with_data = setup.with_dataset(Wrap(f"{PREPARED}:Rows", options))
        # Its tensors must not be handed from process to process, nor pinned.
        return with_data.with_loader(collate_fn=collate_whole, num_workers=0, pin_memory=False)

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            f'images, labels = (torch.stack(column).to("{setting["device"]}") for column in zip(*dataset))\n'
            "for index in torch.randperm(len(images), device=images.device).split(batch_size):\n"
            "    batch = images[index], labels[index]"
        )
        note = {"_note": "replace the DataLoader by rows of tensors that stay on the device"}
        return Recipe(pytorch=code, lightning=note, transformers=None, accelerate=note)
