"""Page-locked batches: the copy to the device is faster and does not hold the training process up."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, at_most, gain, seconds_of


class PinMemory(Strategy):
    """Batches in page-locked memory, copied to the device without waiting for the copy.

    No run and no benchmark has kept it so far.

    What it does: ``pin_memory=True`` in the DataLoader and ``non_blocking=True`` in the copy.
    When it helps: batches are large, and the copy to a CUDA device is seen in the step.
    When it does not: on the CPU there is no copy; small batches take longer to pin than to copy.
    What it costs: memory that the system cannot swap out, and a thread in the training process.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """

    name = "pin_memory"
    title = "pinned memory, copies that do not block"
    stages = frozenset({"pin", "copy"})
    risk = Risk.EXACT
    example = Example({"pin_memory": False, "non_blocking": True}, device="cuda:0")

    def applies(self, case: Case) -> Applies:
        if case.device == "cpu":
            return Applies.no("batches stay on the CPU: there is no copy to a device")
        if case.device != "cuda":
            return Applies.no(f"page-locked memory speeds up copies to CUDA devices, not to {case.device}")
        if not case.workload.batch_bytes:
            return Applies.no("batches hold no tensors that could be pinned")
        if case.workload.unpinned:
            return Applies.no(f"the loader does not pin what a {case.workload.unpinned} holds: it has no pin_memory()")
        if case.loader_option("pin_memory") and case.setup.transfer.non_blocking:
            return Applies.no("batches are pinned and copied without blocking already")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        peaks = case.environment.peaks
        pageable = peaks.copy_pageable_to_device_bytes_per_second
        pinned = peaks.copy_pinned_to_device_bytes_per_second
        if not pageable or not pinned:
            return None
        return at_most(gain(case, {"copy": seconds_of(case, "copy") * min(1.0, pageable / pinned)}))

    def settings(self, case: Case) -> list[Setting]:
        return [{"pin_memory": True, "non_blocking": True}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_loader(pin_memory=setting["pin_memory"]).with_transfer(non_blocking=setting["non_blocking"])

    def recipe(self, setting: Setting) -> Recipe:
        return Recipe(
            pytorch="DataLoader(..., pin_memory=True)\nbatch = batch.to(device, non_blocking=True)",
            lightning={"_note": "DataLoader(..., pin_memory=True); Lightning copies pinned batches without blocking"},
            transformers={"dataloader_pin_memory": True},
            accelerate={"dataloader_config": {"non_blocking": True}, "_note": "and DataLoader(..., pin_memory=True)"},
        )
