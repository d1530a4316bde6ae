"""Being told as a module is imported, whoever imports it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def when_imported(name: str, then: Callable[[], None], *, before: Callable[[], None] | None = None) -> None:
    """Calls ``then`` once a module that is not imported yet has been, and ``before`` as it is about to be."""
    sys.meta_path.insert(0, _Waiting(name, then, before))


class _Waiting(importlib.abc.MetaPathFinder):
    """Tells when a module has been imported, whoever imports it, and is gone from then on."""

    def __init__(self, name: str, then: Callable[[], None], before: Callable[[], None] | None) -> None:
        self._name, self._then, self._before = name, then, before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        if self._before is not None:
            self._before()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run, then = spec.loader.exec_module, self._then

            def executed(module: ModuleType) -> None:
                run(module)
                then()

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
