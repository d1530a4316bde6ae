"""Tasks answer with documents that read back, whatever the workload is."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from autoopt.benchmark import tasks
from autoopt.benchmark.device import Device, open_device, resolve_device
from autoopt.benchmark.environment import cpu_quota, environment, usable_cores, usable_ram
from autoopt.benchmark.facts import Samples
from autoopt.benchmark.trace import read_profile, readable_trace
from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.errors import EnvironmentLacks
from autoopt.records import Change, Environment, Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block, Ready, Startup, TrainingRun
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry, Source
from autoopt.setup import Setup
from autoopt.strategy import Strategy
from autoopt.workload import Workload

TINY = str(Path(__file__).parents[1] / "workloads" / "tiny.py") + ":build"


class Halved(Strategy):
    name = "halved"

    def apply(self, setup: Setup, setting: dict[str, Any]) -> Setup:
        return setup.with_batch(size=16)

    def inspect(self, live: Any) -> dict[str, Any]:
        return {"layers": len(list(live.workload.model.modules()))}


class Crashing(Halved):
    name = "crashing"

    def inspect(self, live: Any) -> dict[str, Any]:
        raise KeyError("nothing here")


def live(monkeypatch: pytest.MonkeyPatch, plan: Plan | None = None, seed: int = 0, **knobs: Any) -> TrialContext:
    for name, value in knobs.items():
        monkeypatch.setenv(f"TINY_{name.upper()}", str(value))
    registry = Registry([Source(Halved(), "test"), Source(Crashing(), "test")])
    return TrialContext(TrialSpec(workload=TINY, plan=plan or Plan(), seed=seed), registry)


def test_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Ready.model_validate_json(json.dumps(tasks.ready(live(monkeypatch))))
    facts = ready.facts
    assert (facts.train_samples, facts.batch_size, facts.steps_per_epoch, facts.max_steps) == (512, 32, 16, 60)
    assert facts.parameters == 16 * 32 + 32 + 32 * 2 + 2
    assert facts.dataset.deterministic is True
    assert facts.dataset.sample_bytes == 16 * 4 + 8
    assert facts.loader.custom_collate
    assert facts.loader.shuffle
    assert [tensor.shape for tensor in facts.batch] == [(32, 16), (32,)]
    assert facts.static_shapes is True
    assert facts.optimizer.options["momentum"] == 0.9
    assert (facts.metric, facts.mode, facts.target, facts.valid_samples) == ("accuracy", "max", 0.9, 128)


class Seeded(Dataset):
    """Samples are drawn, the first one from a seed of the dataset's own."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            torch.manual_seed(5)
        return torch.randn(3)


def test_one_sample_that_repeats_does_not_make_a_dataset_deterministic() -> None:
    model = nn.Linear(3, 1)
    workload = Workload(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=lambda model, batch: model(batch).mean(),
        train_data=DataLoader(Seeded(), batch_size=1),
    )
    assert Samples(workload).deterministic() is False


def test_facts_are_the_users_under_any_plan_and_training_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(changes=(Change(strategy="halved"),))
    facts = WorkloadFacts.model_validate(tasks.facts(live(monkeypatch, plan)))
    assert facts.batch_size == 32
    looked, plain = live(monkeypatch), live(monkeypatch)
    tasks.facts(looked)
    assert tasks.probe_losses(looked, 5)["losses"] == tasks.probe_losses(plain, 5)["losses"]


def test_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block.model_validate(tasks.run_block(live(monkeypatch), 0.01, min_steps=7))
    assert block.steps >= 7
    assert block.samples == block.steps * 32
    assert len(block.step_seconds) == len(block.losses) == block.steps
    assert sum(block.stage_seconds.values()) == pytest.approx(block.seconds)
    assert block.peak_memory_bytes


def test_the_ramp_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    it = live(monkeypatch)
    block = Block.model_validate(tasks.run_block(it, 0.0, min_steps=3, ramp_seconds=0.01))
    assert block.steps == 3
    assert block.first_step > 0


def test_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    startup = Startup.model_validate(tasks.warm_up(live(monkeypatch), max_seconds=5))
    assert startup.warmup_steps == len(startup.losses) > 8
    assert startup.fixed_seconds >= startup.build_seconds + startup.setup_seconds
    short = Startup.model_validate(tasks.warm_up(live(monkeypatch), max_seconds=0.0))
    assert short.warmup_steps == len(short.losses) < startup.warmup_steps


def trained(it: TrialContext, **arguments: Any) -> TrainingRun:
    document = json.dumps(tasks.train(it, max_seconds=30, **arguments), allow_nan=False)
    return TrainingRun.model_validate_json(document)


def test_training_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(live(monkeypatch))
    assert run.reached
    assert run.stopped == "target"
    assert run.curve.steps_to_target == run.curve.points[-1].step
    assert run.steps % 16 == 0
    assert run.seconds == pytest.approx(run.training_seconds + run.evaluation_seconds)
    assert run.evaluated_samples == 128


def test_training_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(live(monkeypatch, target="none"), max_steps=20)
    assert (run.reached, run.stopped, run.steps, run.evaluations) == (None, "steps", 20, 2)
    missed = trained(live(monkeypatch), max_steps=5, target=2.0)
    assert (missed.reached, missed.curve.seconds_to_target) == (False, None)
    assert trained(live(monkeypatch), confirm=1, target=0.5).evaluations == 2


def test_training_starts_from_the_first_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    it = live(monkeypatch, target="none")
    first = trained(it, max_steps=10).losses
    assert trained(it, max_steps=10).losses == first


