"""The space that all contestants search: a knob for each thing that can be set, and the lattice of all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from autoopt.records import Change, Plan
from autoopt.registry import Registry
from autoopt.strategy import Case

AS_IS = "as is"
Choices = dict[str, list[dict[str, Any]]]
Knobs = dict[str, Choices]
"""By knob, by choice: the changes that it stands for, as documents."""
Point = dict[str, str]
"""A choice for each knob; a knob that is left out stays as it is."""

ASKED = {
    "samples": ("prepared_samples",),
    "layout": ("channels_last",),
    "optimizer": ("fused_optimizer",),
    "attention": ("flash_attention",),
}
"""Knobs whose settings the strategies know themselves: what they refuse cannot be done. The others have a grid."""
WHOLE = "rows"
"""Samples in this form leave the loader's workers nothing to do."""


def grids(cores: int) -> Knobs:
    """Workers up to the number of cores, compute threads down to one, and short floats.

    What autoopt refuses since it measured no gain is in the lattice all the same.
    """
    workers = {
        str(number): [_change("workers", num_workers=number, prefetch_factor=2, persistent_workers=True)]
        for number in range(1, cores + 1)
    }
    threads = {str(number): [_change("threads", threads=number)] for number in range(1, cores)}
    precision = {
        "bfloat16 products": [_change("matmul_precision", precision="medium")],
        "bfloat16 autocast": [_change("amp", dtype="bfloat16")],
    }
    return {"workers": workers, "threads": threads, "precision": precision}


def _change(strategy: str, **setting: Any) -> dict[str, Any]:
    return {"strategy": strategy, "setting": setting}


def knobs(registry: Registry, case: Case) -> Knobs:
    """The settings of a workload on this machine, by what the strategies themselves say of it.

    Args:
        case: the untouched workload, inspected and profiled.
    """
    found: Knobs = {}
    for name, strategies in ASKED.items():
        found[name] = {}
        for strategy in strategies:
            for setting in _settings(registry, case, strategy):
                found[name][_label(strategy, setting)] = [_change(strategy, **setting)]
    found |= grids(case.environment.cores or 1)
    return {name: {AS_IS: [], **choices} for name, choices in found.items() if choices}


def _settings(registry: Registry, case: Case, name: str) -> list[dict[str, Any]]:
    strategy = registry[name]
    if not strategy.applies(case):
        return []
    return [dict(setting) for setting in strategy.settings(case)]


def _label(strategy: str, setting: dict[str, Any]) -> str:
    reported = [str(setting[key]) for key in ("implementation", "form") if key in setting]
    return " ".join([strategy, *reported])


def strategies_of(space: Knobs) -> tuple[str, ...]:
    """The names of the strategies in a space, for ``--only``."""
    names = [change["strategy"] for choices in space.values() for changes in choices.values() for change in changes]
    return tuple(dict.fromkeys(names))


def wanted(name: str, chosen: Point, space: Knobs) -> bool:
    """Whether a knob means anything beside what was chosen before it."""
    samples = space.get("samples", {}).get(chosen.get("samples", AS_IS), [])
    return not (name == "workers" and any(change["setting"].get("form") == WHOLE for change in samples))


def lattice(space: Knobs) -> Iterator[Point]:
    """Every combination that means something, once."""
    names = sorted(space, key=lambda name: name != "samples")
    for choices in itertools.product(*(space[name] for name in names)):
        point = dict(zip(names, choices, strict=True))
        idle = [name for name in names if not wanted(name, point, space)]
        if all(point[name] == AS_IS for name in idle):
            yield {name: choice for name, choice in point.items() if name not in idle}


def plan_of(point: Point, space: Knobs, registry: Registry) -> Plan:
    """The plan of a point."""
    changes = [change for name, choice in point.items() for change in space[name][choice]]
    return registry.order(Plan(changes=tuple(Change.model_validate(change) for change in changes)))


def told(plan: Plan) -> str:
    """A plan in a few words."""
    parts = []
    for change in plan.changes:
        numbers = [str(value) for key, value in change.setting.items() if key in _TOLD]
        parts.append(" ".join([change.strategy, *numbers]))
    return ", ".join(parts) or "untouched"


_TOLD = ("form", "num_workers", "threads", "dtype", "precision", "implementation", "mode", "size")
