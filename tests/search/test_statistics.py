"""Estimates from two-level data, the control, the error budget and power laws: right about how wrong they may be."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt.records.model_scaling import PowerLaw
from autoopt.search.compare.sequential_test import ALPHA, alpha_of
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel, known_radius, wider
from autoopt.search.scaling import fit
from benchmarks.truth.placebo_runs import one_run

logs = st.floats(-2.0, 2.0)
errors = st.floats(1e-4, 0.5)
lucks = st.builds(BetweenProcess, st.floats(0.003, 0.2), st.floats(1.0, 12.0))
pairs = st.lists(st.tuples(logs, errors), min_size=1, max_size=8)


def two_level(data: list[tuple[float, float]], between: BetweenProcess) -> TwoLevel:
    return TwoLevel([value for value, _ in data], [error for _, error in data], between)


@given(pairs, lucks)
@settings(max_examples=60, deadline=None)
def test_bounds_are_finite_ordered_and_hold_the_value(data, between) -> None:
    level = two_level(data, between)
    for low, high in (level.sequence(0.05), level.interval()):
        assert np.isfinite([low, high]).all()
        assert low <= level.value <= high


@given(pairs, lucks)
@settings(max_examples=40, deadline=None)
def test_swapping_the_sides_mirrors_the_estimate(data, between) -> None:
    level, mirrored = two_level(data, between), two_level([(-value, error) for value, error in data], between)
    assert mirrored.value == pytest.approx(-level.value, abs=1e-9)
    low, high = level.sequence(0.05)
    # A lone far-off pair leaves an evidence curve with a flat stretch, where bisection may stop either side of it.
    assert mirrored.sequence(0.05) == pytest.approx((-high, -low), rel=0.02, abs=1e-3)


def test_above_and_below_say_what_the_bounds_say() -> None:
    level = TwoLevel([0.2, 0.25, 0.22], [0.02] * 3, BetweenProcess(0.03, 6))
    low, high = level.sequence(0.05)
    assert level.above(low - 1e-3, 0.05)
    assert not level.above(low + 1e-3, 0.05)
    assert level.below(high + 1e-3, 0.05)
    assert not level.below(high - 1e-3, 0.05)


def test_blocks_of_one_pair_of_processes_are_never_enough() -> None:
    """However small the error from its blocks, one pair leaves the variance between processes."""
    low, high = TwoLevel([0.10], [1e-4], BetweenProcess(0.04, 4)).sequence(0.05)
    assert low < 0.0 < high
    with pytest.raises(ValueError, match="at least one pair"):
        TwoLevel([], [], BetweenProcess())


@pytest.mark.parametrize("true", [0.01, 0.05, 0.09])
def test_between_process_variance_is_learnt_from_pairs(true: float) -> None:
    rng = np.random.default_rng(0)
    seen = [BetweenProcess().after(true * rng.standard_normal(6), [0.005] * 6).sd for _ in range(200)]
    assert np.sqrt(np.mean(np.square(seen))) == pytest.approx(true, rel=0.3, abs=0.01)


def test_between_process_variance_hidden_in_block_noise_is_hardly_learnt() -> None:
    learnt = BetweenProcess(0.04, 2.0).after([0.0, 0.0, 0.0, 0.0], [0.3] * 4)
    assert learnt.dof < 2.5
    assert learnt.sd > 0.035


@pytest.mark.parametrize("between_process_sd", [0.02, 0.05, 0.08])
def test_sequence_covers_at_all_looks(between_process_sd: float) -> None:
    """The truth lies inside the bounds at every look of (nearly) every run, for a variance other than was guessed."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(120):
        values, inside = [], True
        for _ in range(8):
            values.append(0.05 + between_process_sd * rng.standard_normal() + 0.02 * rng.standard_normal())
            level = TwoLevel(values, [0.02] * len(values), BetweenProcess())
            inside &= not level.above(0.05, 0.05) and not level.below(0.05, 0.05)
        held += inside
    assert held >= 0.93 * 120


def test_a_large_effect_needs_no_more_than_two_pairs_though_little_is_known_of_processes() -> None:
    """1.8 times as fast in two pairs of processes, after an A/A control of two."""
    between = BetweenProcess().after([0.01, -0.07], [0.045, 0.032])
    assert TwoLevel([0.61, 0.57], [0.066, 0.061], between).above(np.log(1.01), 0.02)


