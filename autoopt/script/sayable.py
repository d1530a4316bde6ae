"""Which setups can be put on a script from outside; torch is not imported here."""

from __future__ import annotations

from autoopt.records import Sites
from autoopt.setup import Setup


def unsayable(setup: Setup, sites: Sites) -> str | None:
    """Why a setup cannot be put on a script from outside; None where it can.

    Args:
        setup: what a plan changes.
        sites: of the script.
    """
    loader = sites.of("loader_training")
    reads = bool(setup.loader or setup.dataset or setup.collate or setup.sampler)
    if reads and not loader:
        return "the script has no DataLoader: its own function makes the batches"
    if reads and len(loader) > 1:
        return "several lines make training loaders: it needs build()"
    if setup.precision.loss_scaling:
        return "scaled gradients need lines of their own in the script: it needs build()"
    if setup.precision.dtype is not None and any(site.options.get("enabled") for site in sites.of("autocast")):
        return "the script trains under autocast already"
    if setup.compile is not None and sites.of("compile"):
        return "the script compiles already"
    if setup.transfer.prefetch:
        return "batches are moved by the script's own lines: it needs build()"
    if setup.distributed.processes > 1:
        return "a script starts its processes itself: it needs build()"
    wrapped = {
        "loss": setup.loss,
        "training step": setup.step,
        "schedule": setup.scheduler,
        "batch": setup.batch != Setup().batch,
        "cadence of evaluations and checkpoints": setup.cadence != Setup().cadence,
    }
    for what, changed in wrapped.items():
        if changed:
            return f"the {what} is the script's own: it needs build()"
    return None
