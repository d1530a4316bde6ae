"""Trials on a CUDA device that go wrong: a plain verdict, the process gone, its memory back, the next one well."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from autoopt.errors import TrialFailed
from autoopt.records import Change, Plan
from autoopt.records.protocol import TrialSpec
from autoopt.search.compare.arm import TrialArm
from autoopt.search.compare.comparison import Decision, Rule
from autoopt.search.compare.contest import compare
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial

pytestmark = [pytest.mark.gpu, pytest.mark.cuda_only]

WORKLOADS = Path(__file__).parent / "cuda_workloads.py"
TASKS = "autoopt.benchmark.tasks"
NEARLY = 64 << 20
"""Bytes that a driver may still keep of a process that has just gone."""

Start = Callable[..., LocalTrial]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with Launcher() as launcher:

        def begin(name: str = "build", plan: Plan | None = None, flags: dict[str, Any] | None = None) -> LocalTrial:
            spec = TrialSpec(
                workload=f"{WORKLOADS}:{name}",
                device="cuda:0",
                directory=str(tmp_path),
                plan=plan or Plan(),
                flags=flags or {},
            )
            return launcher.start(spec, log=tmp_path / "trial.log", timeout=120)

        yield begin


def free_bytes() -> int:
    """Free memory of the device once it has stopped rising."""
    before = -1
    while (now := torch.cuda.mem_get_info(0)[0]) > before:
        before = now
        time.sleep(0.2)  # the driver takes back the memory of a process in its own time
    return before


@pytest.mark.parametrize(
    ("fault", "kind", "timeout"),
    [("out_of_memory", "out_of_memory", 120), ("device_assert", "crashed", 120), ("illegal_access", "crashed", 120),
     ("hang", "timeout", 20)],
)  # fmt: skip
def test_a_fault_is_a_verdict_and_leaves_nothing(
    fault: str, kind: str, timeout: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = free_bytes()
    monkeypatch.setenv("CUDA_FAULT", fault)
    trial = start()
    with pytest.raises(TrialFailed) as failed:
        trial.call(f"{TASKS}:probe_losses", timeout=timeout, steps=10)
    assert failed.value.kind == kind
    assert failed.value.message
    trial.close()
    assert not psutil.pid_exists(trial.ranks[0].pid)
    assert free_bytes() >= before - NEARLY
    monkeypatch.setenv("CUDA_FAULT", "")
    with start() as following:
        assert len(following.call(f"{TASKS}:probe_losses", timeout=120, steps=4)["losses"]) == 4


def test_the_server_that_trials_are_forked_from_holds_no_device(start: Start) -> None:
    """Else the second trial could not use it."""
    with start() as first, start() as second:
        for trial in (first, second):
            assert trial.call(f"{TASKS}:run_block", timeout=120, seconds=0.1)["steps"] > 0


def test_a_frozen_trial_goes_on_where_it_was(start: Start) -> None:
    with start() as trial:
        trial.call(f"{TASKS}:run_block", timeout=120, seconds=0.1)
        trial.freeze()
        trial.thaw()
        assert trial.call(f"{TASKS}:run_block", timeout=120, seconds=0.1)["steps"] > 0


def test_contenders_that_do_not_fit_together_alternate(start: Start) -> None:
    def arm(plan: Plan, label: str) -> TrialArm:
        return TrialArm(start("build_large", plan), plan)

    rule = Rule(max_seconds=120, min_pairs=1, max_pairs=1, block_seconds=0.05, warm_up_seconds=2)
    found = compare(arm, Plan(), Plan(), rule, clock=time.monotonic)
    assert found.mode == "alternating"
    assert found.decision is not Decision.FAILED


def test_expandable_segments_are_set_before_torch_is_imported(start: Start) -> None:
    plan = Plan(changes=(Change(strategy="allocator", setting={"expandable_segments": True}),))
    with start(plan=plan, flags={"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}) as trial:
        assert len(trial.call(f"{TASKS}:probe_losses", timeout=120, steps=4)["losses"]) == 4
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ


def test_a_trial_tells_how_the_device_was_used(start: Start) -> None:
    pytest.importorskip("pynvml")
    with start() as trial:
        told = trial.call(f"{TASKS}:monitored_block", timeout=120, seconds=1.0)
    monitor = told["monitor"]
    if "device_utilization" not in monitor:
        pytest.skip("NVML does not answer on this machine")
    assert 0 <= monitor["device_utilization"] <= 1
    assert monitor["power_watts"] > 0
    assert monitor["clock_hertz"] > 1e8
    assert 0 <= monitor["throttled"] <= 1
    assert isinstance(told["other_users"], list)