@pytest.mark.parametrize(
    ("mu", "errs"),
    [
        (0.4, lambda level: level.above(0.4, 0.05) or level.below(0.4, 0.05)),
        (0.4, lambda level: level.surely_above(0.4, 0.05)),
        (0.37, lambda level: level.surely_above(0.4, 0.05)),
    ],
    ids=["both sides", "one side", "one side, farther off"],
)
def test_bounds_hold_at_all_looks_with_little_known_of_processes(mu: float, errs: Callable[[TwoLevel], bool]) -> None:
    """Drawn from what is assumed of it, errors as blocks leave them, asked after each of eight pairs: at most one
    sequence in twenty errs."""
    rng, between, wrong = np.random.default_rng(5), BetweenProcess(0.05, 1.5), 0
    for _ in range(300):
        tau = min(between.sd * (between.dof / rng.chisquare(between.dof)) ** 0.5, 0.2)
        errors = rng.uniform(0.03, 0.09, 8)
        values = list(rng.normal(mu, np.sqrt(tau**2 + errors**2)))
        wrong += any(errs(TwoLevel(values[:n], list(errors[:n]), between)) for n in range(1, 9))
    assert wrong <= 0.05 * 300 + 2 * (0.05 * 0.95 * 300) ** 0.5
    assert wrong > 0 or mu < 0.4, "a check that cannot fail: bounds this wide tell nothing"


@pytest.mark.parametrize("alpha", [0.025, 0.01])
def test_asked_on_one_side_a_level_is_worth_twice_as_much(alpha: float) -> None:
    """Far from the bound nearly all of the mixture lies on its side, so that half of the level does."""
    level = TwoLevel([0.25, 0.3, 0.27], [0.04] * 3, BetweenProcess(0.05, 2.0))
    low, _ = level.sequence(2 * alpha)
    assert level.surely_above(low - 5e-3, alpha)
    assert not level.surely_above(low + 5e-3, alpha)
    assert not level.surely_above(level.value + 1e-3, 0.9)


def test_two_pairs_tell_of_the_variance_between_processes_and_one_does_not() -> None:
    known = BetweenProcess(0.02, 2)
    assert known.after((0.3,), (0.001,)) == known
    assert known.after((0.3, -0.3), (0.001, 0.001)).sd > 0.1
    assert known.after((0.3,), (0.001,), around=0.0).sd > 0.1


@pytest.mark.parametrize("error", [0.005, 0.05, 0.3])
@pytest.mark.parametrize("count", [1, 4, 20])
def test_intervals_that_hold_together_are_those_of_a_smaller_error_each(error: float, count: int) -> None:
    assert wider(known_radius(error, 0.05), count) == pytest.approx(known_radius(error, 0.05 / count), rel=1e-6)


# The error budget of a run: what all comparisons may spend together, and that real gains are still kept.


@given(st.integers(1, 500))
def test_a_run_without_a_gain_spends_no_more_than_its_budget(candidates: int) -> None:
    assert sum(alpha_of(tested, 0) for tested in range(candidates)) <= ALPHA


@given(st.integers(0, 50), st.integers(0, 50))
def test_what_was_kept_earns_more(tested: int, kept: int) -> None:
    assert alpha_of(tested, kept + 1) > alpha_of(tested, kept) > alpha_of(tested + 1, kept)


def test_gains_worth_having_are_kept_under_the_budget() -> None:
    rows = one_run("normal", "equal", 1, (1.0, 1.3, 1.0, 1.5, 1.25))
    assert [row["kept"] for row in rows] == [False, True, False, True, True]


@pytest.mark.parametrize(("dof", "enough"), [(12.0, True), (2.0, False)])
def test_what_calm_plans_showed_weighs_little_for_another_plan(dof: float, enough: bool) -> None:
    """Two pairs of processes that happen to agree at 1.09 are no proof of a gain, however calm the plans before."""
    assert TwoLevel([0.085, 0.095], [0.012] * 2, BetweenProcess(0.02, dof)).above(0.01, 0.05) is enough


# The power law of a few sizes: the known truth comes back, and its bounds hold as often as they say.

