"""Advice that only the user can carry out, and how to get the result again."""

from __future__ import annotations

import shlex

from autoopt.records import Advice, Environment, Peaks, Reproduce
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, clean, name, number


class AdviceView:
    """One piece of advice. ``costly``: it is on one of the most expensive places of the run."""

    def __init__(self, item: Advice) -> None:
        where = item.file if item.file is None or item.line is None else f"{item.file}:{item.line}"
        self.title, self.evidence = name(item.title), name(item.evidence, 600)
        self.where = name(where) if where is not None else None
        self.suggestion, self.costly = clean(item.suggestion)[:2000], item.seconds is not None


Detail = tuple[str, Number | Name]
"""A labelled line."""


def machine_lines(environment: Environment) -> tuple[Detail, ...]:
    at = "/environment"
    lines = [
        _text("device", environment.device_name or environment.device),
        ("device memory", number(environment.device_memory_bytes, units.bytes_, f"{at}/device_memory_bytes")),
        _text("CPU", environment.cpu),
        ("cores", number(environment.cores, units.count, f"{at}/cores")),
        ("compute threads", number(environment.threads, units.count, f"{at}/threads")),
        ("RAM", number(environment.ram_bytes, units.bytes_, f"{at}/ram_bytes")),
        ("load while measuring", number(environment.load, units.plain, f"{at}/load")),
        _text("operating system", environment.os),
        _text("Python", environment.python),
        _text("torch", environment.torch),
        _text("CUDA", environment.cuda),
        _text("compiler", environment.compiler),
        _text("git commit", environment.git_commit),
    ]
    lines += [_text(name(package, 60).text, version) for package, version in sorted(environment.packages.items())[:40]]
    return tuple(lines)


ROOFS = tuple(
    (f"matmul {kind}", f"matmul_{kind.lower()}_flops_per_second") for kind in ("fp32", "TF32", "bf16", "fp16")
)
"""Label and field of the peaks that products are held against."""
_PEAKS: tuple[tuple[str, str, units.Formatter], ...] = (
    *((label, field, units.flops) for label, field in ROOFS),
    ("memory", "memory_bytes_per_second", units.bandwidth),
    ("copy to device, pageable", "copy_pageable_to_device_bytes_per_second", units.bandwidth),
    ("copy to device, pinned", "copy_pinned_to_device_bytes_per_second", units.bandwidth),
    ("copy from device, pageable", "copy_pageable_from_device_bytes_per_second", units.bandwidth),
    ("copy from device, pinned", "copy_pinned_from_device_bytes_per_second", units.bandwidth),
    ("storage", "storage_bytes_per_second", units.bandwidth),
    ("one launch", "launch_seconds", units.duration),
)


def peak_lines(peaks: Peaks) -> tuple[Detail, ...]:
    """The measured peaks; what was not measured says so."""
    return tuple(
        (label, number(getattr(peaks, field), form, f"/environment/peaks/{field}")) for label, field, form in _PEAKS
    )


def _text(label: str, value: str | None) -> Detail:
    return (label, name(value) if value else Name("not recorded"))


def commands(reproduce: Reproduce, spec: str) -> tuple[str, ...]:
    first = clean(reproduce.command) if reproduce.command else f"autoopt optimize {shlex.quote(clean(spec))}"
    run = shlex.quote(clean(reproduce.run_directory)) if reproduce.run_directory else "RUN"
    return (first, f"autoopt report {run}")
