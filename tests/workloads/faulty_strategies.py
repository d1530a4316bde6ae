"""Strategies of a third party that break: one for each method, and each in several ways."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from autoopt import Applies, Recipe, Risk, Setup, Strategy

FAULTS: dict[str, Callable[[], Any]] = {
    "raises": lambda: (_ for _ in ()).throw(ValueError("broken on purpose")),
    "exits": lambda: sys.exit(3),
    "nonsense": lambda: "nonsense",
    "none": lambda: None,
}
METHODS = ("applies", "predict", "settings", "companions", "apply", "recipe", "inspect")


class Faulty(Strategy):
    """Sound but for one method; ``method`` and ``fault`` are set by the classes made below."""

    stages = frozenset({"forward"})
    risk = Risk.EXACT
    method = ""
    fault = ""

    def _break(self, method: str, otherwise: Any) -> Any:
        return FAULTS[self.fault]() if method == self.method else otherwise

    def applies(self, case: Any) -> Any:
        return self._break("applies", Applies.yes())

    def predict(self, case: Any, setting: Any) -> Any:
        return self._break("predict", None)

    def settings(self, case: Any) -> Iterable[Any]:
        return self._break("settings", [{}])

    def companions(self, case: Any, setting: Any) -> Any:
        return self._break("companions", [])

    def apply(self, setup: Setup, setting: Any) -> Any:
        return self._break("apply", setup.with_step(same))

    def recipe(self, setting: Any) -> Any:
        return self._break("recipe", Recipe(pytorch="pass"))

    def inspect(self, live: Any) -> Any:
        return self._break("inspect", {})


def same(step: Any) -> Any:
    return step


for _method in METHODS:
    for _fault in FAULTS:
        _name = f"Faulty{_method.capitalize()}{_fault.capitalize()}"
        globals()[_name] = type(
            _name,
            (Faulty,),
            {"name": f"faulty_{_method}_{_fault}", "method": _method, "fault": _fault, "__module__": __name__},
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
    """Breaks while it trains, in each of several settings."""

    name = "spoiler"
    stages = frozenset({"forward", "backward"})
    risk = Risk.EXACT

    def applies(self, case: Any) -> Applies:
        return Applies.yes()

    def settings(self, case: Any) -> Iterable[dict[str, Any]]:
        yield from ({"how": how} for how in ("error", "segfault", "os_exit", "nan", "not_a_step"))

    def apply(self, setup: Setup, setting: Any) -> Setup:
        return setup.with_step(Spoil(setting["how"]))
