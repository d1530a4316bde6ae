"""Steps of a run as its journal recorded them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from autoopt.errors import DocumentError
from autoopt.records import JsonDict

State = Literal["orphan", "ended", "failed", "abandoned"]


@dataclass(frozen=True)
class Recorded:
    """One step. Times on the run's clock.

    ``machine``: its state as the step began; ``down``: how often it went down, or ran out of memory, during the step.
    """

    number: int
    kind: str
    state: State
    started: float
    at: float
    document: JsonDict | None = None
    failure: dict[str, str] | None = None
    machine: JsonDict = field(default_factory=dict)
    down: int = 0

    def down_by(self, now: JsonDict) -> int:
        """How often the step may have been what brought the run down, rather than a user who killed it.

        Args:
            now: the machine's state at present.
        """
        if self.state != "orphan" or None in (self.machine.get("boot"), now.get("boot")):
            return self.down
        before, after = self.machine.get("oom_kills"), now.get("oom_kills")
        killed = before is not None and after is not None and after > before
        return self.down + int(killed or self.machine["boot"] != now["boot"])


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
    at, machine = float(record["at"]), record.get("machine", {})
    down = steps.pop().down_by(machine) if steps and steps[-1].state in ("orphan", "abandoned") else 0
    steps.append(Recorded(int(record["step"]), str(record["kind"]), "orphan", at, at, machine=machine, down=down))


def _end(step: Recorded, record: JsonDict) -> Recorded:
    at = float(record["at"])
    if step.state != "orphan":
        return step
    if record["type"] == "abandoned":
        return replace(step, state="abandoned", at=at)
    if record["type"] == "failed":
        failure = {str(name): str(value) for name, value in record["failure"].items()}
        return replace(step, state="failed", at=at, failure=failure)
    return replace(step, state="ended", at=at, document=dict(record["document"]))
