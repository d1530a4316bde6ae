"""Peaks of this machine: measured, never from a datasheet, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import torch

from autoopt.benchmark.cputime import cpu_times, foreign_cores
from autoopt.benchmark.device import open_device
from autoopt.benchmark.environment import cpu_name, other_users, usable_cores
from autoopt.benchmark.flags import matmul_precision
from autoopt.records import Peaks
from autoopt.records.machine import disturbed
from autoopt.records.writing import user_cache, write_whole
from autoopt.simplify.drift import ReferenceSpeed
from autoopt.simplify.microbenchmarks import Microbenchmark

VERSION = 9
"""Of how peaks are measured: those of another one are not used again."""
_HOST_SIZES = (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 26, 1 << 27)
"""Bytes of both operands: from a first-level cache to several times the last one."""
_DEVICE_SIZES = (1 << 20, 1 << 24, 1 << 27, 1 << 29, 1 << 31)
"""Bytes of both operands: second-level caches of devices hold 50 MB and more, and serve twice of it without a miss."""
_ROUNDS = 3
"""In which all rates are measured interleaved: the best of a shared machine is not in one moment for all."""
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_READ = 1 << 25
"""Bytes that are read from storage."""


def measured_peaks(device: torch.device) -> Peaks:
    """The peaks of a device, from the user's cache where this machine and torch were measured before."""
    file = user_cache() / "autoopt" / f"peaks-{_key(device)}.json"
    with suppress(OSError, ValueError):
        return Peaks.model_validate_json(file.read_text(encoding="utf-8"))
    peaks = measure(device)
    # those that others kept cores or device busy for are measured again next time
    if not disturbed(peaks.foreign_cores) and not (device.type == "cuda" and other_users(open_device(str(device)))):
        with suppress(OSError):  # a cache that cannot be written is no error
            write_whole(file, peaks.model_dump_json())
    return peaks