@pytest.mark.parametrize("fault", ["nan_in_loss", "inf_in_loss"])
def test_a_loss_that_is_not_finite_is_none_and_told(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    run = trained(live(monkeypatch, fault=fault, target="none"))
    assert not run.finite
    assert run.losses[2] is None
    assert run.losses[0] is not None
    assert run.stopped == "not_finite"


def test_flops_of_the_step_and_no_trace_of_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    it = live(monkeypatch)
    before = [p.clone() for p in it.training.model.parameters()]
    flops = tasks.flops(it)
    forward = 2 * 32 * (16 * 32 + 32 * 2)
    assert flops["flops_per_step"] == 3 * forward - 2 * 32 * 16 * 32, "the input needs no gradient"
    assert all(torch.equal(a, b) for a, b in zip(before, it.training.model.parameters(), strict=True))


def test_what_strategies_find_and_one_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    it = live(monkeypatch)
    assert tasks.inspect(it, ["halved", "crashing"]) == {
        "halved": {"layers": 4},
        "crashing": {"error": "KeyError: 'nothing here'"},
    }
    assert tasks.facts(it)["inspected"]["halved"] == {"layers": 4}


def test_the_largest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tasks.largest_batch(live(monkeypatch), batches=5)
    assert found["peak_memory_bytes"] <= found["limit_bytes"]


def test_a_trace_is_written_and_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = tasks.trace(live(monkeypatch), str(tmp_path), steps=3)
    with gzip.open(written["raw"], "rt") as file:
        assert "traceEvents" in json.load(file)
    profile = read_profile(written["readable"])
    assert profile["shares"]["DataLoader"] > 0
    assert sum(profile["shares"].values()) == pytest.approx(1.0, abs=0.02)


def test_categories_are_renamed_and_nothing_else() -> None:
    events = [
        {"cat": "fwdbwd", "ph": "s"},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel"},
        {"cat": "cuda_driver"},
        {"cat": "user_annotation", "name": "ProfilerStep#3"},
        {"cat": "user_annotation", "name": "enumerate(DataLoader)#__next__"},
        {"cat": "kernel", "name": "gemm"},
        {"ph": "M"},
    ]
    named = readable_trace({"traceEvents": events, "schemaVersion": 1})
    expected = ["forward_backward", "runtime", "runtime", "user_annotation", "cpu_op", "kernel", None]
    assert [event.get("cat") for event in named["traceEvents"]] == expected
    assert events[0]["cat"] == "fwdbwd"
    assert named["schemaVersion"] == 1


def test_the_environment_reads_back() -> None:
    found = Environment.model_validate_json(environment("cpu").model_dump_json())
    assert found.torch == torch.__version__
    assert found.cores
    assert found.ram_bytes


def test_limits_of_a_container(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert cpu_quota(tmp_path) == 1.5
    assert usable_cores(tmp_path) == 1
    assert usable_ram(tmp_path) == 1 << 30
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu_quota(tmp_path) is None
    assert usable_ram(tmp_path) > 1 << 30


def test_a_device_that_is_not_there() -> None:
    assert resolve_device("cpu").type == "cpu"
    for name in ("cuda:99", "tpu", ""):
        with pytest.raises(EnvironmentLacks, match="there is no device") as caught:
            resolve_device(name)
        assert "cpu" in caught.value.hint


def memory_workload(hidden: int, batch: int) -> Workload:
    x = torch.randn(256, 64)
    return Workload(
        model=nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 1)),
        train_data=torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
        batch_size=batch,
        loss=nn.MSELoss(),
        optimizer=lambda params: torch.optim.Adam(params),
        max_steps=10,
    )


def test_a_memory_limit_on_the_cpu_is_met_by_the_batch_that_is_too_large() -> None:
    peaks = {}
    for batch in (16, 64, 256):
        training = Training(memory_workload(512, batch), device=open_device("cpu", 1 << 40))
        for _ in range(3):
            training.step(training.next())
        peaks[batch] = training.device.peak_bytes() or 0
    weights = (64 * 512 + 512 + 512 + 1) * 4
    assert peaks[16] > 4 * weights  # weights, gradients, two of Adam's
    assert peaks[16] < peaks[64] < peaks[256]
    assert peaks[256] - peaks[64] > 192 * 512 * 4
    limit = (peaks[64] + peaks[256]) // 2
    fitting = Training(memory_workload(512, 64), device=open_device("cpu", limit))
    for _ in range(6):
        fitting.step(fitting.next())
    too_large = Training(memory_workload(512, 256), device=open_device("cpu", limit))
    with pytest.raises(torch.OutOfMemoryError, match="the limit is"):
        too_large.step(too_large.next())


def test_a_model_that_does_not_fit_fails_when_it_is_assembled() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        Training(memory_workload(512, 16), device=open_device("cpu", 1000))


def test_numbers_that_are_not_finite_never_reach_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    it = live(monkeypatch)
    evaluation: Any = it.training.evaluation
    evaluation._evaluate = lambda model, batches: {"accuracy": math.nan}
    run = trained(it, max_steps=16)
    assert not run.finite
    assert run.curve.points[0].metric is None


def test_a_copy_of_a_state_lies_on_the_host_where_the_device_is_full() -> None:
    device = Device(torch.device("cpu"), 6100)
    assert device.tensors is not None
    state = {"weight": torch.ones(500), "step": [1, 2]}
    with device.watched():
        device.tensors.add(state)
        copy = device.copied(state)
        assert device.tensors.bytes == 4000, "there was room for two"
        again = device.copied(state)
        assert device.tensors.bytes == 4000
    for one in (copy, again):
        assert one["weight"].equal(state["weight"])
        assert one["weight"] is not state["weight"]
        assert one["step"] == [1, 2]
        assert one["step"] is not state["step"]
