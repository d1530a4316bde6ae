"""Advice that the sites of a script give by themselves, with file and line."""

from __future__ import annotations

from autoopt.records import Advice, Sites

_OFTEN = 0.5
"""Times a training step from which on a wait is worth a word."""


def advice_of(sites: Sites) -> tuple[Advice, ...]:
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
