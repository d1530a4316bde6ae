"""A file of Python as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def module_of(path: Path) -> ModuleType:
    """The file, imported anew under its own name; ``sys.path`` stays as it is."""
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[path.stem] = module  # dataclasses and named tuples look there
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module
