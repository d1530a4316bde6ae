"""The machine and what runs on it, as far as this process may use it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from autoopt.benchmark.affinity import cores
from autoopt.benchmark.device import resolve_device
from autoopt.records import Environment

__all__ = ["environment", "resolve_device"]

_PACKAGES = ("numpy", "torchvision", "triton", "lightning", "transformers", "accelerate", "torch-tb-profiler")
_TRITON = ("pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")
"""Other names under which triton is distributed."""
_CGROUP = Path("/sys/fs/cgroup")


def environment(device: str | torch.device) -> Environment:
    """The environment: versions, device, processor, memory, the commit of the working directory, the load.

    Raises:
        EnvironmentLacks: no such device.
    """
    where = resolve_device(str(device))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        device=str(where),
        devices=torch.cuda.device_count() - (where.index or 0) if where.type == "cuda" else None,
        device_name=_device_name(where),
        device_memory_bytes=_device_memory(where),
        cpu=cpu_name(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        ram_bytes=usable_ram(),
        os=platform.platform(terse=True),
        git_commit=git_commit(),
        load=load,
        compiler=compiler(),
        packages=_versions(),
    )


def _device_name(device: torch.device) -> str | None:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() if device.type == "cpu" else "Apple " + (platform.machine() or "GPU")


def _device_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return usable_ram()


def cpu_name() -> str | None:
    """The processor's name as the kernel has it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def affinity_cores() -> int:
    """Cores on which this process may be placed, whatever its container's quota."""
    return len(cores())


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may use: its affinity, and the quota of its container, rounded down to 1 at least."""
    cores = affinity_cores()
    quota = cpu_quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(cgroup: Path = _CGROUP) -> float | None:
    """Cores' worth of time that a container allows, versions 1 and 2; None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_1 = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        period_1 = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota_1 / period_1 if quota_1 > 0 else None


def usable_ram(cgroup: Path = _CGROUP) -> int:
    """Bytes of memory: the machine's, or the limit of its container where that is less."""
    total = int(psutil.virtual_memory().total)
    for file in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        try:
            return min(total, int(file.read_text()))
        except (OSError, ValueError):
            continue
    return total


def git_commit(folder: str | None = None) -> str | None:
    """The commit of the folder's repository, with ``-dirty`` where files differ from it; None outside one."""
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                [git, *arguments], cwd=folder, capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("-dirty" if ask("status", "--porcelain", "--untracked-files=no") else "")


def compiler() -> str | None:
    """The C++ compiler that ``torch.compile`` uses on the CPU; None where there is none."""
    name = os.environ.get("CXX") or next((c for c in ("g++", "clang++", "c++") if shutil.which(c)), None)
    return name if name and shutil.which(name.split()[0]) else None


def _versions() -> dict[str, str]:
    found = {}
    for name in (*_PACKAGES, *_TRITON):
        try:
            found["triton" if name in _TRITON else name] = version(name)
        except PackageNotFoundError:
            continue
    return found
