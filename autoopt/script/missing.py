"""Parts that a script was not seen to have, and the changes that cannot be tried without them."""

from __future__ import annotations

from autoopt.records import NotFound, SiteKind, Sites

_WANTED: tuple[tuple[SiteKind, str, str], ...] = (
    ("loader_training", "a DataLoader that training batches come from", "workers, pinning, prefetch and caches"),
    ("model", "the line that makes the model", "a patch for changes of the model (they can still be measured)"),
    ("loss", "a backward pass", "any change that must be shown to leave the losses as they are"),
    ("evaluation", "an evaluation of the model without gradients", "a target, and changes that need one"),
)


def not_found(sites: Sites) -> tuple[NotFound, ...]:
    """One sentence for each thing that was not seen in the steps that were watched."""
    return tuple(
        NotFound(what=f"{what} (in {sites.steps} watched steps)", then=then)
        for kind, what, then in _WANTED
        if not sites.of(kind)
    )
