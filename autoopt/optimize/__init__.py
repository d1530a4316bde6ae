"""What to try, and when to believe it.

The facade's function has the name of this package, and importing a package puts it where the function is
looked for. So the package can be called as well: ``autoopt.optimize(...)`` is the function, whatever was
imported before.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return importlib.import_module("autoopt.api").optimize(*args, **options)  # named as the facade names it


sys.modules[__name__].__class__ = _Callable
