"""Steps of a run as its journal recorded them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from autoopt.errors import DocumentError
from autoopt.records import JsonDict

State = Literal["orphan", "ended", "failed", "abandoned"]


@dataclass(frozen=True)
class Machine:
    """Signs that tell, later, whether the machine was started again, or the kernel killed for lack of memory.

    ``boot``: the kernel's name for this boot; ``oom_kills``: since it. None where that is not known.
    """

    boot: str | None = None
    oom_kills: int | None = None

    def went_down(self, later: Machine) -> bool:
        if self.boot is None or later.boot is None:
            return False
        if self.boot != later.boot:
            return True
        return self.oom_kills is not None and later.oom_kills is not None and later.oom_kills > self.oom_kills


@dataclass(frozen=True)
class Recorded:
    """One step. Times on the run's clock. ``deaths``: the machine at each start after which the run died."""

    number: int
    kind: str
    state: State
    started: float
    at: float
    document: JsonDict | None = None
    failure: dict[str, str] | None = None
    deaths: tuple[Machine, ...] = ()

    @property
    def orphans(self) -> int:
        """How often it was under way when the run was killed."""
        return len(self.deaths)

    def crashes(self, now: Machine) -> int:
        """How often it may have been what brought the run down, rather than a user who killed it.

        Args:
            now: the machine at present.
        """
        return sum(then.went_down(later) for then, later in pairwise((*self.deaths, now)))


def read_steps(records: Iterable[JsonDict], name: str) -> dict[str, list[Recorded]]:
    """Steps by identity (kind and key), in the order in which they were begun.

    A step that did not come to its end and was begun again later is one step.

    Raises:
        DocumentError: a record is not what it must be.
    """
    begun: dict[int, str] = {}
    steps: dict[str, list[Recorded]] = defaultdict(list)
    try:
        for record in records:
            if record["type"] == "start":
                identity = json.dumps([record["kind"], record["key"]], sort_keys=True, separators=(",", ":"))
                begun[record["step"]] = identity
                _begin(steps[identity], record)
            elif record["type"] in ("end", "failed", "abandoned"):
                of = steps[begun[record["step"]]]
                of[-1] = _end(of[-1], record)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DocumentError(f"{name} is damaged: {type(error).__name__}: {error}") from None
    return dict(steps)


def _begin(steps: list[Recorded], record: JsonDict) -> None:
    deaths: tuple[Machine, ...] = ()
    if steps and steps[-1].state in ("orphan", "abandoned"):
        deaths = steps.pop().deaths
    at = float(record["at"])
    deaths = (*deaths, Machine(**record.get("machine", {})))
    steps.append(Recorded(int(record["step"]), str(record["kind"]), "orphan", at, at, deaths=deaths))


def _end(step: Recorded, record: JsonDict) -> Recorded:
    at = float(record["at"])
    if step.state != "orphan":
        return step
    if record["type"] == "abandoned":
        return replace(step, state="abandoned", at=at, deaths=step.deaths[:-1])
    if record["type"] == "failed":
        failure = {str(name): str(value) for name, value in record["failure"].items()}
        return replace(step, state="failed", at=at, failure=failure)
    return replace(step, state="ended", at=at, document=dict(record["document"]))
