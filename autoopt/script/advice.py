"""Advice that the sites of a script give by themselves, with file and line."""

from __future__ import annotations

from autoopt.records import Advice, Sites
from autoopt.simplify.costly import mistakes
from autoopt.simplify.forced import forced_advice

_OFTEN = 0.5
"""Times a training step from which on a wait is worth a word."""


def advice_of(sites: Sites) -> tuple[Advice, ...]:
    """Calls of every step that a person may leave out, or make less often."""
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
