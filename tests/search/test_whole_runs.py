"""Losses of whole trainings beside how far the baseline's own trainings part."""

from __future__ import annotations

import numpy as np
import pytest

from autoopt.records import Quality
from autoopt.search.accept.losses import SEEN_BY_PROBES, judge_whole_runs
from made_up import evidence, run

STEPS = 800
LEVEL = Quality(method="probe", level="equivalent", passed=True, detail="the same training but for rounding")


def chaotic(batches: int, own: int, parted: int = 150, size: float = 0.05, shift: float = 0.0, since: int = 0):
    """Losses of a GAN: level, batch noise of its seed, and a walk of its own from the step on where it has parted."""
    step = np.arange(STEPS)
    walk = np.zeros(STEPS)
    draws = np.random.default_rng(1000 + own).standard_normal(STEPS)
    for at in range(1, STEPS):
        walk[at] = 0.98 * walk[at - 1] + size * 0.2 * draws[at]
    grown = np.clip((step - parted) / 100, 0.0, 1.0)
    noise = np.random.default_rng(batches).normal(0, 0.05, STEPS)
    return tuple(0.7 + 0.3 * step / STEPS + noise + grown * walk + shift * (step >= since))


def judged(candidates, seeds: int = 2) -> Quality:
    runs = [run(seed, losses=chaotic(seed, seed)) for seed in range(seeds)]
    after = tuple(run(seed, losses=candidates(seed)) for seed in range(seeds))
    return judge_whole_runs(LEVEL, evidence(after, tuple(runs)))


def test_trainings_that_part_by_chance_are_those_of_the_baseline_among_themselves() -> None:
    lost = undecided = 0
    for number in range(25):
        found = judged(lambda seed, number=number: chaotic(seed, 100 + 2 * number + seed))
        lost, undecided = lost + (found.passed is False), undecided + (found.passed is None)
    assert lost <= 1
    assert undecided <= 3


@pytest.mark.parametrize(("since", "shift"), [(0, 0.05), (8, -0.05), (400, 0.5)])
def test_what_lies_off_in_all_seeds_is_another_training(since: int, shift: float) -> None:
    found = judged(lambda seed: chaotic(seed, 100 + seed, shift=shift, since=since))
    assert found.passed is False
    assert ("higher" if shift > 0 else "lower") in (found.detail or "")
    assert "in trainings from each of 2 seeds" in (found.detail or "")


def test_one_that_fails_from_one_seed_alone_is_lost() -> None:
    found = judged(lambda seed: chaotic(seed, 100 + seed, shift=2.0 * (seed == 1), since=500))
    assert found.passed is False
    assert "from one seed" in (found.detail or "")


def test_a_shift_between_is_left_to_a_third_seed_which_decides_it() -> None:
    def shifted(seed: int):
        return chaotic(seed, seed, shift=0.35, since=400)  # the very training of the baseline, but for the shift

    assert judged(shifted).passed is None
    assert judged(shifted, seeds=3).passed is False


def test_no_spread_excuses_what_a_probe_sees() -> None:
    """Trainings of other seeds differ from their first step on; those of one seed do not."""
    apart = [chaotic(seed, seed, shift=0.1 * seed) for seed in range(2)]
    runs = tuple(run(seed, losses=losses) for seed, losses in enumerate(apart))
    early = np.where(np.arange(STEPS) < SEEN_BY_PROBES, 0.06, 0.0)
    after = tuple(run(seed, losses=tuple(np.array(losses) + early)) for seed, losses in enumerate(apart))
    assert judge_whole_runs(LEVEL, evidence(after, runs)).passed is False
