"""Seeds of a script mixed with one of a run's, so that its seeds are other ones and those of two runs the same.

The standard library alone: a script's own process imports it, before anything else, and in any environment.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import random
import sys
from types import ModuleType
from typing import Any

_SMALL = 2**32
_SEED_BY = {"numpy.random": "seed", "torch.random": "manual_seed"}


def mixing(plain: Any, seed: int) -> Any:
    """A function that seeds, called with a mixture of the seed that it is given and this one."""

    @functools.wraps(plain)
    def seeding(given: Any = None, *args: Any, **kwargs: Any) -> Any:
        if given is None and "seed" in kwargs:
            given = kwargs.pop("seed")
        if given is None:  # from the system's entropy
            return plain(*args, **kwargs)
        digest = hashlib.blake2b(f"{seed}:{given}".encode(), digest_size=8).digest()
        return plain((int.from_bytes(digest, "little") >> 1) % _SMALL, *args, **kwargs)

    return seeding


class _OnceImported:
    """Finds the modules that seed NumPy and torch, and has them seed with a mixture from their import on."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in _SEED_BY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            plain = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                plain(module)
                function = _SEED_BY[name]
                setattr(module, function, mixing(getattr(module, function), self._seed))

            loader.exec_module = exec_module
        return spec


def mix_seeds(seed: int) -> None:
    """From now on whoever seeds Python, NumPy or torch in this process seeds with a mixture of his seed and this one.

    Two processes that seed alike still draw alike; one that seeds otherwise than before still differs.
    """
    random.seed = mixing(random.seed, seed)
    sys.meta_path.insert(0, _OnceImported(seed))
