"""Every built-in strategy on the device against the untouched loop, in its risk class."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from autoopt import Risk, Setup
from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.registry import load_strategies
from autoopt.testing.method_cards import shipped
from autoopt.testing.strategies import example_of
from autoopt.workload import Workload
from benchmarks.attention.models import MinGPT, Size
from tests.gpu.cuda_workloads import workload
from workloads.attention import rewrite

pytestmark = pytest.mark.gpu

REGISTRY = load_strategies()
EXACT, TIGHT, LOOSE = 1e-4, 1e-3, 0.05
"""Relative difference of losses: rounding of other kernels, of TF32 or a fused kernel, of bf16."""


@dataclass(frozen=True)
class On:
    """How a strategy is tried on the device, where that is not what its risk class and its example say.

    Attributes:
        losses: how near they are to the untouched loop's; None: they differ, and must fall.
        setting: instead of its example's; ``DEVICE`` stands for the device.
        cuda: says nothing on the CPU.
        elsewhere: the test that tries it instead.
    """

    losses: float | None = EXACT
    setting: dict[str, Any] | None = None
    workload: str = "images"
    cuda: bool = False
    elsewhere: str = ""


OTHERWISE = {
    "workers": On(setting={"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}),
    "prepared_samples": On(setting={"form": "rows", "where": "device", "device": "DEVICE"}),
    "pin_memory": On(setting={"pin_memory": True, "non_blocking": True}, cuda=True),
    "amp": On(LOOSE),
    "matmul_precision": On(LOOSE, {"precision": "high"}),
    "cudnn_benchmark": On(TIGHT, cuda=True),
    "compile": On(LOOSE, cuda=True),
    "cuda_graphs": On(TIGHT, cuda=True),
    "flash_attention": On(LOOSE, workload="attention"),
    "affinity": On(elsewhere="it binds this process: tests/benchmark/test_affinity.py"),
    "muon": On(elsewhere="its matrices belong to one model: tests/strategies/test_optimizers.py"),
    "allocator": On(elsewhere="set before torch is imported: test_cuda_trials.py"),
}
STRATEGIES = [strategy.name for strategy in shipped()]


def how(name: str) -> On:
    """How a strategy is tried here; losses of a numeric one may differ by the kernels that it takes."""
    if name in OTHERWISE:
        return OTHERWISE[name]
    example = example_of(REGISTRY[name])
    if example.processes > 1:
        return On(elsewhere="it takes several processes: tests/distributed")
    if not example.trains:
        return On(elsewhere="its example is none that a few steps can be trained with")
    if example.losses is None:
        return On(None)
    return On(TIGHT if REGISTRY[name].risk is Risk.NUMERIC else EXACT)


def setting_of(name: str) -> dict[str, Any]:
    own = how(name).setting
    if name == "flash_attention":
        found = rewrite(Sequences(), torch.randn(16, 12, 16))
        return {"functions": found["functions"]}
    return example_of(REGISTRY[name]).setting if own is None else own


class Sequences(nn.Module):
    """Attention as it is written by hand, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(MinGPT(Size(width=16, heads=2, length=12)) for _ in range(2))
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


