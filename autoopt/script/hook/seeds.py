"""Functions of other modules replaced, also of those that are imported later; so a script's seeds are mixed with a
run's: its seeds are other ones then, and those of two runs the same.

The standard library alone: a script's own process imports it, before anything else, and in any environment.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def in_place_of(owner: Any, name: str) -> Callable[[F], F]:
    """Puts the function that follows in the place of an attribute, whose name and docstring it gets."""

    def put(function: F) -> F:
        setattr(owner, name, functools.wraps(getattr(owner, name))(function))
        return function

    return put


def when_imported(name: str, then: Callable[[], None], *, before: Callable[[], None] | None = None) -> None:
    """Calls ``then`` once a module has been imported, now where it is, and ``before`` as it is about to be."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Waiting(name, then, before))


class _Waiting:
    """Finds a module as the others do, whoever imports it, and is gone from then on."""

    def __init__(self, name: str, then: Callable[[], None], before: Callable[[], None] | None) -> None:
        self._name, self._then, self._before = name, then, before

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        if self._before is not None:
            self._before()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run, then = spec.loader.exec_module, self._then

            def executed(module: ModuleType) -> None:
                run(module)
                then()

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def mixing(plain: Any, seed: int) -> Any:
    """A function that seeds, called with a mixture of the seed that it is given and this one."""

    @functools.wraps(plain)
    def seeding(given: Any = None, *args: Any, **kwargs: Any) -> Any:
        if given is None and "seed" in kwargs:
            given = kwargs.pop("seed")
        if given is None:  # from the system's entropy
            return plain(*args, **kwargs)
        digest = hashlib.blake2b(f"{seed}:{given}".encode(), digest_size=8).digest()
        return plain((int.from_bytes(digest, "little") >> 1) % 2**32, *args, **kwargs)

    return seeding


def mix_seeds(seed: int) -> None:
    """From now on whoever seeds Python, NumPy or torch in this process seeds with a mixture of his seed and this one.

    Two processes that seed alike still draw alike; one that seeds otherwise than before still differs.
    """
    random.seed = mixing(random.seed, seed)
    for module, function in (("numpy.random", "seed"), ("torch.random", "manual_seed")):
        when_imported(module, functools.partial(_mix, module, function, seed))


def _mix(name: str, function: str, seed: int) -> None:
    """Mixes in a module, and in its package where that has the function as well (``torch.manual_seed``)."""
    module, package = sys.modules[name], sys.modules[name.partition(".")[0]]
    mixed = mixing(getattr(module, function), seed)
    for owner in (module, package):
        if function in vars(owner):
            setattr(owner, function, mixed)
