"""autoopt makes a PyTorch training run reach its target faster, and verifies it.

The facade: names are imported when first used, so that ``import autoopt`` costs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.3.0"

_NAMES = {
    "api": ("apply", "optimize"),
    "errors": ("AutooptError",),
    "loading.importing": ("UserBuild",),
    "records": ("Change", "Estimate", "Plan", "Result", "Trial"),
    "setup": ("Setup", "Wrap"),
    "strategy": ("Applies", "Case", "Edit", "Example", "Recipe", "Risk", "Strategy"),
    "workload": ("Target", "Workload"),
}
_WHERE = {name: f"autoopt.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_WHERE, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'autoopt' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
