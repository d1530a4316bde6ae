"""What the tests of scripts ask of a live training; imported in the script's process as well."""

from __future__ import annotations

import copy
import sys
from typing import Any

from autoopt.benchmark.live import LiveTraining, drives
from autoopt.records import JsonDict
from autoopt.script import tasks


@drives
def sites(live: Any, steps: int, seconds: float) -> JsonDict:
    """The sites after so many steps, however slow they are; an evaluation is waited for so many seconds."""
    tasks.WATCHED_SECONDS = seconds
    return tasks.sites(live, seconds=90.0, steps=steps)


def compiled_runs(live: Any) -> JsonDict:
    """Runs of the script's own compiled code in one whole step; whether a change is tried on copies, which are not."""
    runs = sys.modules["__main__"].RUNS  # type: ignore[attr-defined]
    before = len(runs)
    live.training.whole_step(live.training.next())
    return {"runs": len(runs) - before, "tried": live.ratio_with(lambda model: model)}


def copy_without_weights(live: Any) -> JsonDict:
    """What a copy of the model gives whose weights are zero, and what the model gives."""
    training = live.training
    copied = copy.deepcopy(training.model)
    for parameter in copied.parameters():
        parameter.data.zero_()
    given = training.next()[0]
    return {"copy": training.loss(copied, given).item(), "model": training.loss(training.model, given).item()}


NAMES = {name for name in {*LiveTraining.__annotations__, *vars(LiveTraining)} if not name.startswith("_")}


class Narrowed:
    """A live training of which nothing can be reached but what the protocol names."""

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


def narrow(live: Any) -> JsonDict:
    """From now on tasks get the protocol alone; names of it that the training lacks."""
    training = live.training
    live._training = Narrowed(training)
    lacks = {name for name in NAMES if name not in vars(training) and not hasattr(type(training), name)}
    return {"missing": sorted(lacks)}
