"""One site of a script while it is watched, and what is told of it in the end."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from autoopt.records import JsonDict, Place, Site, SiteKind
from autoopt.script.frames import Found

_LOADER_OPTIONS = (
    "batch_size",
    "num_workers",
    "pin_memory",
    "prefetch_factor",
    "persistent_workers",
    "drop_last",
    "timeout",
)


@dataclass
class Seen:
    """One site while it is watched."""

    kind: SiteKind
    found: Found
    call: str = ""
    name: str = ""
    options: JsonDict = field(default_factory=dict)
    used: list[Place] = field(default_factory=list)
    callers: list[tuple[Place, ...]] = field(default_factory=list)
    count: int = 0
    seconds: float = 0.0
    calls: list[int] = field(default_factory=list)
    takes: tuple[str, ...] | None = None


def taken_by(made: Any) -> tuple[str, ...] | None:
    """Names of the arguments that the class of an object takes; None of torch's own, and where it takes any."""
    if type(made).__module__.startswith("torch."):
        return None
    try:
        parameters = inspect.signature(type(made)).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)


def loader_options(loader: Any) -> JsonDict:
    """Options of a live loader, as far as they can be written down."""
    options = {name: getattr(loader, name, None) for name in _LOADER_OPTIONS}
    options["shuffle"] = type(loader.sampler).__name__ == "RandomSampler"
    options["dataset"] = type(loader.dataset).__name__
    return options


def grouped(seen: list[Seen]) -> list[Seen]:
    """Loaders that the same call makes, of one kind, as one site."""
    groups: dict[Any, Seen] = {}
    for item in seen:
        key = (item.kind, item.found.place.file, item.found.place.line, item.found.end_column)
        first = groups.setdefault(key, item)
        if first is not item:
            first.calls += item.calls
            first.count += item.count
            each = zip(item.used, item.callers, strict=True)
            further = [(place, by) for place, by in each if place not in first.used]
            first.used += [place for place, _ in further]
            first.callers += [by for _, by in further]
    return list(groups.values())


def site_of(seen: Seen, steps: float) -> Site:
    """The site as it is told.

    Args:
        steps: training steps in which it was watched.
    """
    counted = seen.kind in ("device_wait", "loss", "step", "loader_training", "logger", "forced")
    return Site(
        **seen.found.place.model_dump(),
        kind=seen.kind,
        call=seen.call,
        name=seen.name,
        direct=seen.found.direct,
        options=seen.options,
        used=tuple(seen.used),
        callers=tuple(seen.callers),
        calls=tuple(seen.calls),
        takes=seen.takes,
        end_column=seen.found.end_column,
        per_step=seen.count / steps if counted else None,
        seconds_per_step=seen.seconds / steps if seen.kind == "forced" else None,
    )
