"""A live training of which nothing can be reached but what the protocol names; also imported in a script's process."""

from __future__ import annotations

from typing import Any

from autoopt.benchmark.live import LiveTraining

NAMES = {name for name in {*LiveTraining.__annotations__, *vars(LiveTraining)} if not name.startswith("_")}


class Narrowed:
    """Refuses every other attribute."""

    def __init__(self, training: Any) -> None:
        object.__setattr__(self, "_training", training)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._training, _known(name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._training, _known(name), value)


def _known(name: str) -> str:
    if name not in NAMES:
        raise AttributeError(f"{name} is not in LiveTraining")
    return name


def narrow(live: Any) -> dict[str, list[str]]:
    """From now on tasks get the protocol alone; names of it that the training lacks."""
    training = live.training
    live._training = Narrowed(training)
    return {
        "missing": sorted(name for name in NAMES if name not in vars(training) and not hasattr(type(training), name))
    }
