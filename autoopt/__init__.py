"""autoopt makes a PyTorch training run reach its target faster, and verifies it.

The facade: names are imported when first used, so that ``import autoopt`` costs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.3.0"

_WHERE = {
    "Applies": "autoopt.strategy",
    "AutooptError": "autoopt.errors",
    "Case": "autoopt.strategy",
    "Change": "autoopt.records",
    "Edit": "autoopt.strategy",
    "Estimate": "autoopt.records",
    "Example": "autoopt.strategy",
    "Plan": "autoopt.records",
    "Recipe": "autoopt.strategy",
    "Result": "autoopt.records",
    "Risk": "autoopt.strategy",
    "Setup": "autoopt.setup",
    "Strategy": "autoopt.strategy",
    "Target": "autoopt.workload",
    "Trial": "autoopt.records",
    "UserBuild": "autoopt.loading.importing",
    "Workload": "autoopt.workload",
    "Wrap": "autoopt.setup",
    "apply": "autoopt.api",
    "optimize": "autoopt.api",
}

__all__ = sorted([*_WHERE, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'autoopt' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
