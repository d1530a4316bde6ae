"""The machine, and what it reached when it was measured."""

from __future__ import annotations

from dataclasses import field

from autoopt.records.record import Record

FOREIGN_CORES = 0.3
"""Cores that other programs may use during a measurement: two busy-waiting compute threads lose far more than that."""


def disturbed(foreign_cores: float | None) -> bool:
    """Whether other programs used more cores than that; where nobody counted them, nothing says so."""
    return foreign_cores is not None and foreign_cores > FOREIGN_CORES


class Peaks(Record):
    """Measured peaks of this machine, per second or in seconds.

    ``memory``: of the device; ``host_memory``: of the host, where the device is another, None where it is the same.
    ``foreign_cores``: what others used of the machine in the meantime. ``pace_seconds``: the speed reference at the
    fastest moment of that time (``simplify.drift``), so that a step which ran in a slower one is not measured against
    it.
    """

    matmul_fp32_flops_per_second: float | None = None
    matmul_tf32_flops_per_second: float | None = None
    matmul_bf16_flops_per_second: float | None = None
    matmul_fp16_flops_per_second: float | None = None
    memory_bytes_per_second: float | None = None
    copy_pageable_to_device_bytes_per_second: float | None = None
    copy_pinned_to_device_bytes_per_second: float | None = None
    copy_pageable_from_device_bytes_per_second: float | None = None
    copy_pinned_from_device_bytes_per_second: float | None = None
    launch_seconds: float | None = None
    storage_bytes_per_second: float | None = None
    memory_bytes_per_second_by_size: dict[int, float] = field(default_factory=dict)
    host_memory_bytes_per_second: float | None = None
    host_memory_bytes_per_second_by_size: dict[int, float] = field(default_factory=dict)
    foreign_cores: float | None = None
    pace_seconds: float | None = None
    measured_at: str | None = None

    def bandwidth(self, size: float | None = None) -> float | None:
        """The best rate at which ``size`` bytes can move: caches serve small pieces faster than memory does."""
        return _best(self.memory_bytes_per_second, self.memory_bytes_per_second_by_size, size)

    def host_bandwidth(self, device: str, size: float | None = None) -> float | None:
        """The same of the host's memory, in which batches are collated and pinned whatever the device."""
        if device == "cpu":
            return self.bandwidth(size)
        return _best(self.host_memory_bytes_per_second, self.host_memory_bytes_per_second_by_size, size)


def _best(large: float | None, by_size: dict[int, float], size: float | None) -> float | None:
    rates = [large or 0.0, *(rate for at, rate in by_size.items() if size is not None and at >= size / 2)]
    return max(rates) or None


class Environment(Record):
    """The machine and what runs on it. ``devices``: there are of that kind, from ``device`` on; None of a CPU."""

    python: str
    torch: str | None = None
    cuda: str | None = None
    device: str
    devices: int | None = None
    device_name: str | None = None
    device_memory_bytes: int | None = None
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    ram_bytes: int | None = None
    os: str | None = None
    git_commit: str | None = None
    peaks: Peaks = field(default_factory=Peaks)
    load: float | None = None
    compiler: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
