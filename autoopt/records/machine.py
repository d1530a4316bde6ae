"""The machine, and what it reached when it was measured."""

from __future__ import annotations

from pydantic import Field

from autoopt.records.base import Record


class Peaks(Record):
    """What this machine reached when it was measured, per second or in seconds.

    Shares are speeds under load over speeds alone: ``core_share_under_load`` of a loader worker while
    workers and compute threads fill the cores twice, ``compute_share_under_load`` of the compute threads
    then, ``parallel_share`` of one process while every core has one of its own. ``foreign_cores``: what others
    used of the machine meanwhile. ``pace_seconds``: a fixed piece of Python at the fastest moment of that time
    (``simplify.pace``), so that a step which ran in a slower one is not measured against it.
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
    core_share_under_load: float | None = None
    compute_share_under_load: float | None = None
    parallel_share: float | None = None
    memory_bytes_per_second_by_size: dict[int, float] = Field(default_factory=dict)
    foreign_cores: float | None = None
    pace_seconds: float | None = None
    measured_at: str | None = None


class Environment(Record):
    """The machine and what runs on it."""

    python: str
    torch: str | None = None
    cuda: str | None = None
    device: str
    device_name: str | None = None
    device_memory_bytes: int | None = None
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    ram_bytes: int | None = None
    os: str | None = None
    git_commit: str | None = None
    peaks: Peaks = Field(default_factory=Peaks)
    load: float | None = None
    compiler: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
