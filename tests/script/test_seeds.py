"""A script's own seeds mixed with the trial's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from autoopt.script.draws import draw_anew


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((random, "seed"), (np.random, "seed"), (torch, "manual_seed"), (torch.random, "manual_seed")):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def drawn(seed: int) -> list[float]:
    """Draws of a script that seeds all three."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_seeds_that_were_known_before_draw_what_was_not(as_before: None) -> None:
    plain, plainly = drawn(3), torch.manual_seed
    found = {}
    for trial in (1, 2):
        for name in ("manual_seed",):
            setattr(torch, name, plainly)
        random.seed, np.random.seed = _SEEDS
        draw_anew(trial)
        found[trial] = drawn(3)
        assert drawn(3) == found[trial], "the same seed draws the same"
        assert all(a != b for a, b in zip(drawn(4), found[trial], strict=True)), "another seed is another one"
        random.seed()  # from the system's entropy, as ever
        np.random.seed(None)
    assert all(a != b for a, b in zip(found[1], plain, strict=True))
    assert all(a != b for a, b in zip(found[1], found[2], strict=True)), "and so is another trial"


_SEEDS = (random.seed, np.random.seed)
