"""What this machine reaches: measured, never from a datasheet, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from autoopt.benchmark.cputime import cpu_times, foreign_cores
from autoopt.benchmark.flags import matmul_precision
from autoopt.records import Peaks
from autoopt.simplify.contention import contention
from autoopt.simplify.pace import Pace
from autoopt.simplify.parts import cores_available

VERSION = 7
FOREIGN_CORES = 0.15
"""Cores that others may use while peaks are measured; with more they are measured again, and not kept."""
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SIZES = (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 26, 1 << 27)
_ROUNDS = 3
_HOPELESS = 0.25
"""Of the best rate: a precision that is slower than that is not measured again in later rounds."""


def measured_peaks(device: torch.device, *, box: float = 6.0, cache: Path | None = None) -> Peaks:
    """The peaks of a device, from the cache where this machine and torch were measured before.

    Args:
        device: whose peaks.
        box: seconds for all measurements.
        cache: the folder of the cache; the user's own by default.
    """
    file = (cache or cache_folder()) / f"peaks-{_key(device)}.json"
    known = _read(file)
    if known is not None:
        return known
    peaks = _calmly(device, box)
    calm = peaks.foreign_cores is None or peaks.foreign_cores <= FOREIGN_CORES
    if calm and peaks.core_share_under_load is not None:  # else others kept the cores busy: measured again next time
        _write(file, peaks)
    return peaks


def _calmly(device: torch.device, box: float) -> Peaks:
    """The best of what was reached in two goes where the first was disturbed: a peak is no peak under load."""
    first = measure(device, box)
    if first.foreign_cores is None or first.foreign_cores <= FOREIGN_CORES:
        return first
    second = measure(device, box)
    both = sorted((first, second), key=lambda peaks: peaks.foreign_cores or 0.0)
    rates = [name for name in Peaks.model_fields if name.endswith("_per_second")]
    best: dict[str, Any] = {
        name: max((rate for peaks in both if (rate := getattr(peaks, name)) is not None), default=None)
        for name in rates
    }
    best["pace_seconds"] = min((p.pace_seconds for p in both if p.pace_seconds is not None), default=None)
    best["launch_seconds"] = min((p.launch_seconds for p in both if p.launch_seconds is not None), default=None)
    best["memory_bytes_per_second_by_size"] = {
        size: max(p.memory_bytes_per_second_by_size.get(size, 0.0) for p in both)
        for size in first.memory_bytes_per_second_by_size
    }
    return both[0].model_copy(update=best)


def cache_folder() -> Path:
    """autoopt's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autoopt"


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _key(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    parts = [VERSION, name, torch.__version__, cpu_model(), cores_available(), torch.get_num_threads()]
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


def measure(device: torch.device, box: float = 6.0) -> Peaks:
    """Measures everything anew within about ``box`` seconds, rates in rounds between which a machine may get faster."""
    before, start, pace = cpu_times(with_children=True), time.perf_counter(), Pace(fresh=0.0)
    rates: dict[str, float | None] = {}
    by_size: dict[int, float] = {}
    paces: list[float] = []
    for number in range(_ROUNDS):
        paces.append(pace.now())
        with matmul_precision("highest"):  # whatever the user's code has set
            _raise_rates(rates, device, box * 0.12 / _ROUNDS)
        paces.append(pace.now())
        for size in _SIZES:
            rate = _by_threads(device, lambda n=size: stream_rate(device, n, box * 0.02 / _ROUNDS))  # type: ignore[misc]
            by_size[size] = max(by_size.get(size, 0.0), rate)
        paces.append(pace.now())
        if number == 0:
            shares = contention(box * 0.4)
    values: dict[str, Any] = {f"matmul_{name}_flops_per_second": rate for name, rate in rates.items()}
    if device.type == "cuda":
        values["matmul_tf32_flops_per_second"] = _tf32(device, box * 0.1)
        values |= copy_rates(device)
    launch, storage = launch_cost(device), storage_rate()
    foreign = foreign_cores(before, cpu_times(with_children=True), time.perf_counter() - start)
    return Peaks(
        **values,
        memory_bytes_per_second=by_size[_SIZES[-1]],
        memory_bytes_per_second_by_size=by_size,
        launch_seconds=launch,
        storage_bytes_per_second=storage,
        core_share_under_load=shares.worker,
        compute_share_under_load=shares.team,
        parallel_share=shares.parallel,
        foreign_cores=foreign,
        pace_seconds=min(paces),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _raise_rates(rates: dict[str, float | None], device: torch.device, box: float) -> None:
    """Another round of products: each precision's best so far; those far below the best of all only once."""
    best = max((rate for rate in rates.values() if rate), default=0.0)
    for name in _TYPES:
        known = rates.get(name)
        if name in rates and (known is None or known < _HOPELESS * best):
            continue
        found = matmul_rate(device, name, box)
        rates[name] = max((rate for rate in (known, found) if rate), default=None)


def _by_threads(device: torch.device, measure: Callable[[], float]) -> float:
    """The better of one compute thread and all: small pieces, and busy machines, are faster with one."""
    threads = torch.get_num_threads()
    rates = [measure()]
    if device.type == "cpu" and threads > 1:
        try:
            torch.set_num_threads(1)
            rates.append(measure())
        finally:
            torch.set_num_threads(threads)
    return max(rates)


def matmul_rate(device: torch.device, precision: str, box: float) -> float | None:
    """FLOP/s of the best square matmul tried; None where this device has no such type."""
    sizes = (2048, 4096, 8192) if device.type == "cuda" else (512, 1024, 2048)
    end = time.perf_counter() + box
    best = 0.0
    for size in sizes:
        try:
            left, right = (torch.randn(size, size, device=device).to(_TYPES[precision]) for _ in range(2))
            seconds = _best(lambda a=left, b=right: a @ b, device, 0.0)  # type: ignore[misc]
            if 2 * seconds > end - time.perf_counter() and best:
                break
            seconds = _best(lambda a=left, b=right: a @ b, device, box / len(sizes))  # type: ignore[misc]
        except (RuntimeError, TypeError):
            break
        best = max(best, 2.0 * size**3 / seconds)
    return best or None


def _tf32(device: torch.device, box: float) -> float | None:
    with matmul_precision("high"):
        return matmul_rate(device, "fp32", box)


def stream_rate(device: torch.device, size: int, box: float) -> float:
    """Bytes per second, read and written together, by the better of copying and of adding in place.

    Args:
        size: bytes of both operands together.
    """
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
    return max(moved / _best(copy, device, box / 2), 1.5 * moved / _best(add, device, box / 2))


def copy_rates(device: torch.device, size: int = 1 << 26) -> dict[str, float]:
    """Bytes per second between host and device, pageable and pinned, both ways."""
    found = {}
    on_device = torch.empty(size, dtype=torch.uint8, device=device)
    for kind in ("pageable", "pinned"):
        host = torch.empty(size, dtype=torch.uint8, pin_memory=kind == "pinned").fill_(1)
        to = _best(lambda h=host: on_device.copy_(h), device, 0.05)  # type: ignore[misc]
        back = _best(lambda h=host: h.copy_(on_device), device, 0.05)  # type: ignore[misc]
        found[f"copy_{kind}_to_device_bytes_per_second"] = size / to
        found[f"copy_{kind}_from_device_bytes_per_second"] = size / back
    return found


def launch_cost(device: torch.device, count: int = 1000) -> float:
    """Seconds that one operator costs however little it does: dispatch, on a device also the launch."""
    tiny = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(count):
            tiny.add_(1)

    return _best(many, device, 0.05) / count


def storage_rate(size: int = 1 << 25) -> float | None:
    """Bytes per second of reading a file just written, dropped from the page cache where the system allows."""
    try:
        with tempfile.NamedTemporaryFile(dir=_storage_folder()) as file:
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


def _storage_folder() -> str | None:
    """The user's cache if it is there: a temporary folder often lies in memory."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder)


def _best(call: Callable[[], Any], device: torch.device, box: float) -> float:
    """The shortest of several calls: a peak is what was reached, not what is usual. CUDA by device events."""
    call()
    best = float("inf")
    start = time.perf_counter()
    while True:
        best = min(best, _seconds(call, device))
        if time.perf_counter() - start >= box:
            return best


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        event: Any = torch.cuda.Event
        first, last = event(enable_timing=True), event(enable_timing=True)
        first.record()
        call()
        last.record()
        last.synchronize()
        return max(float(first.elapsed_time(last)) / 1e3, 1e-9)
    start = time.perf_counter()
    call()
    if device.type == "mps":
        torch.mps.synchronize()
    return max(time.perf_counter() - start, 1e-9)
