"""Readings of a CUDA device while a plan trains, and doubts about them; a fake trial answers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from autoopt.records import Environment, Plan
from autoopt.search.configuration import configuration
from autoopt.simplify.stage_profile import StageProfile, profile_stages

BLOCK = {"steps": 10, "samples": 80, "seconds": 1.0, "step_seconds": [0.1] * 10}
STARTUP = {
    "build_seconds": 0.1, "setup_seconds": 0.1, "warmup_seconds": 0.1, "warmup_steps": 1, "steady": True,
    "fixed_seconds": 0.3,
}  # fmt: skip


class FakeBench:
    """Trials that answer from a table, and note what they were asked."""

    registry: tuple[str, ...] = ()

    def __init__(self, **answers: Any) -> None:
        self.answers = {"warm_up": STARTUP, "running": {"block": BLOCK, "reference": None}, **answers}
        self.asked: list[str] = []

    @contextmanager
    def trial(self, plan: Plan, label: str) -> Any:
        yield self

    def call(self, task: str, **arguments: Any) -> Any:
        name = task.rpartition(":")[2]
        self.asked.append(name)
        return self.answers.get(name, {})


def build_round(bench: FakeBench) -> StageProfile:
    return profile_stages(bench, Plan(), seconds=4.0, advise=False)  # type: ignore[arg-type]


def test_a_cuda_device_is_watched() -> None:
    monitor = {"device_utilization": 0.8, "energy_joules": 50.0, "throttled": 0.5}
    bench = FakeBench(
        measure_stages={"device": "cuda"}, monitored_block={"block": BLOCK, "monitor": monitor, "other_users": [7]}
    )
    found = build_round(bench)
    shown = configuration(Plan(), Environment(python="3.12", device="cuda:0"), examined=found)
    assert (shown.device_utilization, shown.energy_joules_per_step) == (0.8, 5.0)
    assert "pid 7" in found.doubts[0]
    assert "50%" in found.doubts[1]


def test_what_it_does_not_tell_is_none() -> None:
    bench = FakeBench(
        measure_stages={"device": "cuda"}, monitored_block={"block": BLOCK, "monitor": {}, "other_users": []}
    )
    found = build_round(bench)
    shown = configuration(Plan(), Environment(python="3.12", device="cuda:0"), examined=found)
    assert shown.device_utilization is None
    assert shown.energy_joules_per_step is None
    assert found.doubts == []


def test_the_cpu_is_not() -> None:
    bench = FakeBench(measure_stages={"device": "cpu"})
    assert build_round(bench).monitor == {}
    assert "monitored_block" not in bench.asked
