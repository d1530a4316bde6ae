"""Rates of one peak each: products, memory, copies to and from a device, launches, storage."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_BETWEEN_EVENTS = 2e-3
"""Seconds of work between two events of a device: one call of 30 µs between them is timed with their own cost."""
_WARM = 0.5
"""Seconds of products after which a device's clock has risen."""


def warm(device: torch.device, seconds: float = _WARM) -> None:
    """Keeps a device at products until its clock has risen."""
    square = torch.ones(2048, 2048, device=device)
    end = time.perf_counter() + seconds
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

    Args:
        size: bytes of both operands together.
    """
    threads = torch.get_num_threads()
    rates = [_stream(device, size, time_limit)]
    if device.type == "cpu" and threads > 1:
        try:
            torch.set_num_threads(1)
            rates.append(_stream(device, size, time_limit))
        finally:
            torch.set_num_threads(threads)
    return max(rates)


def _stream(device: torch.device, size: int, time_limit: float) -> float:
    source = torch.ones(size // 8, device=device)
    target = torch.zeros_like(source)
    at_once = max(1, min(200, (1 << 22) // size))

    def copy() -> None:
        for _ in range(at_once):
            target.copy_(source)

    def add() -> None:
        for _ in range(at_once):
            target.add_(source)

    moved = size * at_once
    return max(moved / shortest(copy, device, time_limit / 2), 1.5 * moved / shortest(add, device, time_limit / 2))


def copy_rates(device: torch.device, size: int = 1 << 26) -> dict[str, float]:
    """Bytes per second between host and device, pageable and pinned, both ways."""
    found = {}
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


def storage_rate(folder: Path | None, size: int = 1 << 25) -> float | None:
    """Bytes per second of reading a file just written, dropped from the page cache where the system allows."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(os.urandom(1 << 20) * (size >> 20))
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            with open(file.name, "rb", buffering=0) as again:
                while again.read(1 << 20):
                    pass
            return size / (time.perf_counter() - start)
    except OSError:
        return None


def shortest(call: Callable[[], Any], device: torch.device, time_limit: float) -> float:
    """The shortest seconds of several calls: a peak is what was reached, not what is usual.

    On CUDA by its own events, with calls enough between two of them that their own cost is none of the figure.
    """
    call()
    calls = 1
    best = _seconds(call, device, calls)
    if device.type == "cuda":
        calls = max(1, round(_BETWEEN_EVENTS / best))
    start = time.perf_counter()
    while time_limit > 0 or calls > 1:
        best = min(best, _seconds(call, device, calls))
        if time.perf_counter() - start >= time_limit:
            break
    return best


def _seconds(call: Callable[[], Any], device: torch.device, calls: int) -> float:
    """Mean seconds of so many calls in a row."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event
        first, last = event(enable_timing=True), event(enable_timing=True)
        first.record()
        for _ in range(calls):
            call()
        last.record()
        last.synchronize()
        return max(float(first.elapsed_time(last)) / 1e3 / calls, 1e-9)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if device.type == "mps":
        torch.mps.synchronize()
    return max(time.perf_counter() - start, 1e-9) / calls
