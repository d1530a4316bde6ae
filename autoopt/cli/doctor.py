"""``autoopt doctor``: the machine, and what would make measurements doubtful."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from autoopt import __version__
from autoopt.cli.group import Command
from autoopt.cli.output import answer, stdout_kept
from autoopt.cli.parameters import optimize_options, read_options

if TYPE_CHECKING:
    from autoopt.records import Environment, JsonDict

BUSY_PER_CORE, SCARCE_MEMORY, TAKEN_DEVICE_MEMORY = 0.3, 0.15, 0.05
"""Load of each core, share of the memory that is free, and of the device's that others hold, which disturb a run."""
SMALL_SHARED_MEMORY = 256 * 1024**2
"""Bytes: loader workers hand their batches over there; Docker gives 64 MiB."""


@click.command("doctor", cls=Command)
@optimize_options("device", "json")
def doctor_command(**given: Any) -> int:
    """Check how well this machine can measure.

    \b
    Example:
      autoopt doctor --device cuda

    Prints device, versions and measured peaks, and what makes measurements doubtful. The peaks take some seconds and
    are cached.
    """
    options = read_options(given)
    with stdout_kept():
        environment, found = describe_machine(options.device)
    document: JsonDict = {"autoopt": __version__, "environment": environment.model_dump()}
    document["doubts"] = [doubt._asdict() for doubt in found]
    answer(document, lines(environment, found), as_json=options.json)
    return 0


def describe_machine(device_name: str) -> tuple[Environment, list[Doubt]]:
    """The environment with its peaks, and the doubts.

    Raises:
        EnvironmentLacks: there is no such device.
    """
    from autoopt.benchmark.device import resolve_device
    from autoopt.benchmark.environment import environment
    from autoopt.simplify.peaks import measured_peaks

    device = resolve_device(device_name)
    machine, known = probe(device), environment(device)
    found = doubts(known, machine)
    return known.model_copy(update={"peaks": measured_peaks(device)}), found


def lines(environment: Environment, found: list[Doubt]) -> Iterator[str]:
    """The text of the command, line by line; machine and peaks are named as in a report."""
    from autoopt_reports.view.page import machine_lines, peak_lines
    from autoopt_reports.view.units import NOT_MEASURED

    peaks = environment.peaks
    reached: list[tuple[str, object]] = [*peak_lines(peaks), ("measured", peaks.measured_at or NOT_MEASURED)]
    if (peaks.foreign_cores or 0.0) > 0.0:
        reached.append(("other programs", f"{peaks.foreign_cores:.2f} cores during the measurement"))
    machine = [("autoopt", __version__), ("kind of device", environment.device), *machine_lines(environment)]
    for title, rows in (("this machine", machine), ("what it reaches", reached)):
        width = max(len(name) for name, _ in rows)
        yield from (title, *(f"  {name.ljust(width)}  {value}" for name, value in rows), "")
    yield "what makes measuring doubtful" if found else "nothing here makes measuring doubtful"
    for doubt in found:
        yield from (f"  {doubt.what}", f"    {doubt.do}")


class Doubt(NamedTuple):
    """One reason to doubt, and what to do about it."""

    what: str
    do: str


@dataclass(frozen=True)
class Readings:
    """Readings of this machine that its ``Environment`` does not hold. ``None``: could not be found out here.

    Args:
        cores: cores that this process may use, whatever its container allows.
        quota: cores' worth of time that a container allows.
        ram_bytes, free_ram_bytes: memory of the machine, and what of it can be had.
        swapped_bytes: memory that lies on disk.
        shared_bytes: size of /dev/shm, through which loader workers hand over batches.
        governors: how the cores' clock is governed.
        on_battery: whether the machine runs on its battery.
        taken_device_bytes, device_bytes: device memory that others hold, and all of it.
    """

    cores: int
    quota: float | None = None
    ram_bytes: int | None = None
    free_ram_bytes: int | None = None
    swapped_bytes: int | None = None
    shared_bytes: int | None = None
    governors: frozenset[str] = frozenset()
    on_battery: bool | None = None
    taken_device_bytes: int | None = None
    device_bytes: int | None = None