def of_kind(kind: str) -> Workload:
    seed_everything(0)
    if kind == "attention":
        x, model = torch.randn(256, 12, 16), Sequences()
    else:
        x = torch.randn(256, 3, 8, 8)
        block = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(2)]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(*block), *pooled)
    return workload(model, x, batch_size=16, optimizer=partial(torch.optim.AdamW, lr=3e-3), max_steps=64)


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    """Switches of the process that setups change, put back."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # convolutions use it unasked: another kernel then differs by more
    yield
    torch.backends.cudnn.allow_tf32 = tf32
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])
    torch.backends.cudnn.benchmark = before[2]


def losses_of(setup: Setup, given: str | Workload, device: str, steps: int = 8) -> list[float]:
    training = Training(of_kind(given) if isinstance(given, str) else given, setup, device=device)
    try:
        return [float(training.step(training.next())) for _ in range(steps)]
    finally:
        training.close()


def test_what_is_said_here_is_said_of_strategies_that_there_are() -> None:
    assert set(OTHERWISE) <= set(STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_its_losses_against_the_untouched_loop(name: str, device: str) -> None:
    entry = how(name)
    if entry.elsewhere:
        pytest.skip(entry.elsewhere)
    if entry.cuda and not device.startswith("cuda"):
        pytest.skip("says nothing on the CPU")
    setting = {key: device if value == "DEVICE" else value for key, value in setting_of(name).items()}
    assert entry.losses is not None or REGISTRY[name].risk in (Risk.TRAINING, Risk.MODEL)
    changed = losses_of(
        REGISTRY[name].apply(Setup(), setting), entry.workload, device, steps=48 if entry.losses is None else 8
    )
    assert all(math.isfinite(loss) for loss in changed)
    if entry.losses is None:
        assert sum(changed[-8:]) < sum(changed[:8]), "it trains"
    else:
        assert changed == pytest.approx(losses_of(Setup(), entry.workload, device), rel=entry.losses)


def usual_stack() -> Setup:
    """The changes most often kept together: pinned and prefetched input, bf16, channels last, fused, compiled."""
    setup = Setup()
    for name in ("pin_memory", "amp", "channels_last", "fused_optimizer", "compile"):
        setup = REGISTRY[name].apply(setup, setting_of(name))
    return setup


@pytest.mark.cuda_only
@pytest.mark.parametrize(
    "setup",
    [
        lambda: REGISTRY["compile"].apply(Setup(), {"mode": "reduce-overhead"}),
        lambda: REGISTRY["compile"].apply(Setup(), {"mode": "max-autotune-no-cudagraphs"}),
        lambda: Setup().with_precision(dtype="float16", loss_scaling=True),
        usual_stack,
    ],
    ids=["reduce-overhead", "max-autotune", "fp16 with loss scaling", "the usual stack"],
)
def test_other_setups(setup: Callable[[], Setup], device: str) -> None:
    assert losses_of(setup(), "images", device) == pytest.approx(losses_of(Setup(), "images", device), rel=LOOSE)


@pytest.mark.cuda_only
@pytest.mark.parametrize(
    "change",
    [
        lambda setup: setup,
        lambda setup: setup.with_precision(dtype="bfloat16"),
        lambda setup: setup.with_batch(size=8, accumulation=2),
        lambda setup: setup.with_batch(learning_rate_factor=0.5, warmup_steps=6),
        lambda setup: setup.with_loader(pin_memory=True).with_transfer(non_blocking=True, prefetch=2),
    ],
    ids=["plain", "bf16", "accumulation", "a rate that moves", "prefetched"],
)
def test_a_whole_step_in_one_graph(change: Callable[[Setup], Setup], device: str) -> None:
    """Over the end of an epoch, with its short batch."""
    changed = losses_of(REGISTRY["cuda_graphs"].apply(change(Setup()), {"whole": True}), "images", device, steps=24)
    plain = losses_of(change(Setup()), "images", device, steps=24)
    assert changed == pytest.approx(plain, rel=LOOSE if change(Setup()).precision.dtype else TIGHT)


@pytest.mark.cuda_only
def test_a_whole_step_is_launched_at_once(device: str) -> None:
    """Else the test above could pass with nothing recorded."""
    from torch.profiler import ProfilerActivity, profile

    training = Training(of_kind("images"), REGISTRY["cuda_graphs"].apply(Setup(), {"whole": True}), device=device)
    try:
        for _ in range(6):
            training.step(training.next())
        batches = training.next()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            training.step(batches)
            torch.cuda.synchronize()
    finally:
        training.close()
    names = [event.name for event in profiler.events() or ()]
    assert any("cudaGraphLaunch" in name for name in names)
    assert not any("aten::conv" in name for name in names)


WAITS = """
import torch
from autoopt_strategies.compute.whole_step import CudaRecorder, RecordedStep
step = RecordedStep(lambda batches: torch.tensor(batches[0].sum().item(), device="cuda"), 1, CudaRecorder())
batches = [torch.ones(4, device="cuda")]
step(batches)
step(batches)
"""


@pytest.mark.cuda_only
def test_a_step_that_waits_for_the_device_is_refused_in_words() -> None:
    """In a process of its own: torch's allocator does not get over a recording that failed."""
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", WAITS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode != 0
    assert "RuntimeError: this step cannot be recorded as one CUDA graph" in done.stderr


def wide(device: str, setup: Setup, steps: int = 12) -> list[float]:
    """Losses of a net of large products, in bfloat16 and with the setup."""
    seed_everything(0)
    x = torch.randn(2048, 512)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 2))
    given = workload(model, x, batch_size=256, optimizer=partial(torch.optim.AdamW, lr=1e-3), max_steps=64)
    return losses_of(setup.with_precision(dtype="bfloat16"), given, device, steps)


@pytest.mark.cuda_only
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_fp8_products_on_a_device_that_has_them(recipe: str, device: str) -> None:
    """Not emulated: the device's own products, beside bfloat16, compiled as the strategy asks for it."""
    pytest.importorskip("torchao")
    if torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("this device multiplies no fp8")
    setup = REGISTRY["fp8"].apply(Setup().with_compile(), {"layers": ["0", "2"], "recipe": recipe})
    changed, plain = wide(device, setup), wide(device, Setup())
    assert all(math.isfinite(loss) for loss in changed)
    assert changed == pytest.approx(plain, rel=0.1)
    assert changed != pytest.approx(plain, rel=1e-6), "nothing was rounded to eight bits"
