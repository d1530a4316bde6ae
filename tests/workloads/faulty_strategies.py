"""Strategies of a third party that break as they are applied, each in another way, or while a step is trained."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from autoopt import Setup, Strategy


class FaultyApplyRaises(Strategy):
    name = "faulty_apply_raises"

    def apply(self, setup: Setup, setting: Any) -> Any:
        raise ValueError("broken on purpose")


class FaultyApplyExits(Strategy):
    name = "faulty_apply_exits"

    def apply(self, setup: Setup, setting: Any) -> Any:
        sys.exit(3)


class FaultyApplyNonsense(Strategy):
    name = "faulty_apply_nonsense"

    def apply(self, setup: Setup, setting: Any) -> Any:
        return "nonsense"


class FaultyApplyNone(Strategy):
    name = "faulty_apply_none"

    def apply(self, setup: Setup, setting: Any) -> Any:
        return None


def raises() -> None:
    raise ValueError("broken on purpose")


BREAKS: dict[str, Callable[[], object]] = {
    "error": raises,
    "segfault": lambda: ctypes.string_at(0),
    "hang": lambda: time.sleep(3600),
    "os_exit": lambda: os._exit(5),
}


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
            if calls < self.at:
                return step(batches)
            if self.how == "not_a_step":
                return "nonsense"
            if self.how in BREAKS:
                BREAKS[self.how]()
            return step(batches) * float("nan" if self.how == "nan" else 1)

        return spoiled


class Spoiler(Strategy):
    """Breaks while it trains."""

    name = "spoiler"

    def apply(self, setup: Setup, setting: Any) -> Setup:
        return setup.with_step(Spoil(setting["how"]))
