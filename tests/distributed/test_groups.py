"""Processes that train together: what they train is what one trains, and they live and die as one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autoopt.benchmark.cputime import stat
from autoopt.errors import TrialFailed
from autoopt.options import make_options
from autoopt.records import Plan
from autoopt.records.distributed import Communication
from autoopt.records.messages import Block
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.running.profile import profile
from autoopt.search.planner import Choice
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial
from tests.distributed.conftest import HERE, TWO, Start, alone, losses, trained
from tests.script.conftest import block_of

TASKS = "autoopt.benchmark.tasks"


@pytest.mark.parametrize("name", ["build", "accumulating", "one_loader", "tiny_last"])
def test_two_train_what_one_trains(start: Start, name: str) -> None:
    """Step for step, through short last batches and epochs' ends: nothing is padded, and nothing read twice."""
    assert losses(start, name=name, steps=40) == pytest.approx(alone(start, name, 40), rel=1e-4)


def test_a_loader_that_shares_out_by_itself_is_left_alone(start: Start) -> None:
    """``DistributedSampler`` reads each process's own part, of a batch as large as the user says."""
    block = block_of(start(name="own_sampler"), 4)
    assert block.samples == 4 * 2 * 16


def test_a_block_is_that_of_all(two: LocalTrial) -> None:
    block = Block.model_validate(two.call(f"{TASKS}:run_block", timeout=60, seconds=0.2, min_steps=20))
    assert block.steps >= 20
    assert block.samples == pytest.approx(block.steps * 250 / 16, rel=0.05)
    assert len(block.losses) == len(block.step_seconds) == block.steps
    assert sum(block.step_seconds) >= block.seconds * 0.9


def test_frozen_processes_stand_still_together(two: LocalTrial) -> None:
    two.freeze()
    pids = [rank.pid for rank in two.ranks]
    end = time.monotonic() + 10
    while [stat(pid)[0] for pid in pids] != ["T", "T"]:
        assert time.monotonic() < end
    block = block_of(two, 3)
    assert block.steps == 3


def test_a_training_goes_to_its_end_and_evaluates_all_samples(start: Start) -> None:
    two, one = (trained(start, plan) for plan in (TWO, Plan()))
    assert [(run.steps, run.samples, run.evaluated_samples) for run in (two, one)] == [(48, 750, 100)] * 2
    assert two.curve.points[-1].metric == pytest.approx(one.curve.points[-1].metric, abs=0.011)
    assert two.losses == pytest.approx(one.losses, rel=2e-3)


def test_legs_and_warm_up_end_at_the_same_step_in_both(two: LocalTrial) -> None:
    assert two.call(f"{TASKS}:warm_up", timeout=90, max_seconds=2.0)["warmup_steps"] > 0
    over = False
    while not over:
        over = two.call(f"{TASKS}:train_leg", timeout=90, seconds=0.02, max_seconds=60.0)["over"]


def test_what_is_looked_at_in_one_process_leaves_the_group_as_it_was(two: LocalTrial) -> None:
    timings = two.call("autoopt.simplify.tasks:measure_stages", timeout=90, seconds=1.0)
    assert timings["backward"]["seconds"] > 0
    assert two.call(f"{TASKS}:flops", timeout=60)["flops_per_step"] > 0
    found = two.call(f"{TASKS}:inspect", timeout=60, strategies=["amp", "flash_attention"])
    assert not any("error" in each for each in found.values())
    assert block_of(two, 3).steps == 3


@contextmanager
def leaves_nothing(group: LocalTrial) -> Iterator[None]:
    """The processes of all ranks are gone afterwards, with those above and below them, and so is its folder."""
    above = [psutil.Process(rank.pid).parent() for rank in group.ranks]
    processes = [each for one in above if one is not None for each in (one, *one.children(recursive=True))]
    yield
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert not all(rank.alive for rank in group.ranks)
    assert not Path(group._folder).exists()


@pytest.mark.parametrize(
    ("fault", "timeout", "kind", "said"),
    [
        ("kill:1", 60, "crashed", r"rank 1 of 2: signal 9"),
        ("kill:0", 60, "crashed", r"rank 0 of 2: signal 9"),
        ("raise:1", 60, "error", r"rank 1 of 2: ValueError: a bad sample"),
        ("hang:1", 3, "timeout", r"rank 1 of 2 hangs at .*: no answer within 3 s"),
    ],
)
def test_a_dead_or_hung_rank_is_a_verdict_that_names_it(
    start: Start, fault: str, timeout: int, kind: str, said: str
) -> None:
    group = start(POINTS_FAULT=fault)
    with leaves_nothing(group), pytest.raises(TrialFailed, match=said) as caught:
        group.call(f"{TASKS}:probe_losses", timeout=timeout, steps=20)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("name", "said"),
    [("stream", "cannot be shared out between processes"), ("by_method", "does not call the model itself")],
)
def test_what_cannot_train_in_several_processes_is_refused(start: Start, name: str, said: str) -> None:
    with pytest.raises(TrialFailed, match=said):
        start(name=name).call(f"{TASKS}:probe_losses", timeout=60, steps=1)


def test_parameters_without_a_gradient_are_found_and_told(start: Start) -> None:
    found = start(Plan(), name="unused").call(f"{TASKS}:inspect", timeout=60, strategies=["ddp"])
    assert found["ddp"]["unused"] == ["never.weight", "never.bias"]


def test_messages_are_measured_alone_exposed_and_by_size_and_a_slow_rank_is_named(start: Start) -> None:
    group = start(POINTS_FAULT="slow:1")
    found = Communication.model_validate(group.call("autoopt.simplify.tasks:measure_messages", timeout=90, seconds=1.0))
    assert found.processes == 2
    assert found.gradient_bytes == 4 * (8 * 16 + 16 + 16 * 16 + 16 + 16 * 4 + 4)
    assert len(found.by_size) == 8
    assert found.straggler == 1
    assert found.apart[1].median > 0.02
    assert block_of(group, 3).steps == 3


@pytest.mark.parametrize(("name", "layers"), [("normalized", 1), ("build", 0)])
def test_what_batchnorm_over_all_processes_adds_is_measured(start: Start, name: str, layers: int) -> None:
    """With messages and the statistics of all, with messages and each one's own, and without messages, in turns."""
    task = "autoopt.simplify.tasks:measure_messages"
    found = Communication.model_validate(start(name=name).call(task, timeout=90, seconds=0.5))
    assert found.synchronized_layers == layers
    assert (found.synchronized_seconds is not None) is bool(layers)


# ``autoopt profile --nproc 2``: messages are a stage of the round, and strategies are asked of two processes.


@pytest.mark.slow
def test_messages_are_a_stage_of_the_profile(launcher: Launcher, tmp_path: Path) -> None:
    registry = load_strategies()
    base = TrialSpec(workload=f"{HERE / 'points.py'}:unused", directory=str(tmp_path))
    runner = TrialRunner(launcher, base, registry, tmp_path / "logs")
    found = profile(runner, make_options({"nproc": "2", "budget": "6s", "device": "cpu"}), Choice())
    assert found.baseline.plan.setting("ddp") == {"processes": 2, "find_unused": True}
    stage = next(stage for stage in found.round.stages if stage.name == "communication")
    assert stage.seconds > 0
    assert stage.exposed_seconds is not None
    assert stage.ceiling_seconds is not None
    told = {each.strategy: each for each in found.predictions}
    assert told["ddp_options"].applies
    assert not told["ddp"].applies