SIZES = (1_000, 4_000, 16_000, 64_000)


def law(parameters: float, exponent: float, at: float = 0.2) -> float:
    """A power law that has this value at 8,000 parameters."""
    return at * (parameters / 8_000) ** exponent


def drawn(rng: np.random.Generator, exponent: float, scatter: float, seeds: int) -> list[tuple[float, float]]:
    return [(size, law(size, exponent) * exp(scatter * rng.standard_normal())) for size in SIZES for _ in range(seeds)]


@settings(deadline=None, max_examples=40)
@given(
    exponent=st.floats(-1.5, 1.5),
    at=st.floats(1e-4, 1e4),
    sizes=st.lists(st.integers(10, 10**9), min_size=3, max_size=6, unique_by=lambda size: round(log(size), 1)),
    seeds=st.integers(1, 3),
)
def test_an_exact_law_comes_back(exponent: float, at: float, sizes: list[int], seeds: int) -> None:
    found = fit([(size, law(size, exponent, at)) for size in sizes for _ in range(seeds)], "seconds")
    assert found.exponent.value == pytest.approx(exponent, abs=1e-6)
    assert found.exponent.low <= found.exponent.value <= found.exponent.high
    assert (found.sizes, found.runs) == (len(sizes), seeds * len(sizes))
    for place in found.line:
        assert place.low <= place.value <= place.high
        assert place.value == pytest.approx(law(place.parameters, exponent, at), rel=1e-5)


@settings(deadline=None, max_examples=30)
@given(size=st.floats(2_000, 40_000), exponent=st.floats(-0.8, -0.1))
def test_the_size_at_the_target_is_where_the_law_meets_it(size: float, exponent: float) -> None:
    rng = np.random.default_rng(3)
    found = fit(drawn(rng, exponent, 1e-6, 2), "error", law(size, exponent))
    assert found.at_target.value == pytest.approx(size, rel=1e-3)
    assert found.at_target.low <= found.at_target.value <= found.at_target.high


def fits(scatter: float, seeds: int, times: int = 300) -> list[PowerLaw]:
    rng = np.random.default_rng(11)
    made = (fit(drawn(rng, -0.3, scatter, seeds), "error", law(12_000, -0.3)) for _ in range(times))
    return [one for one in made if one is not None]


@pytest.mark.parametrize(("scatter", "seeds"), [(0.05, 1), (0.05, 2), (0.2, 3)])
def test_the_bounds_hold_in_nineteen_of_twenty_runs(scatter: float, seeds: int) -> None:
    found = fits(scatter, seeds)
    held = np.mean([one.exponent.low <= -0.3 <= one.exponent.high for one in found])
    assert 0.92 <= held <= 0.985, "0.95, and what three hundred draws scatter by"
    told = [one.at_target for one in found if one.at_target is not None]
    assert len(told) > 100
    assert np.mean([at.low <= 12_000 <= at.high for at in told]) >= 0.92


def test_sizes_that_lie_on_no_line_count_once_each() -> None:
    """Trainings of one size agree to a per mille, and the sizes bend away from any line: no narrow bounds of many."""
    bent = {1_000: 0.4, 4_000: 0.2, 16_000: 0.15, 64_000: 0.145}
    found = fit([(size, value * exp(off)) for size, value in bent.items() for off in (-1e-3, 1e-3)], "error", 0.16)
    straight = fit(list(bent.items()), "error", 0.16)
    assert found.by_size
    assert found.exponent.n == 4
    assert found.runs == 8
    assert found.exponent.low == pytest.approx(straight.exponent.low, rel=1e-3)


def test_a_size_is_not_told_where_the_data_do_not_tell_it() -> None:
    rng = np.random.default_rng(2)
    flat = fit(drawn(rng, 0.0, 0.3, 2), "error", 0.1)
    assert flat.at_target is None
    assert "bounds of the exponent hold zero" in flat.note
    far = fit(drawn(rng, -0.3, 0.001, 2), "error", law(1e9, -0.3))
    assert far.at_target is None
    assert "10 times beyond" in far.note


def test_two_sizes_are_no_line() -> None:
    assert fit([(1_000, 0.3), (4_000, 0.2), (4_000, 0.21)], "error") is None
