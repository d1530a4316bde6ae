"""The benchmark of predictions: its cases fit the registry, and its table says what its documents hold."""

from __future__ import annotations

from typing import Any

import pytest

from autoopt.records import Estimate, Peaks, Plan, Resource, Round, Stage
from autoopt.records.messages import Block
from autoopt.search.compare.comparison import Comparison, Decision
from autoopt.simplify.stage_profile import Description, StageProfile
from autoopt.simplify.stage_timings import InputTimings, StageTimings, Timing
from autoopt.testing.strategies import sample_case
from benchmarks.prediction import __main__ as prediction
from benchmarks.prediction import table as prediction_table
from benchmarks.prediction.cases import CHANGES
from benchmarks.prediction.planted import plants


def timing(seconds: float) -> Timing:
    return Timing(seconds=seconds, low=seconds, high=seconds, n=9, cpu_seconds=seconds, wait_seconds=0.0)


def timings() -> StageTimings:
    """A step of 10 ms: 8 ms of preparation, 2 ms of the rest."""
    return StageTimings(
        device="cpu", cores=2, threads=1, workers=0, batch_size=8, compute_by_threads={1: 0.002, 2: 0.001},
        inputs=InputTimings(sample=timing(0.001), collate=timing(0.0)), forward=timing(0.001), backward=timing(0.0005),
        forward_backward=timing(0.0015), optimizer=timing(0.0005), compute=timing(0.002), host=timing(0.0),
    )  # fmt: skip


def block(step: float = 0.010) -> Block:
    return Block(steps=100, samples=800, seconds=100 * step)


def documents() -> dict[str, Any]:
    """A planted pipeline, a workload and one change of it, as if they were measured."""
    case = sample_case()
    profile = StageProfile(
        plan=Plan(),
        startup={"build_seconds": 0, "setup_seconds": 0, "warmup_seconds": 0, "warmup_steps": 0, "steady": True,
                 "fixed_seconds": 0},
        block=block(),
        timings=timings().model_dump(),
    )  # fmt: skip
    description = Description(facts=case.workload, environment=case.environment)
    estimate = Estimate(value=1.1, low=1.05, high=1.15, n=3)
    comparison = Comparison(decision=Decision.ACCEPT, estimate=estimate)
    threads = next(c for c in CHANGES if (c.workload, c.strategy) == ("digits", "threads"))
    refused = next(c for c in CHANGES if (c.workload, c.strategy) == ("digits", "prepared_samples"))
    found = {
        "plant:preparation": {"timings": timings().model_dump(), "block": block().model_dump(),
                              "peaks": Peaks().model_dump()},
        "step:digits:0": {"description": description.model_dump(),
                          "profile": profile.model_dump()},
        threads.name: {"comparison": comparison.model_dump()},
        refused.name: {"refused": "samples are rows already"},
    }  # fmt: skip
    return {name: {"name": name, "load_before": 0.1, **document} for name, document in found.items()}


def test_what_was_disturbed_is_measured_again_after_what_is_missing() -> None:
    done = {
        "plant:a": {"foreign_cores": 0.01},
        "plant:b": {"foreign_cores": 0.9},
        "step:c:0": {"profile": {"foreign_cores": 1.2}},
        "gain:d": {"comparison": {}},
        "plant:e": {"foreign_cores": None},
    }
    wanted = [*done, "plant:new"]
    assert prediction.missing(wanted, done) == ["plant:new", "plant:b", "step:c:0"]


def test_there_are_twelve_plants_and_their_lines_are_found() -> None:
    found = list(plants())
    assert len(found) == 12
    assert all(plant.line is not None for plant in found if plant.marked)


def test_the_table_sets_what_is_predicted_beside_what_was_measured() -> None:
    found = prediction_table.tables(documents())
    (planted,), (step,) = found["planted"], found["steps"]
    assert planted["right"]
    assert step["error"] == pytest.approx(0.0, abs=1e-6)
    gains = {row["name"].split("(")[0]: row for row in found["gains"]}
    assert gains["digits:threads"]["predicted"] == pytest.approx(1.0)
    assert gains["digits:threads"]["error"] == pytest.approx(1 / 1.1 - 1)
    assert [row["error"] for row in found["gains"] if "prepared_samples" in row["name"]] == [None]
    assert found["summary"]["compute_gain_error_median"] == pytest.approx(1 - 1 / 1.1)
    assert "samples are rows already" in prediction_table.text(found)


def test_the_first_look_is_scored_and_the_repeat_stands_beside_it() -> None:
    done = documents()
    name = next(name for name in done if name.startswith("plant:"))
    slow = timings().model_copy(update={"forward": timing(0.05), "forward_backward": timing(0.0505)})
    calm = {key: value for key, value in done[name].items() if key not in ("name", "load_before")}
    done[name] = {**done[name], "timings": slow.model_dump(), "looks": 2, "again": calm}
    found = prediction_table.tables(done)
    (planted,) = found["planted"]
    assert abs(planted["error"]) > abs(planted["error_again"])
    summary = found["summary"]
    assert summary["step_error_worst"] == pytest.approx(abs(planted["error"]))
    assert summary["step_error_worst_again"] < summary["step_error_worst"]


def test_a_stage_faster_than_its_ceiling_is_counted() -> None:
    peaks = Peaks(memory_bytes_per_second=1.0)
    slow = timings().model_copy(update={"optimizer_bytes": 10})
    round_ = Round(
        index=0, plan=Plan(), step_seconds=0.01,
        stages=(Stage(name="optimizer", resource=Resource.DEVICE, seconds=0.0005),),
    )  # fmt: skip
    assert prediction_table.violations(round_, slow, peaks, 0.01) != []
