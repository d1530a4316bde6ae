"""Demands of a CUDA device on the loop, seen without one: marks, precision, the order in which it is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from autoopt.benchmark import trial_context
from autoopt.benchmark.compiling import compile_blocks
from autoopt.benchmark.environment import nvml_handle
from autoopt.benchmark.flags import matmul_precision
from autoopt.benchmark.tasks import largest_batch
from autoopt.benchmark.training import Training
from autoopt.benchmark.transfer import mover
from autoopt.benchmark.trial_context import TrialContext
from autoopt.benchmark.warmup import run_block, warm_up
from autoopt.records import Plan
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt_strategies.compute.rewriting.survey import full_precision
from tests.benchmark.small_training import workload


def test_a_new_step_is_marked_once_whatever_its_micro_batches() -> None:
    training = Training(workload(), Setup().with_batch(size=4, accumulation=3), device="cpu")
    marks: list[int] = []
    training.plain_step.begin = lambda: marks.append(training.steps)
    for _ in range(3):
        assert len(training.next()) == 3
        training.step(training.next())
    assert marks == [0, 1, 2]
    training.forward(training.next()[0])  # a microbenchmark's call is a step of its own
    assert len(marks) == 4


@pytest.fixture
def newer_precision() -> Iterator[None]:
    place: Any = torch.backends.cuda.matmul
    before = place.fp32_precision
    place.fp32_precision = "tf32"
    yield
    place.fp32_precision = before


def test_precision_that_was_set_the_newer_way_is_changed_and_kept(newer_precision: None) -> None:
    """torch refuses to report the older setting then."""
    place: Any = torch.backends.cuda.matmul
    for changed in (matmul_precision("highest"), full_precision()):
        with changed:
            assert place.fp32_precision == "ieee"
        assert place.fp32_precision == "tf32"
    with matmul_precision(None):
        assert place.fp32_precision == "tf32"


def nvml_that_knows(name: str) -> SimpleNamespace:
    """NVML with four devices, of which the process sees the last."""

    def found(asked: str) -> str:
        if asked != name:
            raise RuntimeError("NVMLError_NotFound")
        return asked

    return SimpleNamespace(
        nvmlDeviceGetHandleByUUID=found,
        nvmlDeviceGetHandleByPciBusId=found,
        nvmlDeviceGetHandleByIndex="number {}".format,
    )


@pytest.mark.parametrize(
    ("knows", "found"),
    [("GPU-ab12", "GPU-ab12"), ("MIG-ab12", "MIG-ab12"), ("00000000:c1:00.0", "00000000:c1:00.0"), ("none", None)],
)
def test_the_device_that_is_read_is_the_one_that_trains(
    knows: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML counts all devices: with CUDA_VISIBLE_DEVICES=3 the first of them was read for the fourth."""
    known = SimpleNamespace(uuid="ab12", pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    device: Any = SimpleNamespace(kind="cuda", torch=torch.device("cuda:0"))
    if found is not None:
        assert nvml_handle(nvml_that_knows(knows), device) == found
        return
    with pytest.raises(LookupError, match="one of CUDA_VISIBLE_DEVICES"):
        nvml_handle(nvml_that_knows(knows), device)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert nvml_handle(nvml_that_knows(knows), device) == "number 0"


def test_precision_that_was_set_the_older_way_is_changed_and_kept() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_the_device_is_opened_after_the_module_that_says_which_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "says_devices.py").write_text(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'\n"
        "from tests.benchmark.small_training import workload as build\n"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seen: list[str | None] = []
    opened = trial_context.open_device

    def noting(*args: Any) -> Any:
        seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return opened(*args)

    monkeypatch.setattr(trial_context, "open_device", noting)
    spec: Any = SimpleNamespace(
        workload="says_devices:build", plan=Plan(), device="cpu", seed=0, search_path=(str(tmp_path),),
        memory_limit_bytes=None, target=None, disturbed=0.0, same_draws=False, rank=None,
    )  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    TrialContext(spec, load_strategies()).close()
    assert seen == ["3"]


def test_waiting_for_the_loader_while_copying_ahead_is_waiting_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("autoopt.benchmark.clock.perf_counter", lambda: now[0])
    training = Training(workload(), device="cpu")
    batches = training.next()

    def late(_: Any) -> None:
        now[0] += 5.0

    training.batch_iterator.ahead = SimpleNamespace(fill=late)  # type: ignore[assignment]
    training.clock.start()
    training.step(batches)
    assert training.clock.totals["data"] == 5.0
    assert training.clock.totals["other"] == 0.0


def test_the_peak_of_the_largest_batch_is_read_without_what_the_allocator_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(workload(), device="cpu")
    reserved, cached = [0], 7 * 2**30  # as the allocator counts: what is kept from before counts as well
    device: Any = training.device
    monkeypatch.setattr(device, "empty_cache", lambda: reserved.__setitem__(0, 0))
    monkeypatch.setattr(device, "reset_peak", lambda: None)
    monkeypatch.setattr(device, "peak_bytes", lambda: reserved[0] + 100)
    reserved[0] = cached
    live: Any = SimpleNamespace(training=training)
    assert largest_batch(live, batches=2)["peak_memory_bytes"] == 100


def test_blocks_tell_what_tensors_held_apart_from_what_the_allocator_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of kernels in the first steps takes 7 GiB once; the steady steps do not want them."""
    training = Training(workload(), device="cpu")
    device: Any = training.device
    kept = [7 * 2**30]
    monkeypatch.setattr(device, "kind", "cuda")
    monkeypatch.setattr(device, "empty_cache", lambda: kept.__setitem__(0, 5))
    monkeypatch.setattr(device, "peak_bytes", lambda: kept[0] + 100)
    monkeypatch.setattr(device, "allocated_bytes", lambda: 100)
    live = SimpleNamespace(training=training, build_seconds=0.0, setup_seconds=0.0, setup=training.setup)
    warm_up(live, 0.1)  # type: ignore[arg-type]
    block = run_block(training, lambda steps, _: steps >= 2)
    assert (block.peak_memory_bytes, block.allocated_memory_bytes) == (105, 100)


def test_blocks_of_many_shapes_are_within_what_torch_compiles_again() -> None:
    import torch._dynamo

    config: Any = torch._dynamo.config
    before = config.recompile_limit
    try:
        blocks = [nn.Sequential(nn.Linear(n, n + 1), nn.Sequential(nn.ReLU())) for n in range(1, 21)]
        compile_blocks(nn.Sequential(*blocks), backend="eager")
        assert config.recompile_limit >= 2 * 20
    finally:
        config.recompile_limit = before


class Graph:
    """As graph libraries have them: no mapping, and its way to a device changes it in place."""

    def __init__(self) -> None:
        self.x = torch.ones(3)

    def to(self, device: torch.device) -> Graph:
        self.x = self.x.to(device)
        return self


def test_batches_that_know_their_own_way_to_the_device_take_it() -> None:
    """A graph stayed on the host, and the lengths of a packed sequence, which must stay there, did not."""
    move = mover(torch.device("meta"))
    assert move is not None
    graph, packed = Graph(), torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    there, (sequence, label) = move(graph), move((packed, torch.ones(2)))
    assert (there.x.device.type, graph.x.device.type) == ("meta", "cpu"), "the one that is held on the host stays"
    assert sequence.data.device.type == label.device.type == "meta"
    assert sequence.batch_sizes.device.type == "cpu"
