"""Strategies of a third party that break: when they are applied, or in the steps that they change."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from autoopt import Setup, Strategy

FAULTS: dict[str, Callable[[], Any]] = {
    "raises": lambda: (_ for _ in ()).throw(ValueError("broken on purpose")),
    "exits": lambda: sys.exit(3),
    "nonsense": lambda: "nonsense",
    "none": lambda: None,
}


class Faulty(Strategy):
    """Its ``apply`` breaks as ``fault`` says, which is set by the classes made below."""

    fault = ""

    def apply(self, setup: Setup, setting: Any) -> Any:
        return FAULTS[self.fault]()


for _fault in FAULTS:
    _name = f"FaultyApply{_fault.capitalize()}"
    globals()[_name] = type(
        _name, (Faulty,), {"name": f"faulty_apply_{_fault}", "fault": _fault, "__module__": __name__}
    )


@dataclasses.dataclass(frozen=True)
class Spoil:
    """A transform that breaks the step from its n-th call on."""

    how: str
    at: int = 3

    def __call__(self, step: Any) -> Any:
        calls = 0

        def spoiled(batches: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= self.at:
                if self.how == "error":
                    raise ValueError("broken on purpose")
                if self.how == "segfault":
                    ctypes.string_at(0)
                if self.how == "hang":
                    time.sleep(3600)
                if self.how == "os_exit":
                    os._exit(5)
                if self.how == "nan":
                    return step(batches) * float("nan")
                if self.how == "not_a_step":
                    return "nonsense"
            return step(batches)

        return spoiled


class Spoiler(Strategy):
    """Breaks while it trains, in a way that its setting names."""

    name = "spoiler"

    def apply(self, setup: Setup, setting: Any) -> Setup:
        return setup.with_step(Spoil(setting["how"]))
