"""Measurements on the device: stage times, peaks, ceilings, memory, synchronizations, and that nothing stays."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from autoopt.benchmark.device import open_device
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import run_block
from autoopt.records import Plan
from autoopt.setup import Setup
from autoopt.simplify.analyse import analyse
from autoopt.simplify.peaks import measure
from autoopt.simplify.source import watch
from autoopt.simplify.stage_timings import StageTimings
from autoopt.simplify.tasks import measure_stages
from tests.gpu.cuda_workloads import workload

pytestmark = pytest.mark.gpu

WIDTH = 512


class Net(nn.Module):
    """Large enough that the device, not the host, is what is measured; may wait, or ask the device each step."""

    def __init__(self, sleep: int = 0, asks: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.head = nn.Linear(WIDTH, 2)
        self.sleep, self.asks = sleep, asks
        self.seen = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sleep:
            torch.cuda._sleep(self.sleep)
        x = self.layers(x)
        if self.asks:
            self.seen = x.mean().item()
        return self.head(x)


def training_of(device: str, model: nn.Module | None = None, setup: Setup | None = None) -> Training:
    torch.manual_seed(0)
    x = torch.randn(1024, WIDTH)
    found = workload(model or Net(), x, batch_size=128, optimizer=partial(torch.optim.AdamW, lr=1e-3))
    return Training(found, setup, device=device)


def block_of(training: Training, steps: int) -> Any:
    run_block(training, lambda done, _: done >= 3)
    return run_block(training, lambda done, _: done >= steps)


def test_stage_times_add_up(device: str) -> None:
    training = training_of(device)
    block = block_of(training, 20)
    assert sum(block.stage_seconds.values()) == pytest.approx(block.seconds, rel=1e-6)
    assert len(block.step_seconds) == 20
    assert sum(block.step_seconds) == pytest.approx(block.seconds, rel=0.2)
    assert block.stage_seconds["backward"] > 0
    assert block.peak_memory_bytes
    training.close()


@pytest.mark.cuda_only
def test_work_of_the_device_counts_for_the_stage_that_issued_it(device: str) -> None:
    """The host is done with the forward pass at once; the device is not."""
    training = training_of(device, Net(sleep=20_000_000))
    block = block_of(training, 10)
    assert block.stage_seconds["forward"] > 0.7 * block.seconds
    training.close()


@pytest.mark.cuda_only
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_copied_ahead_are_the_same(prefetch: int, device: str) -> None:
    setup = Setup().with_loader(pin_memory=True).with_transfer(non_blocking=True, prefetch=prefetch)
    plain, ahead = training_of(device), training_of(device, setup=setup)
    for _ in range(20):  # over the end of an epoch
        for one, two in zip(plain.next()[0], ahead.next()[0], strict=True):
            assert torch.equal(one, two)
    for training in (plain, ahead):
        training.close()


@pytest.mark.cuda_only
def test_peaks_are_those_of_a_device(device: str) -> None:
    peaks = measure(torch.device(device), time_limit=3.0)
    fp32, bf16 = peaks.matmul_fp32_flops_per_second, peaks.matmul_bf16_flops_per_second
    assert 1e11 < fp32 < 1e15
    assert bf16 > 0.8 * fp32
    assert peaks.matmul_tf32_flops_per_second > 0.8 * fp32
    assert 1e10 < (peaks.memory_bytes_per_second or 0) < 2e13
    pinned, pageable = peaks.copy_pinned_to_device_bytes_per_second, peaks.copy_pageable_to_device_bytes_per_second
    assert pinned > 0.8 * pageable
    assert peaks.copy_pinned_from_device_bytes_per_second
    assert peaks.copy_pageable_from_device_bytes_per_second
    assert 1e-7 < (peaks.launch_seconds or 0) < 1e-3


@pytest.mark.cuda_only
def test_the_peak_of_fp32_is_fp32_s_whatever_the_user_has_set(device: str) -> None:
    plain = measure(torch.device(device), time_limit=2.0).matmul_fp32_flops_per_second
    torch.set_float32_matmul_precision("high")
    try:
        again = measure(torch.device(device), time_limit=2.0).matmul_fp32_flops_per_second
    finally:
        torch.set_float32_matmul_precision("highest")
    assert again == pytest.approx(plain, rel=0.3)


def test_a_survey_violates_no_ceiling_and_leaves_the_training_as_it_was(device: str) -> None:
    training = training_of(device)
    block = block_of(training, 10)
    weights = [p.detach().clone() for p in training.model.parameters()]
    survey = StageTimings.model_validate(measure_stages(SimpleNamespace(training=training), 4.0))
    for before, after in zip(weights, training.model.parameters(), strict=True):
        assert torch.equal(before, after)
    peaks = measure(torch.device(device), time_limit=3.0)
    found = analyse(0, Plan(), survey, block, peaks)
    doubtful = [
        (stage.name, stage.seconds, stage.ceiling_seconds)
        for stage in found.stages
        if stage.measured and stage.ceiling_seconds and stage.seconds < 0.8 * stage.ceiling_seconds
    ]
    assert doubtful == []
    assert found.bottleneck
    training.close()


@pytest.mark.cuda_only
def test_a_device_that_is_full_keeps_the_survey_s_copies_on_the_host(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autoopt.simplify.batches import restored

    training = training_of(device)
    training.step(training.next())
    weights = [p.detach().clone() for p in training.model.parameters()]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (0, 1))
    before = torch.cuda.memory_allocated()
    with restored(training):
        assert torch.cuda.memory_allocated() - before < 1 << 20
        training.step(training.next())
    for saved, now in zip(weights, training.model.parameters(), strict=True):
        assert torch.equal(saved, now)
    assert all(p.device.type == "cuda" for p in training.model.parameters())
    training.step(training.next())  # and the optimizer's state is where it must be
    training.close()


@pytest.mark.cuda_only
def test_an_item_in_the_forward_pass_is_seen_with_its_line(device: str) -> None:
    training = training_of(device, Net(asks=True))
    batches = training.next()
    seen = watch(lambda: training.step(batches), torch.device(device))
    assert any(file == __file__ for file, _ in seen.syncs)
    training.close()


@pytest.mark.cuda_only
def test_the_allocator_s_statistics(device: str) -> None:
    opened = open_device(device)
    opened.empty_cache()
    opened.reset_peak()
    held = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    assert (opened.peak_bytes() or 0) >= 256 << 20
    assert opened.allocation_retries() >= 0
    assert (opened.limit_bytes() or 0) > 1 << 30
    del held


@pytest.mark.cuda_only
def test_a_long_run_keeps_few_events(device: str) -> None:
    training = training_of(device)
    for _ in range(1500):
        training.step(training.next())
    clock: Any = training.clock
    assert len(clock._events) < 3000
    assert len(clock.stop().steps) == 1500
    training.close()
