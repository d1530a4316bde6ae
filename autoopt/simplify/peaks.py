"""Peaks of this machine: measured, never from a datasheet, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from autoopt.benchmark.cputime import cpu_times, foreign_cores
from autoopt.benchmark.environment import cpu_name, usable_cores
from autoopt.benchmark.flags import matmul_precision
from autoopt.records import Peaks
from autoopt.simplify.drift import ReferenceSpeed
from autoopt.simplify.peak_rates import copy_rates, launch_cost, matmul_rate, storage_rate, stream_rate, warm

VERSION = 8
FOREIGN_CORES = 0.15
"""Cores that others may use while peaks are measured; with more they are measured again, and not kept."""
_HOST_SIZES = (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 26, 1 << 27)
_DEVICE_SIZES = (1 << 20, 1 << 24, 1 << 27, 1 << 29, 1 << 31)
"""Bytes of both operands: second-level caches of devices hold 50 MB and more, and serve twice of it without a miss."""
_ROUNDS = 3
_HOPELESS = 0.25
"""Of the best rate: a precision that is slower than that is not measured again in later rounds."""


def measured_peaks(device: torch.device, *, time_limit: float = 6.0, cache: Path | None = None) -> Peaks:
    """The peaks of a device, from the cache where this machine and torch were measured before.

    Args:
        device: whose peaks.
        time_limit: seconds for all measurements.
        cache: the folder of the cache; the user's own by default.
    """
    file = (cache or cache_folder()) / f"peaks-{_key(device)}.json"
    known = _read(file)
    if known is not None:
        return known
    peaks = _undisturbed(device, time_limit)
    undisturbed = peaks.foreign_cores is None or peaks.foreign_cores <= FOREIGN_CORES
    if undisturbed:  # else others kept the cores busy: measured again next time
        _write(file, peaks)
    return peaks


def _undisturbed(device: torch.device, time_limit: float) -> Peaks:
    """The best of what was reached in two goes where the first was disturbed: a peak is no peak under load."""
    first = measure(device, time_limit)
    if first.foreign_cores is None or first.foreign_cores <= FOREIGN_CORES:
        return first
    second = measure(device, time_limit)
    both = sorted((first, second), key=lambda peaks: peaks.foreign_cores or 0.0)
    rates = [name for name in Peaks.model_fields if name.endswith("_per_second")]
    best: dict[str, Any] = {
        name: max((rate for peaks in both if (rate := getattr(peaks, name)) is not None), default=None)
        for name in rates
    }
    best["pace_seconds"] = min((p.pace_seconds for p in both if p.pace_seconds is not None), default=None)
    best["launch_seconds"] = min((p.launch_seconds for p in both if p.launch_seconds is not None), default=None)
    for name in ("memory_bytes_per_second_by_size", "host_memory_bytes_per_second_by_size"):
        tables = [getattr(peaks, name) for peaks in both]
        best[name] = {size: max(table.get(size, 0.0) for table in tables) for size in tables[0]}
    return both[0].model_copy(update=best)


def cache_folder() -> Path:
    """autoopt's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autoopt"


def _key(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    parts = [VERSION, name, torch.__version__, cpu_name(), usable_cores(), torch.get_num_threads()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _read(file: Path) -> Peaks | None:
    try:
        return Peaks.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(file: Path, peaks: Peaks) -> None:
    """Replaces the file at once; a cache that cannot be written is no error."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(peaks.model_dump_json(), encoding="utf-8")
        part.replace(file)
    except OSError:
        return


def measure(device: torch.device, time_limit: float = 6.0) -> Peaks:
    """Measures everything anew within about ``time_limit`` seconds.

    Rates are taken in rounds, between which a machine may get faster; those of the host's memory on devices too.
    """
    before, start, reference = cpu_times(with_children=True), time.perf_counter(), ReferenceSpeed(fresh=0.0)
    host, on_device = torch.device("cpu"), device.type == "cuda"
    rates: dict[str, float | None] = {}
    by_size: dict[int, float] = {}
    host_by_size: dict[int, float] = {}
    readings: list[float] = []
    if on_device:
        warm(device)
    for _ in range(_ROUNDS):
        readings.append(reference.now())
        with matmul_precision("highest"):  # whatever the user's code has set
            _raise_rates(rates, device, time_limit * 0.12 / _ROUNDS)
        readings.append(reference.now())
        _raise_streams(by_size, device, time_limit * 0.02 / _ROUNDS)
        if on_device:
            _raise_streams(host_by_size, host, time_limit * 0.02 / _ROUNDS)
        readings.append(reference.now())
    values: dict[str, Any] = {f"matmul_{name}_flops_per_second": rate for name, rate in rates.items()}
    if on_device:
        with matmul_precision("high"):
            values["matmul_tf32_flops_per_second"] = matmul_rate(device, "fp32", time_limit * 0.1)
        values |= copy_rates(device)
        values["host_memory_bytes_per_second"] = host_by_size[max(host_by_size)]
    launch, storage = launch_cost(device), storage_rate(_storage_folder())
    return Peaks(
        **values,
        memory_bytes_per_second=by_size[max(by_size)] if by_size else None,
        memory_bytes_per_second_by_size=by_size,
        host_memory_bytes_per_second_by_size=host_by_size,
        launch_seconds=launch,
        storage_bytes_per_second=storage,
        foreign_cores=foreign_cores(before, cpu_times(with_children=True), time.perf_counter() - start),
        pace_seconds=min(readings),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _raise_rates(rates: dict[str, float | None], device: torch.device, time_limit: float) -> None:
    """Another round of products: each precision's best so far; those far below the best of all only once."""
    best = max((rate for rate in rates.values() if rate), default=0.0)
    for name in ("fp32", "bf16", "fp16"):
        known = rates.get(name)
        if name in rates and (known is None or known < _HOPELESS * best):
            continue
        found = matmul_rate(device, name, time_limit)
        rates[name] = max((rate for rate in (known, found) if rate), default=None)


def _raise_streams(rates: dict[int, float], device: torch.device, time_limit: float) -> None:
    """Another round of copies and sums in memory: each size's best so far, of sizes for which there is room."""
    room = torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else float("inf")
    for size in _DEVICE_SIZES if device.type == "cuda" else _HOST_SIZES:
        if size <= room:
            rates[size] = max(rates.get(size, 0.0), stream_rate(device, size, time_limit))


def _storage_folder() -> Path | None:
    """The user's cache if it is there: a temporary folder often lies in memory."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder
