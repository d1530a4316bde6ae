"""The whole loop in simulated time on a workload whose ceiling is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoopt.records import JsonDict, Operator, Peaks, StopReason, Verdict
from autoopt.simplify.stage_timings import InputTimings, StageTimings, Timing
from autoopt.testing.fakes import Behaviour
from simulated import World, product, strategy, verdicts

PEAK = 1e11
CEILING = 0.0375
"""Seconds of a step at the peak; the baseline takes 0.05."""


def timing(seconds: float) -> Timing:
    return Timing(seconds=seconds, low=seconds, high=seconds, n=9, cpu_seconds=seconds, wait_seconds=0.0)


def survey_of(behaviour: Behaviour) -> JsonDict:
    """All of the step is forward and backward, whose arithmetic takes ``CEILING`` at the peak."""
    step = behaviour.step_seconds
    products = Operator(name="aten::mm", seconds=step, flops=PEAK * CEILING, bytes=1e6, calls=9, kind="matmul")
    return StageTimings(
        device="cpu", cores=2, threads=2, workers=0, batch_size=32, batch_bytes=1000, operators=(products,),
        inputs=InputTimings(sample=timing(1e-9), collate=timing(1e-9)), forward=timing(step / 3),
        backward=timing(2 * step / 3), forward_backward=timing(step), optimizer=timing(1e-6), compute=timing(step),
        operators_forward_share=1 / 3,
    ).model_dump()  # fmt: skip


def world(directory: Path, speed: float) -> World:
    made = World(directory, strategy("quick"), strategy("sharp", stages={"forward", "backward"}),
                 speed=product({"quick": speed, "sharp": 1.0}), budget=900.0)  # fmt: skip
    made.runner.survey = survey_of
    made.runner.peaks = Peaks(matmul_fp32_flops_per_second=PEAK, memory_bytes_per_second=1e12).model_dump()
    return made


def test_the_search_ends_at_the_ceiling(tmp_path: Path) -> None:
    outcome = world(tmp_path, 0.05 / CEILING / 1.01).go()
    assert outcome.stop.reason is StopReason.AT_THE_CEILING
    told = re.search(r"a step takes ([0-9.]+) ms, its ceiling here is ([0-9.]+) ms", outcome.stop.detail)
    assert told is not None
    assert float(told[2]) == pytest.approx(min(1e3 * CEILING, float(told[1])), rel=1e-3), "no step is below its ceiling"
    assert outcome.state.rounds[0].bottleneck == "backward"
    assert outcome.state.rounds[-1].bottleneck is None
    assert verdicts(outcome)["quick"] == [Verdict.KEPT]


def test_at_the_ceiling_the_time_that_was_short_for_the_rest_is_not_the_reason(tmp_path: Path) -> None:
    """Strategies that predict nothing are tried all the same; whether all came to their turn does not matter."""
    names = [f"unknown_{number}" for number in range(16)]
    made = World(
        tmp_path,
        *(strategy(name) for name in names),
        speed=product(dict.fromkeys(names, 1.0)),
        behave=lambda plan, behaviour: Behaviour(step_seconds=1.05 * CEILING),
        budget=100.0,
    )
    made.runner.survey = survey_of
    made.runner.peaks = Peaks(matmul_fp32_flops_per_second=PEAK, memory_bytes_per_second=1e12).model_dump()
    outcome = made.go()
    assert outcome.state.rounds[0].bottleneck is None
    assert [Verdict.NOT_TRIED] in verdicts(outcome).values()
    assert outcome.stop.reason is StopReason.AT_THE_CEILING


def test_below_the_ceiling_it_ends_for_another_reason(tmp_path: Path) -> None:
    assert world(tmp_path, 1.0).go().stop.reason is StopReason.EXHAUSTED


def test_at_the_ceiling_what_cannot_pay_is_not_tried_and_the_report_says_why(tmp_path: Path) -> None:
    made = World(tmp_path, strategy("sharp", stages={"forward", "backward"}), speed=product({"sharp": 1.0}))
    made.runner.peaks = Peaks(matmul_fp32_flops_per_second=PEAK, memory_bytes_per_second=1e12).model_dump()
    made.runner.survey = lambda _: survey_of(Behaviour(step_seconds=CEILING * 1.005))
    (trial,) = made.go().state.all_trials()
    assert trial.verdict is Verdict.NOT_TRIED
    assert trial.reason.startswith("cannot pay: at the very best 1.02")
