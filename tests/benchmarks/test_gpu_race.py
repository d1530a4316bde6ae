"""The race of benchmarks/gpu: arms take turns, alone where they must, until a deadline."""

from __future__ import annotations

import math
import signal
from typing import Any

import pytest

from autoopt.records import Change, Plan
from benchmarks.gpu import race as gpu_race

PLAN = Plan(changes=(Change(strategy="threads", setting={"threads": 1}),))


class FakeProcess:
    """An arm of known speed and size on a device that holds ``Device.room`` bytes."""

    def __init__(self, device: FakeDevice, name: str) -> None:
        self.device, self.name, self.running = device, name, True
        device.started.append(name)

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        assert self.running, "asked while it was stopped"
        self.device.held[self.name] = self.device.sizes[self.name]
        if sum(self.device.held.values()) > self.device.room:
            raise gpu_race.RivalFailedError("out_of_memory: no room")
        steps = arguments.get("steps", 0)
        return {"steps": steps, "samples": 10 * steps, "seconds": steps * 0.1, "loss": 1.0, "peak_memory_bytes": 5}

    def signal(self, number: int) -> None:
        self.running = number == signal.SIGCONT

    def close(self) -> None:
        self.device.held.pop(self.name, None)


class FakeDevice:
    def __init__(self, room: int, **sizes: int) -> None:
        self.room, self.sizes = room, sizes
        self.held: dict[str, int] = {}
        self.started: list[str] = []

    def race(self, **options: Any) -> gpu_race.Race:
        return gpu_race.Race(lambda name: FakeProcess(self, name), steps=4, warm=1, **options)


def test_contenders_that_fit_stay_alive_and_take_turns() -> None:
    device = FakeDevice(10, a=4, b=5)
    found = device.race().run(("a", "b"), rounds=3)
    assert device.started == ["a", "b"]
    assert found["a"]["steps"] == found["b"]["steps"] == 12
    assert found["a"]["samples_per_second"] == pytest.approx(100)
    assert not device.held


def test_contenders_that_do_not_fit_together_run_alone() -> None:
    device = FakeDevice(10, a=8, b=9)
    found = device.race().run(("a", "b"), rounds=2)
    assert found["a"]["alone"]
    assert found["a"]["blocks"] == found["b"]["blocks"] == 2


def test_no_turn_starts_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(gpu_race, "perf_counter", lambda: float(next(now)))
    device = FakeDevice(10, a=1, b=1, c=1)
    found = device.race(deadline=6.0).run(("a", "b", "c"), rounds=5)
    assert found["a"]["blocks"] == 1
    assert found["c"] == {"failed": "not measured: the time was up"}
    assert "c" not in device.started


def test_time_to_the_target_is_shared_out_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(gpu_race, "perf_counter", lambda: now[0])
    asked: list[float] = []

    class Process:
        def call(self, name: str, timeout: float, **arguments: Any) -> dict[str, Any]:
            if name:
                asked.append(arguments["max_seconds"])
                now[0] += 50.0
            return {"seconds": 50.0, "reached": True, "metric": 0.9}

        def close(self) -> None:
            pass

    found = gpu_race.to_target(lambda name: Process(), ("a", "b", "c"), 0.9, "accuracy", 5, deadline=90.0)
    assert asked == [30.0, 20.0]
    assert found["c"] == {"failed": "not measured: the time was up"}


def test_contenders_race_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    race = gpu_race.Race(lambda name: gpu_race.Process("tiny", name, "cpu", True, PLAN), steps=3, warm=1)
    found = race.run(("untouched", "autoopt"), rounds=2)
    assert {name: row["steps"] for name, row in found.items()} == {"untouched": 6, "autoopt": 6}
    assert all(math.isfinite(row["loss"]) for row in found.values())
