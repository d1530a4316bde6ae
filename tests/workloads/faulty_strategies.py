"""Strategies of a third party that break: one for each method, and each in several ways."""

from __future__ import annotations

import sys
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
