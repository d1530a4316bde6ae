"""A script's own seeds mixed with one that it cannot have known: what it draws was not computed before."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import torch

from autoopt.benchmark.seeding import mix

_SMALL = 2**32


def draw_anew(seed: int) -> None:
    """From now on whoever seeds Python, NumPy or torch seeds with a mixture of his seed and this one.

    Two processes that seed alike still draw alike; one that seeds otherwise than before still differs.

    Args:
        seed: of the trial.
    """
    for owner, name in ((random, "seed"), (np.random, "seed"), (torch, "manual_seed"), (torch.random, "manual_seed")):
        setattr(owner, name, _mixing(getattr(owner, name), seed))


def _mixing(plain: Any, seed: int) -> Any:
    @functools.wraps(plain)
    def seeding(given: Any = None, *args: Any, **kwargs: Any) -> Any:
        if given is None and "seed" in kwargs:
            given = kwargs.pop("seed")
        if given is None:  # from the system's entropy
            return plain(*args, **kwargs)
        return plain(mix(seed, str(given)) % _SMALL, *args, **kwargs)

    return seeding
