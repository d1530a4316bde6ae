"""Tools for tests outside of autoopt: the conformance test of strategies, a fake clock, fake trials.

Names are loaded when they are asked for, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "Behaviour": "fakes",
    "FakeClock": "fakes",
    "FakeArm": "fakes",
    "FakeMachine": "fakes",
    "NoiseModel": "fakes",
    "StrategyTestCase": "strategies",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
