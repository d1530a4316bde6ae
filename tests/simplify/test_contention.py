"""Contention for the cores, steps that are fed by workers, and stages in the step's own order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoopt.benchmark.environment import usable_cores
from autoopt.benchmark.seeding import kept_random_state
from autoopt.records import Contention
from autoopt.simplify import contention
from autoopt.simplify.batches import restored
from autoopt.simplify.contention import (
    combinations,
    fed_combinations,
    measure_contention,
    measure_overlap,
    scatter_of_blocks,
)
from autoopt.simplify.drilldown import measure_inputs
from autoopt.simplify.pipeline import Demand, InterferenceModel, period


def test_combinations_fill_the_cores_and_ask_for_more() -> None:
    assert set(combinations(2, 2)) == {(0, 2), (1, 1), (2, 2), (2, 1), (1, 2)}
    assert all(workers > 0 for _, workers in combinations(1, 1))
    assert (8, 8) in combinations(16, 16)


def test_a_workloads_own_preparation_is_put_beside_its_step(plant: Callable[[str], Any]) -> None:
    training = plant("""
        def build():
            return workload()
    """).training()
    batch = training.next()[0]
    found = measure_contention(training, [batch], 0.3)
    assert {(item.threads, item.workers) for item in found} <= set(combinations(2, 2)) | {
        (0, item.workers) for item in found
    }
    assert found
    assert all(0 < item.prepare <= 1 and (item.step is None) is (item.threads == 0) for item in found)


def test_a_dataset_that_breaks_beside_the_step_leaves_fair_shares(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        class Broken(Rows):
            def __getitem__(self, index):
                raise RuntimeError("no such sample")

        def build():
            return workload(train_data=Broken())
    """)
    training = planted.training()
    assert measure_contention(training, [], 0.2) == ()


def test_steps_are_fed_by_workers_and_nothing_of_the_training_is_read(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        class Counting(Rows):
            read = 0

            def __getitem__(self, index):
                self.read += 1
                return super().__getitem__(index)

        def build():
            return workload(train_data=Counting(), accumulation=2)
    """)
    training, other = planted.training(), planted.training()
    before = [training.step(training.next()).item() for _ in range(2)]
    assert before == [other.step(other.next()).item() for _ in range(2)]
    read = training.loader.loader.dataset.read
    with kept_random_state(), restored(training):
        found = measure_overlap(training, 0.2)
    assert training.loader.loader.dataset.read == read
    assert [(one.workers, one.threads) for one in found] == fed_combinations(usable_cores(), 1, False)[: len(found)]
    assert found
    after = [training.step(training.next()).item() for _ in range(3)]
    assert after == [other.step(other.next()).item() for _ in range(3)]


def test_where_samples_wait_more_workers_than_cores_are_tried() -> None:
    assert fed_combinations(2, 2, waits=True) == [(4, 1), (4, 2), (2, 2)]
    assert fed_combinations(2, 2, waits=False) == [(1, 1), (2, 1), (2, 2)]
    assert fed_combinations(1, 1, waits=False) == [(1, 1)]


def test_more_workers_than_cores_are_no_warning_to_the_user(plant: Callable[[str], Any]) -> None:
    training = plant("def build(): return workload()").training()
    with kept_random_state(), restored(training):
        found = measure_overlap(training, 0.05, waits=True)
    assert found[0].workers == 2 * usable_cores()


def test_a_stream_has_no_samples_to_ask_for(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        def build():
            return workload(train_data=DataLoader(Stream(), batch_size=8), batch_size=None)
    """)
    assert measure_overlap(planted.training(), 0.2) == ()


# The interference model between and beyond what was measured, and the flow at its speeds. Pure.

SEEN = (
    Contention(threads=0, workers=2, prepare=0.9),
    Contention(threads=1, workers=1, prepare=0.95, step=0.8),
    Contention(threads=1, workers=2, prepare=0.6, step=0.5),
    Contention(threads=2, workers=1, prepare=0.7, step=0.4),
    Contention(threads=2, workers=2, prepare=0.5, step=0.2),
)


FOUR = (
    Contention(threads=4, workers=2, prepare=0.9, step=0.8),
    Contention(threads=4, workers=6, prepare=0.5, step=0.4),
)
MANY = (
    Contention(threads=4, workers=4, prepare=0.95, step=0.9),
    Contention(threads=8, workers=8, prepare=0.5, step=0.3),
)
TEAM = (
    Contention(threads=1, workers=4, prepare=0.9, step=0.8),
    Contention(threads=4, workers=2, prepare=0.7, step=0.6),
)