def _key(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    parts = [VERSION, name, torch.__version__, cpu_name(), usable_cores(), torch.get_num_threads()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def measure(device: torch.device, time_limit: float = 2.0) -> Peaks:
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
        best = max((rate for rate in rates.values() if rate), default=0.0)
        for name in _TYPES:
            known = rates.get(name)
            # one far slower than the best is not measured again
            if name in rates and (known is None or known < 0.25 * best):
                continue
            with matmul_precision("highest"):  # whatever the user's code has set
                found = matmul_rate(device, name, time_limit * 0.12 / _ROUNDS)
            rates[name] = max((rate for rate in (known, found) if rate), default=None)
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
    launch, storage = launch_cost(device), storage_rate()
    return Peaks(
        **values,
        memory_bytes_per_second=by_size[max(by_size)] if by_size else None,
        memory_bytes_per_second_by_size=by_size,
        host_memory_bytes_per_second_by_size=host_by_size,
        launch_seconds=launch,
        storage_bytes_per_second=storage,
        foreign_cores=foreign_cores(before, cpu_times(with_children=True), time.perf_counter() - start),
        pace_seconds=min(readings),
        measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _raise_streams(rates: dict[int, float], device: torch.device, time_limit: float) -> None:
    """Another round of copies and sums in memory: each size's best so far, of sizes for which there is room."""
    room = torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else float("inf")
    for size in _DEVICE_SIZES if device.type == "cuda" else _HOST_SIZES:
        if size <= room:
            rates[size] = max(rates.get(size, 0.0), stream_rate(device, size, time_limit))


def warm(device: torch.device) -> None:
    """Keeps a device at products until its clock has risen."""
    square = torch.ones(2048, 2048, device=device)
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        for _ in range(10):
            square @ square
        torch.cuda.synchronize(device)


def matmul_rate(device: torch.device, precision: str, time_limit: float) -> float | None:
    """FLOP/s of the best square product tried; None where this device has no such type.

    A device is asked for its largest product first, since only that fills it; a CPU for its smallest.
    """
    sizes = (8192, 4096, 2048) if device.type == "cuda" else (512, 1024, 2048)
    end = time.perf_counter() + time_limit
    best = 0.0
    for size in sizes:
        try:
            left, right = (torch.randn(size, size, device=device).to(_TYPES[precision]) for _ in range(2))
            seconds = shortest(lambda a=left, b=right: a @ b, device, 0.0)  # type: ignore[misc]
            if 2 * seconds <= end - time.perf_counter() or not best:
                limit = min(time_limit / len(sizes), max(0.0, end - time.perf_counter()))
                seconds = min(seconds, shortest(lambda a=left, b=right: a @ b, device, limit))  # type: ignore[misc]
        except (RuntimeError, TypeError):  # no such type, or no room for this size
            continue
        best = max(best, 2.0 * size**3 / seconds)
        if time.perf_counter() > end:
            break
    return best or None


def stream_rate(device: torch.device, size: int, time_limit: float) -> float:
    """Bytes per second, read and written together, by the better of copying and of adding in place.

    On the CPU the better of one thread and all: small pieces, and busy machines, are faster with one.
    ``size``: bytes of both operands together.
    """
    threads, rates = torch.get_num_threads(), list[float]()
    source = torch.ones(size // 8, device=device)
    target = torch.zeros_like(source)
    at_once = max(1, min(200, (1 << 22) // size))

    def copy() -> None:
        for _ in range(at_once):
            target.copy_(source)

    def add() -> None:
        for _ in range(at_once):
            target.add_(source)

    try:
        for count in (threads, 1) if device.type == "cpu" and threads > 1 else (threads,):
            torch.set_num_threads(count)
            rates += (  # adding reads the target, too
                moved * size * at_once / shortest(call, device, time_limit / 2)
                for call, moved in ((copy, 1.0), (add, 1.5))
            )
    finally:
        torch.set_num_threads(threads)
    return max(rates)


def copy_rates(device: torch.device) -> dict[str, float]:
    """Bytes per second between host and device, pageable and pinned, both ways."""
    found, size = {}, 1 << 26
    on_device = torch.empty(size, dtype=torch.uint8, device=device)
    for kind in ("pageable", "pinned"):
        host = torch.empty(size, dtype=torch.uint8, pin_memory=kind == "pinned").fill_(1)
        to = shortest(lambda h=host: on_device.copy_(h), device, 0.05)  # type: ignore[misc]
        back = shortest(lambda h=host: h.copy_(on_device), device, 0.05)  # type: ignore[misc]
        found[f"copy_{kind}_to_device_bytes_per_second"] = size / to
        found[f"copy_{kind}_from_device_bytes_per_second"] = size / back
    return found


def launch_cost(device: torch.device, count: int = 1000) -> float:
    """Seconds that one operator costs however little it does: dispatch, on a device also the launch."""
    tiny = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(count):
            tiny.add_(1)

    return shortest(many, device, 0.05) / count


def storage_rate() -> float | None:
    """Bytes per second of reading a file just written, dropped from the page cache where the system allows.

    In the user's cache if it is there: a temporary folder often lies in memory.
    """
    folder = user_cache() / "autoopt"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.NamedTemporaryFile(dir=folder if folder.is_dir() else None) as file:
            file.write(os.urandom(1 << 20) * (_READ >> 20))
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            with open(file.name, "rb", buffering=0) as again:
                while again.read(1 << 20):
                    pass
            return _READ / (time.perf_counter() - start)
    except OSError:
        return None


def shortest(call: Callable[[], Any], device: torch.device, time_limit: float) -> float:
    """The shortest seconds of several calls: a peak is what was reached, not what is usual.

    On a device so many calls at once that waiting for their end is none of the figure.
    """
    waits: dict[str, Callable[[], Any]] = {"cuda": lambda: torch.cuda.synchronize(device), "mps": torch.mps.synchronize}
    one = Microbenchmark(call, wait=waits.get(device.type))
    one.once()
    best, _ = one.once()
    # one call of 30 µs would be timed with the cost of the wait
    at_once = max(1, round(5e-3 / max(best, 1e-9))) if one.wait else 1
    start = time.perf_counter()
    while time_limit > 0 or at_once > 1:
        best = min(best, one.once(at_once)[0])
        if time.perf_counter() - start >= time_limit:
            break
    return max(best, 1e-9)