def doubts(known: Environment, machine: Readings) -> list[Doubt]:
    """The reasons to doubt what is measured on a machine; empty on a good one."""
    return [Doubt(*each) for each in (*_processor(known, machine), *_memory(machine))]


def _processor(known: Environment, machine: Readings) -> Iterator[tuple[str, str]]:
    cores = machine.cores
    if known.load is not None and known.load > BUSY_PER_CORE * cores:
        yield (
            f"the machine is busy: load {known.load:.1f} on {cores} cores",
            "stop other programs, or expect gains under this load only",
        )
    if cores == 1:
        yield (
            "there is one core: loader workers and training share it",
            "expect no gain from workers here; measure on the machine that will train",
        )
    if machine.quota is not None and machine.quota < cores:
        yield (
            f"the container allows {machine.quota:g} cores' worth of time on {cores} cores",
            "steps are throttled in bursts; allow whole cores, or pin the container to some",
        )
    if known.threads is not None and known.threads > cores:
        yield (
            f"torch starts {known.threads} compute threads on {cores} cores",
            "set OMP_NUM_THREADS to the number of cores or less",
        )
    slow = ", ".join(sorted(machine.governors & {"powersave", "ondemand", "conservative", "schedutil"}))
    if slow:
        yield (
            f"the cores' clock follows the load (governor {slow})",
            "set the governor to performance for the time of the run",
        )
    if machine.on_battery:
        yield "the machine runs on its battery, which lowers its clock", "plug it in"
    if known.compiler is None:
        yield "there is no C++ compiler: torch.compile cannot be tried on the CPU", "install g++"


def _memory(machine: Readings) -> Iterator[tuple[str, str]]:
    from autoopt_reports.view.units import bytes_

    free = machine.free_ram_bytes
    if machine.ram_bytes and free is not None and free / machine.ram_bytes < SCARCE_MEMORY:
        yield (
            f"{free / machine.ram_bytes:.0%} of the memory is free ({bytes_(free)})",
            "caching and workers may not fit: stop other programs",
        )
    if machine.swapped_bytes:
        yield (
            f"{bytes_(machine.swapped_bytes)} of memory lie on disk (swap)",
            "stop other programs; a process that is swapped back in is slow for a while",
        )
    if machine.shared_bytes is not None and machine.shared_bytes < SMALL_SHARED_MEMORY:
        yield (
            f"/dev/shm holds {bytes_(machine.shared_bytes)}: loader workers hand over batches through it",
            "give the container more, such as docker run --shm-size=2g",
        )
    taken = machine.taken_device_bytes
    if taken is not None and machine.device_bytes and taken / machine.device_bytes > TAKEN_DEVICE_MEMORY:
        yield (
            f"other processes hold {bytes_(taken)} of the device's memory",
            "stop them: they may compute too, and batch sizes will look smaller than they can be",
        )


def probe(device: Any) -> Readings:
    """Reads this machine, and the device as far as others hold its memory."""
    import psutil
    import torch

    from autoopt.benchmark.affinity import cores
    from autoopt.benchmark.environment import cpu_quota

    taken = total = None
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        taken = total - free - torch.cuda.memory_reserved(device)
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return Readings(
        cores=len(cores()),
        quota=cpu_quota(),
        ram_bytes=memory.total,
        free_ram_bytes=memory.available,
        swapped_bytes=swap.used,
        shared_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        governors=_governors(Path("/sys/devices/system/cpu")),
        on_battery=None if battery is None else not battery.power_plugged,
        taken_device_bytes=taken,
        device_bytes=total,
    )


def _governors(folder: Path) -> frozenset[str]:
    found = set()
    for file in folder.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        with suppress(OSError, ValueError):
            found.add(file.read_text(encoding="ascii").strip())
    return frozenset(found)
