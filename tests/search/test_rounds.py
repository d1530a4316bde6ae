"""From rows to ratios: totals over totals, errors from the scatter between rounds, nothing of a plan's own trimmed."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.records.account import Row
from autoopt.search.compare.rounds import Rounds, merged, ratio_of_totals
from autoopt.search.compare.statistics import MIN_BLOCKS


def row(seconds: float, samples: int | None = 32, steps: int = 4, number: int = 0) -> Row:
    return Row(plan="{}", process="p", round=number, start=0.0, steps=steps, samples=samples, seconds=seconds)


def paired(incumbent: list[float], candidate: list[float]) -> list[tuple[Row, Row]]:
    return [(row(one), row(other)) for one, other in zip(incumbent, candidate, strict=True)]


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.01, 5.0)), min_size=MIN_BLOCKS, max_size=30))
def test_the_ratio_is_that_of_totals(blocks: list[tuple[float, float]]) -> None:
    incumbent, candidate = map(list, zip(*blocks, strict=True))
    level = ratio_of_totals(paired(incumbent, candidate))
    assert level.value == pytest.approx(log(sum(incumbent) / sum(candidate)))
    swapped = ratio_of_totals(paired(candidate, incumbent))
    assert swapped.value == pytest.approx(-level.value)
    assert swapped.error == pytest.approx(level.error)


def test_a_stall_of_the_plan_itself_counts_in_full() -> None:
    calm, stalls = [0.2] * 20, [0.1] * 19 + [2.1]
    level = ratio_of_totals(paired(calm, stalls))
    assert level.value == pytest.approx(0.0), "half the step's time, and a stall that costs it all"
    assert level.error > 0.3, "one stall says little of how often they come"


@pytest.mark.parametrize("count", [MIN_BLOCKS, 12, 40])
def test_the_error_is_the_scatter_of_totals(count: int) -> None:
    rng = np.random.default_rng(count)

    def drawn() -> list[float]:
        return list(0.2 * np.exp(0.05 * rng.standard_normal(count)))

    found = [ratio_of_totals(paired(drawn(), drawn())) for _ in range(400)]
    truth = float(np.std([level.value for level in found]))
    widened = (count - 1) / (count - 3)
    assert np.sqrt(np.mean([level.error**2 for level in found])) == pytest.approx(truth * widened**0.5, rel=0.12)


def test_steps_are_the_unit_where_a_side_cannot_count_samples() -> None:
    rows = [(row(0.2, samples=None), row(0.1, samples=64))] * MIN_BLOCKS
    assert ratio_of_totals(rows).value == pytest.approx(log(2.0))


def test_a_block_without_work_is_refused() -> None:
    with pytest.raises(ValueError, match="needs work and time"):
        ratio_of_totals([(row(0.2, steps=0, samples=None), row(0.2, samples=None))] * MIN_BLOCKS)
    with pytest.raises(ValueError, match=f"at least {MIN_BLOCKS}"):
        ratio_of_totals(paired([0.2], [0.2]))


def test_blocks_of_one_round_are_one_block() -> None:
    whole = merged([row(0.2), row(0.4)])
    assert (whole.seconds, whole.samples, whole.steps) == (pytest.approx(0.6), 64, 8)
    assert merged([row(0.2), row(0.4, samples=None)]).samples is None


def test_too_few_rounds_tell_nothing() -> None:
    rounds = Rounds(0.15)
    for number in range(MIN_BLOCKS - 1):
        rounds.add(row(0.2, number=number), row(0.1, number=number))
    assert rounds.level() is None
    assert rounds.document(None, startup_seconds=1.0, seconds=2.0) is None
    rounds.add(row(0.2), row(0.1))
    pair = rounds.document(None, startup_seconds=1.0, seconds=2.0)
    assert pair is not None
    assert pair.ratio == pytest.approx(2.0)
