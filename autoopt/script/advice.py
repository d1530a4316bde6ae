"""What a user must change or show in a script: calls that a step need not make, parts that were not seen."""

from __future__ import annotations

from autoopt.records import Advice, NotFound, SiteKind, Sites
from autoopt.simplify.costly import forced_advice, mistakes

_OFTEN = 0.5
"""Times a training step from which on a wait is worth a word."""
_WANTED: tuple[tuple[SiteKind, str, str], ...] = (
    ("loader_training", "a DataLoader that training batches come from", "workers, pinning, prefetch and caches"),
    ("model", "the line that makes the model", "a patch for changes of the model (they can still be measured)"),
    ("loss", "a backward pass", "any change that must be shown to leave the losses as they are"),
    ("evaluation", "an evaluation of the model without gradients", "a target, and changes that need one"),
)


def advice_of(sites: Sites) -> tuple[Advice, ...]:
    """Calls of every step that a user may leave out, or make less often."""
    return (*mistakes(sites), *_waits(sites), *_forced(sites))


def _forced(sites: Sites) -> tuple[Advice, ...]:
    """Garbage collected by force, caches emptied, prints: with the share of a step that they were seen to take."""
    told = (
        forced_advice(site.call, (site.file, site.line), site.per_step or 0.0, site.seconds_per_step or 0.0, step)
        for site in sites.of("forced")
        if (site.per_step or 0.0) >= _OFTEN and (step := sites.step_seconds or 0.0)
    )
    return tuple(item for item in told if item is not None)


def _waits(sites: Sites) -> tuple[Advice, ...]:
    """Waits for a device in every step: each makes the host stand still until the device has done all it was given."""
    return tuple(
        Advice(
            title=f".{site.call}() waits for the device in each step",
            evidence=f"{site.per_step:.1f} times a training step, in {site.function}",
            file=site.file,
            line=site.line,
            suggestion="read it every so many steps, or keep the tensor and read all of them at once",
        )
        for site in sites.of("device_wait")
        if site.options.get("device") != "cpu" and (site.per_step or 0.0) >= _OFTEN
    )


def not_found(sites: Sites) -> tuple[NotFound, ...]:
    """One sentence for each thing that was not seen in the steps that were watched."""
    return tuple(
        NotFound(what=f"{what} (in {sites.steps} watched steps)", then=then)
        for kind, what, then in _WANTED
        if not sites.of(kind)
    )
