"""The machine and what runs on it, as far as this process may use it, and its use while something runs."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import torch

from autoopt.benchmark.affinity import cores
from autoopt.benchmark.cputime import descendants, memory, parent
from autoopt.benchmark.device import Device, resolve_device
from autoopt.records import Environment, JsonDict

_PACKAGES = ("numpy", "torchvision", "triton", "lightning", "transformers", "accelerate", "torch-tb-profiler")
_TRITON = ("pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")
"""Other names under which triton is distributed."""
_SLOWED_BY = ("SwThermalSlowdown", "HwThermalSlowdown", "SwPowerCap", "HwSlowdown")
"""NVML's reasons for a lower clock: heat, or a limit of power."""
_CGROUP = Path("/sys/fs/cgroup")
Reading = dict[str, float]


def environment(device: str | torch.device) -> Environment:
    """The environment: versions, device, processor, memory, the commit of the working directory, the load.

    Raises:
        EnvironmentLacks: no such device.
    """
    where = resolve_device(str(device))
    commit = git("rev-parse", "HEAD", timeout=5)
    if commit is not None and git("status", "--porcelain", "--untracked-files=no", timeout=5):
        commit += "-dirty"
    packages = {}
    for name in (*_PACKAGES, *_TRITON):
        with contextlib.suppress(PackageNotFoundError):
            packages["triton" if name in _TRITON else name] = version(name)
    if where.type == "cuda":
        device_name: str | None = torch.cuda.get_device_name(where)
    else:
        device_name = cpu_name() if where.type == "cpu" else "Apple " + (platform.machine() or "GPU")
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        device=str(where),
        devices=torch.cuda.device_count() - (where.index or 0) if where.type == "cuda" else None,
        device_name=device_name,
        device_memory_bytes=(
            int(torch.cuda.get_device_properties(where).total_memory) if where.type == "cuda" else usable_ram()
        ),
        cpu=cpu_name(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        ram_bytes=usable_ram(),
        os=platform.platform(terse=True),
        git_commit=commit,
        load=os.getloadavg()[0],
        compiler=compiler(),
        packages=packages,
    )


def cpu_name() -> str | None:
    """The processor's name as the kernel has it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may use: its affinity, and the quota of its container, rounded down to 1 at least."""
    count, quota = len(cores()), cpu_quota(cgroup)
    return count if quota is None else max(1, min(count, int(quota)))


def cpu_quota(cgroup: Path = _CGROUP) -> float | None:
    """Cores' worth of time that a container allows, versions 1 and 2; None without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota_1, period_1 = (int((cgroup / f"cpu/cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota_1 / period_1 if quota_1 > 0 else None
    return None


def usable_ram(cgroup: Path = _CGROUP) -> int:
    """Bytes of memory: the machine's, or the limit of its container where that is less."""
    total = memory()[0]
    for file in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(total, int(file.read_text()))
    return total


def git(*words: str, folder: Path | str | None = None, timeout: float = 120) -> str | None:
    """The output of a git command; None where it fails, or there is no git."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def compiler() -> str | None:
    """The C++ compiler that ``torch.compile`` uses on the CPU; None where there is none."""
    name = os.environ.get("CXX") or next((c for c in ("g++", "clang++", "c++") if shutil.which(c)), None)
    return name if name and shutil.which(name.split()[0]) else None


class Monitor:
    """Samples a CUDA device in a thread of its own while its ``with`` block runs, where ``nvidia-ml-py`` is installed.

    What cannot be read here is left out, never 0. A reading takes the interpreter for well under a
    millisecond, so that at ten a second a step is not disturbed.
    """

    def __init__(self, device: Device) -> None:
        self._read_device = nvml_reader(device)
        self._readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="autoopt-monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self._began = perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wall = perf_counter() - self._began
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while self._read_device is not None and not self._stop.wait(0.1):
            self._readings.append(self._read_device())

    def summary(self) -> JsonDict:
        """Means over the block: ``device_utilization`` (share of time), ``power_watts``, ``energy_joules``,
        ``clock_hertz``, ``throttled`` (share of readings)."""
        found: JsonDict = {}
        for name in sorted({name for reading in self._readings for name in reading}):
            found[name] = fmean(reading[name] for reading in self._readings if name in reading)
        if "power_watts" in found:
            found["energy_joules"] = found["power_watts"] * self._wall
        return found


def nvml_reader(device: Device) -> Callable[[], Reading] | None:
    """A function that reads a CUDA device through NVML; None where that cannot be."""
    opened = opened_nvml(device)
    if opened is None:
        return None
    nvml, handle = opened

    def throttled() -> bool:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return any(reasons & getattr(nvml, f"nvmlClocksThrottleReason{reason}") for reason in _SLOWED_BY)

    questions: dict[str, Callable[[], float]] = {
        "device_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "clock_hertz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
        "throttled": throttled,
    }

    def read() -> Reading:
        reading: Reading = {}
        for name, ask in questions.items():
            with contextlib.suppress(Exception):  # not every device answers every question
                reading[name] = float(ask())
        return reading

    return read


def opened_nvml(device: Device) -> tuple[Any, Any] | None:
    """NVML and its handle of a CUDA device; None of another one, without the package, and where it cannot be read."""
    with contextlib.suppress(Exception):
        if device.kind == "cuda":
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            return nvml, nvml_handle(nvml, device)
    return None


def nvml_handle(nvml: Any, device: Device) -> Any:
    """NVML's handle of a CUDA device. NVML counts all devices, torch those that CUDA_VISIBLE_DEVICES leaves.

    By UUID (of a whole device, or of a part of one: MIG), else by its place on the bus; by number only where nothing
    says that they are counted otherwise.

    Raises:
        LookupError: NVML does not know it, or it is unknown which of its devices it is.
    """
    known: Any = torch.cuda.get_device_properties(device.torch)
    for kind in ("GPU", "MIG"):
        with contextlib.suppress(Exception):
            return nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{known.uuid}")
    with contextlib.suppress(Exception):
        place = f"{known.pci_domain_id:08x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"
        return nvml.nvmlDeviceGetHandleByPciBusId(place)
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        raise LookupError(f"{device} is one of CUDA_VISIBLE_DEVICES, and NVML does not say which")
    return nvml.nvmlDeviceGetHandleByIndex(device.torch.index or 0)


def other_users(device: Device) -> list[int]:
    """Processes outside this one's tree that hold memory of a CUDA device; empty where that is unknown.

    In a container the driver may count processes as the host does: where this one, which holds memory, is
    not among those it names, nothing can be said of the others.
    """
    opened, pids = opened_nvml(device), []
    with contextlib.suppress(Exception):  # not every device answers every question
        pids = [process.pid for process in opened[0].nvmlDeviceGetComputeRunningProcesses(opened[1])] if opened else []
    if os.getpid() not in pids:
        return []
    above, own = os.getpid(), {*descendants()}
    while above:
        own.add(above)
        above = parent(above)
    return [pid for pid in pids if pid not in own]
