"""Page-locked batches, which are copied to the device without waiting, and ahead of the step that needs them."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import at_most, gain, ranged, seconds_of
from autoopt_strategies.trying import Setting, Settings, while_kept


class PinMemory(Strategy):
    """Batches in page-locked memory, copied to the device without waiting for the copy, or ahead on a side stream.

    No run and no benchmark has kept it so far.

    What it does: ``pin_memory=True`` in the DataLoader and ``non_blocking=True`` in the copy; ``prefetch`` keeps one or
        two batches on the device before they are needed.
    When it helps: batches are large, and the copy to a CUDA device is seen in the step.
    When it does not: on the CPU there is no copy; small batches take longer to pin than to copy; a loader that is slow.
    What it costs: memory that the system cannot swap out, and a thread in the training process; on the device, the
        memory of the batches ahead.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html;
        https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
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
        facts = case.workload
        if not facts.batch_bytes:
            return Applies.no("batches hold no tensors that could be pinned")
        stays = _stays(case)
        if facts.unpinned and stays:
            pins = f"the loader does not pin what a {facts.unpinned} holds: it has no pin_memory()"
            return Applies.no(f"{pins}; none is copied ahead: {stays}")
        if not stays or not _pinned(case):
            return Applies.yes()
        return Applies.no("batches are pinned and copied without blocking already")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """What pinning saves, and at most what copying ahead leaves of it, which is tried after it."""
        ahead = at_most(gain(case, {"copy": 0.0}))
        if ahead is None or setting.get("prefetch"):
            return ahead
        peaks = case.environment.peaks
        pageable = peaks.copy_pageable_to_device_bytes_per_second
        pinned = peaks.copy_pinned_to_device_bytes_per_second
        if not pageable or not pinned:
            return None
        found = at_most(gain(case, {"copy": seconds_of(case, "copy") * min(1.0, pageable / pinned)}))
        return found if found is None or _stays(case) else ranged(found, found.value, found.low, ahead.high)

    def settings(self, case: Case) -> Settings:
        """A copy from pageable memory waits, whatever its stream: batches that are copied ahead are pinned as well."""
        facts = case.workload
        pinned = {"non_blocking": True} | ({} if facts.unpinned else {"pin_memory": True})
        if not facts.unpinned and not _pinned(case):
            yield pinned
        if not _stays(case):
            yield from while_kept({**pinned, "prefetch": ahead} for ahead in (1, 2))

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        if "pin_memory" in setting:
            setup = setup.with_loader(pin_memory=setting["pin_memory"])
        return setup.with_transfer(non_blocking=setting["non_blocking"], prefetch=setting.get("prefetch"))

    def recipe(self, setting: Setting) -> Recipe:
        if setting.get("prefetch"):
            return Recipe(
                pytorch="side = torch.cuda.Stream()  # of batches from DataLoader(..., pin_memory=True)\n"
                "with torch.cuda.stream(side):\n    ahead = next(batches).to(device, non_blocking=True)\n"
                "torch.cuda.current_stream().wait_stream(side)"
            )
        return Recipe(
            pytorch="DataLoader(..., pin_memory=True)\nbatch = batch.to(device, non_blocking=True)",
            lightning={"_note": "DataLoader(..., pin_memory=True); Lightning copies pinned batches without blocking"},
            transformers={"dataloader_pin_memory": True},
            accelerate={"dataloader_config": {"non_blocking": True}, "_note": "and DataLoader(..., pin_memory=True)"},
        )


def _pinned(case: Case) -> bool:
    return bool(case.loader_option("pin_memory") and case.setup.transfer.non_blocking)


def _stays(case: Case) -> str:
    """Why batches cannot be copied ahead; empty where they can."""
    if case.sites is not None:
        return "batches are moved by the script's own lines"
    unmoved = case.workload.unmoved
    return f"a {unmoved} of the batch has no to(device)" if unmoved else ""
