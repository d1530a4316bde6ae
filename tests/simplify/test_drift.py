"""A machine whose speed drifts: stages and steps that were timed at different speeds add up all the same."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.records import Deeper, Operator, Peaks, Plan
from autoopt.records.messages import Block
from autoopt.simplify.analyse import analyse
from autoopt.simplify.bottleneck import stage_ceilings
from autoopt.simplify.drift import (
    ReferenceSpeed,
    joined,
    normalized,
    normalized_to_running,
    reference_seconds,
    running_block,
    sensitivity,
    whole,
    without,
)
from autoopt.simplify.microbenchmarks import Microbenchmark, interleaved, repeat, summary
from autoopt.simplify.stage_timings import InputTimings, StageTimings, Timing
from autoopt.simplify.tasks import measure_stages

QUIET, SHARED, SLOW = 1.2e-4, 2.2e-4, 3.0e-4
"""Paces of a core of its own, of a shared one, and of a slow one: seconds of the reference."""


def seconds_at(reference: float, base: float, degree: float) -> float:
    """Seconds of work whose sensitivity at the quiet reference is ``degree``."""
    return base * (1 + degree * (reference / QUIET - 1))


def repeats(base: float, degree: float, readings: list[float], noise: float = 0.02) -> list[float]:
    lot = random.Random(0)
    return [seconds_at(reference, base, degree) * (1 + lot.gauss(0, noise)) for reference in readings]


def shifting(count: int) -> list[float]:
    """The reference holds for some repeats, then it is another."""
    levels = itertools.cycle([SHARED] * 7 + [QUIET] * 5 + [SLOW] * 6)
    return list(itertools.islice(levels, count))


@pytest.mark.parametrize("degree", [0.0, 0.4, 1.0])
def test_repeats_that_saw_several_speeds_tell_how_far_they_follow_it(degree: float) -> None:
    readings = shifting(60)
    timing = summary(repeats(0.01, degree, readings), readings=readings)
    assert timing.reference == SHARED
    for reference in (QUIET, SHARED, SLOW):
        brought = normalized_to_running(timings_of(forward=timing, reference=reference)).forward
        assert brought.seconds == pytest.approx(seconds_at(reference, 0.01, degree), rel=0.06)


def test_bursts_and_readings_that_fell_on_a_change_have_no_say() -> None:
    readings = shifting(60)
    seconds = repeats(0.01, 1.0, readings)
    for number in (3, 20, 41):
        seconds[number] *= 10
    readings[9] = readings[30] = 10 * SLOW
    plain = summary(repeats(0.01, 1.0, shifting(60)), readings=shifting(60))
    assert summary(seconds, readings=readings).seconds == pytest.approx(plain.seconds, rel=0.03)


def test_one_speed_tells_nothing_and_the_usual_stands() -> None:
    assert sensitivity([0.01] * 20, [SHARED] * 20, 0.6) == 0.6
    assert sensitivity([0.01, 0.02], [QUIET, SHARED], 0.6) == 0.6
    assert sensitivity([0.0] * 20, shifting(20), 0.6) == 0.6


@given(
    st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(5e-5, 1e-3)), min_size=1, max_size=40),
    st.floats(0.0, 1.0),
)
def test_what_is_evened_stays_a_time(pairs: list[tuple[float, float]], usual: float) -> None:
    seconds, readings = [list(column) for column in zip(*pairs, strict=True)]
    degree = sensitivity(seconds, readings, usual)
    assert 0.0 <= degree <= 1.0
    assert all(value >= 0 for value in normalized(seconds, readings, degree))
    assert normalized(seconds, [readings[0]] * len(readings), degree) == pytest.approx(seconds)


def timing(seconds: float, reference: float | None = None, degree: float | None = None, wait: float = 0.0) -> Timing:
    return Timing(
        seconds=seconds, cpu_seconds=seconds - wait, wait_seconds=wait, reference=reference, sensitivity=degree
    )


def timings_of(**more: Any) -> StageTimings:
    return StageTimings(device="cpu", cores=2, threads=1, workers=0, batch_size=4, **more)


def shifted(running: float | None) -> StageTimings:
    """Samples were timed on a slow core, the step on a quiet one; all of it follows the reference wholly."""
    quiet, slow = (QUIET, 1.0), (SLOW, 1.0)
    return timings_of(
        inputs=InputTimings(
            sample=timing(0.001 * SLOW / QUIET, *slow), collate=timing(0.0005 * SLOW / QUIET, *slow),
            deeper=(Deeper(name="slow", kind="line", seconds=0.001 * SLOW / QUIET),),
        ),
        forward=timing(0.002, *quiet), backward=timing(0.003, *quiet),
        optimizer=timing(0.001, *quiet), compute=timing(0.006, *quiet), host=timing(0.0, *quiet),
        deeper={"forward": (Deeper(name="first", kind="module", seconds=0.001),)}, reference=running,
    )  # fmt: skip


@pytest.mark.parametrize("running", [QUIET, SHARED, SLOW])
def test_stages_timed_at_different_speeds_make_the_step_that_ran(running: float) -> None:
    """4 samples of 1 ms, collate of 0.5 ms and a step of 6 ms at the quiet reference."""
    step = 0.0105 * running / QUIET
    block = Block(steps=100, samples=400, seconds=100 * step)
    round_ = analyse(0, Plan(), shifted(running), block, Peaks())
    assert round_.simulation_error == pytest.approx(0.0, abs=1e-6)
    blind = analyse(0, Plan(), shifted(None), block, Peaks())
    assert abs(blind.simulation_error or 0.0) > 0.1


def test_what_lies_below_a_stage_goes_with_it() -> None:
    brought = normalized_to_running(shifted(SHARED))
    assert brought.inputs.deeper[0].seconds == pytest.approx(0.001 * SHARED / QUIET)
    assert brought.deeper["forward"][0].seconds == pytest.approx(0.001 * SHARED / QUIET)
    assert normalized_to_running(brought) == brought


def test_waiting_follows_no_speed() -> None:
    sample = timing(0.010, SLOW, 0.1, wait=0.009)
    brought = normalized_to_running(timings_of(inputs=InputTimings(sample=sample), reference=QUIET)).inputs.sample
    assert brought.wait_seconds == 0.009
    assert brought.cpu_seconds == pytest.approx(0.001 * QUIET / SLOW)


def test_what_has_no_reference_stays() -> None:
    plain = timings_of(forward=timing(0.002), optimizer=timing(0.001))
    slower = plain.model_copy(update={"reference": SLOW})
    assert normalized_to_running(slower) == slower
    assert normalized_to_running(plain) is plain


PEAKS = Peaks(
    matmul_fp32_flops_per_second=1e12, memory_bytes_per_second=1e11, 
    pace_seconds=QUIET,
)  # fmt: skip


def products(step: float, reference: float | None = None) -> StageTimings:
    """A step of nothing but products, whose ceiling is 10 ms."""
    counted = Operator(name="aten::mm", seconds=step, flops=1e10, bytes=1e6, calls=9, kind="matmul")
    return timings_of(
        inputs=InputTimings(sample=timing(1e-9), collate=timing(1e-9)), operators=(counted,), reference=reference,
        forward=timing(step / 3), backward=timing(2 * step / 3), compute=timing(step),
        optimizer=timing(1e-9), operators_forward_share=1 / 3,
    )  # fmt: skip


@pytest.mark.parametrize(("step", "named"), [(0.011, None), (0.018, "backward")])
def test_a_step_is_held_to_its_ceiling(step: float, named: str | None) -> None:
    block = Block(steps=10, samples=40, seconds=10 * step)
    assert analyse(0, Plan(), products(step), block, PEAKS).bottleneck == named


def test_peaks_of_a_slower_moment_are_none() -> None:
    slow = PEAKS.model_copy(update={"pace_seconds": SLOW})
    found = stage_ceilings(products(0.011, QUIET), slow)["forward"]
    assert found == pytest.approx(stage_ceilings(products(0.011, QUIET), PEAKS)["forward"] * QUIET / SLOW)
    assert stage_ceilings(products(0.011, SLOW), PEAKS) == stage_ceilings(products(0.011, QUIET), PEAKS)


def test_a_reading_stands_for_a_moment() -> None:
    at = 0.0
    readings = iter([1.0, 2.0, 3.0])
    reference = ReferenceSpeed(probe=lambda: next(readings), clock=lambda: at, fresh=0.5)
    assert [reference.now(), reference.now()] == [1.0, 1.0]
    at = 0.6
    assert reference.now() == 2.0
    assert reference_seconds() > 0


def test_every_repeat_has_the_reference_beside_it() -> None:
    readings = itertools.cycle([QUIET, SLOW])
    reference = ReferenceSpeed(probe=lambda: next(readings), clock=itertools.count().__next__, fresh=0.0)
    one = repeat(lambda: None, 0.01, before=lambda: None, most=9, reference=reference)
    two, three = interleaved(
        [Microbenchmark(lambda: None, lambda: None)], 0.01, most=9, derived=(sum,), reference=reference
    )
    for found in (one, two, three):
        assert found.reference == pytest.approx(statistics.fmean([QUIET, SLOW]))
        assert found.sensitivity is not None
    assert repeat(lambda: None, 0.001).reference is None


def test_reading_the_reference_is_no_part_of_the_steps() -> None:
    block = Block(
        steps=3, samples=3, seconds=0.36, stage_seconds={"data": 0.06, "forward": 0.3}, step_seconds=(0.1, 0.13, 0.13)
    )
    found = without(block, [0.03, 0.03])
    assert found.seconds == pytest.approx(0.3)
    assert found.step_seconds == pytest.approx((0.1, 0.1, 0.1))
    assert found.stage_seconds == pytest.approx({"data": 0.0, "forward": 0.3})


def test_two_halves_are_one_block_at_the_speed_of_its_mean_step() -> None:
    first = Block(steps=30, samples=30, seconds=3.0, stage_seconds={"data": 1.0}, step_seconds=(0.1,) * 30,
                  peak_host_memory_bytes=5, cpu_seconds=1.0)  # fmt: skip
    second = Block(steps=10, samples=10, seconds=2.0, stage_seconds={"data": 0.5, "forward": 0.5},
                   step_seconds=(0.2,) * 10, peak_host_memory_bytes=9)  # fmt: skip
    both, reference = whole((first, QUIET), (second, SLOW))
    assert (both.steps, both.seconds, len(both.step_seconds)) == (40, 5.0, 40)
    assert both.stage_seconds == {"data": 1.5, "forward": 0.5}
    assert both.peak_host_memory_bytes == 5
    assert both.cpu_seconds is None
    assert joined(first, second.model_copy(update={"cpu_seconds": 0.5})).cpu_seconds == pytest.approx(1.5)
    uncounted = second.model_copy(update={"samples": None})
    assert joined(first, uncounted).samples is None, "a step is the unit then"
    assert reference == pytest.approx((3 * QUIET + SLOW) / 4)
    assert whole((first, QUIET)) == (first, QUIET)
    assert whole((first, QUIET), (second, None)) == (joined(first, second), None)


def test_a_live_training_is_read_beside_and_goes_on_as_it_was(plant: Callable[[str], Any]) -> None:
    planted = plant("def build():\n    return workload()")
    training = planted.training()
    block, reference = running_block(training, 0.02, 6)
    assert block.steps >= 6
    assert len(block.step_seconds) == block.steps
    assert reference is not None
    found = StageTimings.model_validate(measure_stages(SimpleNamespace(training=training), seconds=0.3))
    timed = (found.forward, found.backward, found.optimizer, found.evaluate, found.inputs.sample, found.inputs.collate)
    assert all(one is not None and None not in (one.reference, one.sensitivity) for one in timed)
