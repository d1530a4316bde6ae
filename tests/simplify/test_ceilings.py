"""FLOPs and bytes against hand counts; ceilings from peaks; how peaks are taken and kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoopt.records import Operator, Peaks
from autoopt.simplify import peaks as peaks_module
from autoopt.simplify.bottleneck import fused_ceiling, operator_ceiling
from autoopt.simplify.microbenchmarks import count_operators, operators
from autoopt.simplify.peaks import measured_peaks

PEAKS = Peaks(
    matmul_fp32_flops_per_second=1e9, matmul_bf16_flops_per_second=4e9, memory_bytes_per_second=1e8,
    memory_bytes_per_second_by_size={1024: 5e8, 1 << 20: 2e8},
)  # fmt: skip


def test_matmul_counts() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    counts = count_operators(lambda: a @ b)
    mm = counts["aten::mm"]
    assert (mm.calls, mm.flops, mm.bytes, mm.kind) == (1, 2 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4 + 8 * 4), "matmul")


def test_views_cost_nothing_and_elementwise_moves_bytes() -> None:
    x = torch.randn(10, 10)
    counts = count_operators(lambda: x.t().reshape(100).relu().view(10, 10))
    assert "aten::t" not in counts
    assert counts["aten::relu"].bytes == 2 * 400


def test_every_operator_has_its_seconds() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    training: Any = SimpleNamespace(
        forward=lambda batch: torch.relu(batch @ batch).sum(),
        backward=torch.Tensor.backward,
        optimizer=torch.optim.SGD([weight]),
        device=SimpleNamespace(kind="cpu"),
    )
    found = operators(training, weight)
    by_name = {item.name: item for item in found["operators"]}
    assert by_name["aten::mm"].calls == 3
    assert by_name["aten::mm"].seconds > 0
    assert found["launches"] == sum(item.calls or 0 for item in found["operators"])
    assert found["operators_forward_share"] == pytest.approx(1 / 3)


def test_the_roofline_is_the_larger_of_both() -> None:
    arithmetic = Operator(name="mm", seconds=1.0, flops=8e9, bytes=100.0, calls=1)
    traffic = Operator(name="relu", seconds=1.0, bytes=1e9, calls=1)
    assert operator_ceiling(arithmetic, PEAKS, ("fp32",)) == 8.0
    assert operator_ceiling(arithmetic, PEAKS, ("fp32", "bf16")) == 2.0
    assert operator_ceiling(traffic, PEAKS, ("fp32",)) == 10.0
    assert fused_ceiling((arithmetic, traffic), PEAKS, ("fp32", "bf16")) == 2.0


def test_caches_serve_small_pieces_faster() -> None:
    assert PEAKS.bandwidth(512) == 5e8
    assert PEAKS.bandwidth(1e6) == 2e8
    assert PEAKS.bandwidth(1e9) == 1e8
    assert PEAKS.bandwidth() == 1e8


@pytest.mark.parametrize(
    ("kind", "foreign", "others", "kept"),
    [
        ("cpu", 0.0, [], True),
        pytest.param("cpu", 0.9, [], False, id="other programs had the cores"),
        ("cuda:0", 0.0, [], True),
        pytest.param("cuda:0", 0.0, [4711], False, id="others use the device: half its peak would stand for it"),
    ],
)
def test_undisturbed_peaks_are_kept_in_the_users_cache_and_a_damaged_file_is_measured_again(
    kind: str, foreign: float, others: list[int], kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure(device: torch.device) -> Peaks:
        measured.append(1)
        return PEAKS.model_copy(update={"foreign_cores": foreign})

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in {
        "measure": measure,
        "_key": lambda device: "device",
        "open_device": lambda name: None,
        "other_users": lambda device: others,
    }.items():
        monkeypatch.setattr(peaks_module, name, value)
    device = torch.device(kind)
    first = measured_peaks(device)
    assert first.foreign_cores == foreign
    assert measured_peaks(device) == first
    assert len(measured) == (1 if kept else 2)
    files = list((tmp_path / "autoopt").glob("peaks-*.json"))
    assert len(files) == kept
    for file in files:
        file.write_text("{")
        assert measured_peaks(device) == first
        assert len(measured) == 2


def test_measured_peaks_are_plausible() -> None:
    cpu = torch.device("cpu")
    assert 1e8 < (peaks_module.matmul_rate(cpu, "fp32", 0.05) or 0) < 1e14
    assert 1e8 < peaks_module.stream_rate(cpu, 1 << 22, 0.02) < 1e13
    assert 1e-8 < peaks_module.launch_cost(cpu, 200) < 1e-3


@pytest.mark.parametrize("seconds", [3e-5, 0.02])
def test_the_wait_for_a_device_is_no_part_of_a_short_calls_seconds(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of 30 µs whose end is waited for in 10 µs would be read as 40."""
    now: list[float] = [0.0]
    monkeypatch.setattr("autoopt.simplify.microbenchmarks.time.perf_counter", lambda: sum(now))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: now.append(1e-5))
    device: Any = SimpleNamespace(type="cuda")
    assert peaks_module.shortest(lambda: now.append(seconds), device, 0.0) == pytest.approx(seconds, rel=0.01)


def test_a_device_is_read_in_pieces_that_its_caches_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[str, int]] = []

    def rate(device: torch.device, size: int, time_limit: float) -> float:
        sizes.append((device.type, size))
        return 1e12 if device.type == "cuda" else 1e10

    monkeypatch.setattr(peaks_module, "stream_rate", rate)
    for name, value in {"warm": None, "matmul_rate": 1e13, "copy_rates": {}, "launch_cost": 1e-6}.items():
        monkeypatch.setattr(peaks_module, name, lambda *_, found=value: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 80 << 30))
    found = peaks_module.measure(torch.device("cuda"), 0.1)
    assert max(size for kind, size in sizes if kind == "cuda") == 1 << 29, "half of what is free"
    assert found.host_memory_bytes_per_second == 1e10
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 << 30, 80 << 30))
    found = peaks_module.measure(torch.device("cuda"), 0.1)
    assert max(found.memory_bytes_per_second_by_size) >= 1 << 31


def test_batches_are_collated_in_the_hosts_memory_whatever_the_device() -> None:
    peaks = PEAKS.model_copy(update={"host_memory_bytes_per_second": 3e7})
    assert peaks.host_bandwidth("cpu", 512) == 5e8
    assert peaks.host_bandwidth("cuda", 512) == 3e7
    assert PEAKS.host_bandwidth("cuda") is None
