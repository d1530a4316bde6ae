"""Times to target over seeds: looked at after each seed, placebos are seldom kept and real gains are."""

from __future__ import annotations

import numpy as np
import pytest

from autoopt.records import Objective, Verdict
from autoopt.search.accept.evidence import Judgement
from autoopt.search.accept.gate import ENOUGH_SEEDS, MOST_SEEDS, NOT_TESTED, more_seeds_help, time_verdict
from autoopt.search.accept.metric import missed_target
from autoopt.search.accept.time_to_target import TrainedRatio
from made_up import run

OBJECTIVE = Objective(metric="accuracy", mode="max", target=0.9, target_source="user", tolerance=0.005, min_gain=0.01)
WORTH = float(np.log(1.01))
THROUGHPUT_ERROR = 0.01


def sought(rng: np.random.Generator, true: float, spread: float, alpha: float = 0.05) -> Verdict:
    """The verdict on a change of a true log speedup, whose seeds are looked at one by one.

    Args:
        spread: standard deviation over seeds of the log time to target of either side.
    """
    shared = THROUGHPUT_ERROR * rng.standard_normal()
    ratios = true + shared + np.sqrt(2) * spread * rng.standard_normal(MOST_SEEDS)
    for seeds in range(2, MOST_SEEDS + 1):
        ratio = TrainedRatio(tuple(ratios[:seeds]), 1.96 * THROUGHPUT_ERROR)
        verdict, _ = time_verdict(ratio, WORTH, alpha)
        if not more_seeds_help(_judged(verdict, ratio), seeds, OBJECTIVE):
            return verdict
    return verdict


def _judged(verdict: Verdict, ratio: TrainedRatio) -> Judgement:
    return Judgement(verdict=verdict, reason="", quality=NOT_TESTED, time_to_target=ratio.estimate)


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
def test_placebos_are_kept_in_at_most_five_per_cent(spread: float) -> None:
    rng = np.random.default_rng(7)
    kept = [sought(rng, 0.0, spread) is Verdict.KEPT for _ in range(150)]
    assert np.mean(kept) <= 0.05


def test_a_true_gain_is_not_called_none() -> None:
    """A true 1.5 whose seeds scatter by a tenth: seldom called no gain, kept in most runs."""
    rng = np.random.default_rng(8)
    found = [sought(rng, np.log(1.5), 0.1) for _ in range(60)]
    assert np.mean([verdict in (Verdict.NO_GAIN, Verdict.HARMFUL) for verdict in found]) <= 0.05
    assert np.mean([verdict is Verdict.KEPT for verdict in found]) > 0.6


def test_a_point_below_the_gain_worth_having_is_no_verdict() -> None:
    """Two seeds that differ by a fifth, around 1: nothing is known yet."""
    verdict, _ = time_verdict(TrainedRatio((0.1, -0.12), 0.02), WORTH, 0.05)
    assert verdict is Verdict.INCONCLUSIVE


def test_the_errors_that_the_run_may_still_make_narrow_what_is_kept() -> None:
    ratio = TrainedRatio((0.34, 0.30, 0.36), 0.02)
    assert time_verdict(ratio, WORTH, 0.05)[0] is Verdict.KEPT
    assert time_verdict(ratio, WORTH, 1e-6)[0] is Verdict.INCONCLUSIVE


def test_seeds_that_do_not_look_worth_it_end_early() -> None:
    ratio = TrainedRatio((0.01, -0.02, 0.0), 0.02)
    judged = _judged(Verdict.INCONCLUSIVE, ratio)
    assert more_seeds_help(judged, ENOUGH_SEEDS - 1, OBJECTIVE)
    assert not more_seeds_help(judged, ENOUGH_SEEDS, OBJECTIVE)
    better = _judged(Verdict.INCONCLUSIVE, TrainedRatio((0.2, -0.1, 0.1), 0.02))
    assert more_seeds_help(better, ENOUGH_SEEDS, OBJECTIVE)
    assert not more_seeds_help(better, MOST_SEEDS, OBJECTIVE)


def test_a_target_that_the_paired_baseline_reaches_is_missed_from_one_seed_on() -> None:
    there, short = run(0), run(1, to=None, best=0.5)
    assert missed_target([(run(0), there), (run(1), short)], OBJECTIVE).startswith("accuracy 0.9 not reached")
    assert missed_target([(run(1), short)], OBJECTIVE), "from the first pair on"
    assert missed_target([(short, short), (short, short)], OBJECTIVE) == "", "the baseline misses it too"