@pytest.mark.parametrize(
    ("cores", "seen", "single", "threads", "speeds"),
    [
        *((2, SEEN, item.workers, item.threads, (item.prepare, item.step)) for item in SEEN if item.threads),
        pytest.param(2, SEEN, 0, 2, (1.0, 1.0), id="a step alone"),
        pytest.param(2, SEEN, 1, 0, (1.0, 1.0), id="a worker alone"),
        pytest.param(2, SEEN, 2, 0, (0.9, 1.0), id="workers alone, as measured"),
        pytest.param(2, SEEN, 4, 0, (0.45, 1.0), id="workers alone share the cores"),
        pytest.param(2, SEEN, 4, 2, (0.5 * 4 / 6, 0.2 * 4 / 6), id="beyond what was measured, fair shares"),
        pytest.param(8, FOUR, 4, 4, (0.7, 0.6), id="half-way between"),
        pytest.param(8, FOUR, 1, 4, (0.9, 0.9), id="below the least, on the way to none"),
        pytest.param(8, FOUR, 3, 4, (0.8, 0.7), id="a quarter of the way"),
        pytest.param(8, MANY, 2, 6, (0.95, 0.9), id="cores enough: one of their kind"),
        pytest.param(8, MANY, 4, 6, (0.5 * 1.6, 0.3 * 1.6), id="cores short: another kind"),
        pytest.param(2, (), 1, 3, (0.5, 0.5), id="nothing measured"),
        pytest.param(8, TEAM, 3, 2, (0.7, 0.6), id="one thread tells nothing of a team"),
    ],
)
def test_speeds_while_workers_and_a_step_compete(
    cores: int, seen: tuple[Contention, ...], single: int, threads: int, speeds: tuple[float, float]
) -> None:
    assert InterferenceModel(cores, seen).speeds(single, threads) == pytest.approx(speeds)


def test_the_flow_runs_at_the_measured_speeds() -> None:
    """One worker beside one thread: the dearer of the two decides, as slow as it was seen to be."""
    demand = Demand(prepare=0.01, compute=0.002, workers=1, cores=2, threads=1, contention=SEEN)
    alone = 1 - 0.002 / 0.8 * 0.95 / 0.01  # of a sample's work is done while the step does not run
    assert period(demand) == pytest.approx(0.002 / 0.8 + alone * 0.01, rel=0.02)


# Stages in the step's own order: ratios of known truth, and when they are measured.


class Timeline:
    """A clock that moves by what is done: a call costs more after something else than after itself."""

    def __init__(self, alone: float, after: float) -> None:
        self.alone, self.after = alone, after
        self.now, self.cold = 0.0, True

    def call(self) -> None:
        self.now += self.after if self.cold else self.alone
        self.cold = False

    def other(self) -> None:
        self.now += 3.0
        self.cold = True

    def clock(self) -> float:
        return self.now


@given(alone=st.floats(0.01, 1.0), times=st.floats(0.5, 20.0))
def test_a_ratio_is_that_of_after_another_thing_and_after_itself(alone: float, times: float) -> None:
    line = Timeline(alone, alone * times)
    found = contention.ratio_after(line.call, line.other, 100.0, line.clock, line.clock)
    assert found == pytest.approx(min(contention.HIGHEST_RATIO, max(1.0, times)))


def test_what_happens_in_one_turn_of_ten_is_part_of_the_mean() -> None:
    line, turns = Timeline(1.0, 1.0), iter(range(10_000))

    def sometimes() -> None:
        line.other()
        line.after = 11.0 if next(turns) % 10 == 9 else 1.0

    assert contention.ratio_after(line.call, sometimes, 2000.0, line.clock, line.clock) == pytest.approx(2.0, rel=0.05)


def test_cache_effects_of_a_training_are_measured_and_stays_as_it_was(plant: Callable[[str], Any]) -> None:
    training = plant("def build(): return workload()").training()

    batch = next(iter(training.loader.loader))
    inputs = measure_inputs(training.loader.loader, 0.2)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    found = contention.cache_effects_of(training, [batch], inputs, 1e-3, 1.0)
    assert found["cold_ratio"] >= 1.0
    assert found["wakeup_ratio"] >= 1.0
    assert found["pause_seconds"] == inputs.loader.seconds  # type: ignore[union-attr]
    contention.cold_batches(training, [batch], 0.05)
    assert not all(torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True)), (
        "steps are real"
    )


def test_what_is_long_is_not_repeated_so_often(plant: Callable[[str], Any]) -> None:
    training = plant("def build(): return workload()").training()
    inputs = measure_inputs(training.loader.loader, 0.2)
    assert contention.cache_effects_of(training, [next(iter(training.loader.loader))], inputs, 10.0, 1.0) == {}
    unmeasured = inputs.model_copy(update={"sample": None})
    assert contention.cache_effects_of(training, [next(iter(training.loader.loader))], unmeasured, 1e-3, 1.0) == {}


@pytest.mark.parametrize("length", [2, 3, 10])
@pytest.mark.parametrize("sd", [0.02, 0.3])
def test_blocks_scatter_as_their_steps_do_though_two_of_them_agree(length: int, sd: float) -> None:
    draw = np.random.default_rng(4)
    blocks = [0.3 * np.exp(sd * draw.normal(size=length)) for _ in range(400)]
    assert scatter_of_blocks(blocks) == pytest.approx(sd / length**0.5, rel=0.3)
    assert scatter_of_blocks([[0.3, 0.2], [0.2, 0.3]]) > 0.15
    assert scatter_of_blocks([[0.3], [0.2]]) == 0.0
