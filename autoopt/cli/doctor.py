"""``autoopt doctor``: the machine, and what would make measurements doubtful."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from autoopt import __version__
from autoopt.cli.group import Command
from autoopt.cli.output import answer, stdout_kept
from autoopt.cli.parameters import optimize_options, read_options

if TYPE_CHECKING:
    from autoopt.cli.doubts import Doubt
    from autoopt.records import Environment, JsonDict

NOT_KNOWN = "not known"
NOT_MEASURED = "not measured"


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
    document["doubts"] = [doubt.model_dump() for doubt in found]
    answer(document, lines(environment, found), as_json=options.json)
    return 0


def describe_machine(device_name: str) -> tuple[Environment, list[Doubt]]:
    """The environment with its peaks, and the doubts.

    Raises:
        EnvironmentLacks: there is no such device.
    """
    from autoopt.benchmark.device import resolve_device
    from autoopt.benchmark.environment import environment
    from autoopt.cli.doubts import doubts, probe
    from autoopt.simplify.peaks import measured_peaks

    device = resolve_device(device_name)
    machine, known = probe(device), environment(device)
    found = doubts(known, machine)
    return known.model_copy(update={"peaks": measured_peaks(device)}), found


def lines(environment: Environment, found: list[Doubt]) -> Iterator[str]:
    """The text of the command, line by line."""
    rows = [("autoopt", __version__), ("python", environment.python), ("torch", environment.torch)]
    rows += [("cuda", environment.cuda or "none"), ("system", environment.os), ("processor", environment.cpu)]
    rows += [("cores", _count(environment.cores)), ("compute threads", _count(environment.threads))]
    rows += [("memory", _bytes(environment.ram_bytes)), ("device", _device(environment))]
    rows += [("compiler", environment.compiler or "none"), *sorted(environment.packages.items())]
    yield from _table("this machine", [(name, value or NOT_KNOWN) for name, value in rows])
    yield ""
    yield from _table("what it reaches", list(_peaks(environment)))
    yield ""
    yield "what makes measuring doubtful" if found else "nothing here makes measuring doubtful"
    for doubt in found:
        yield f"  {doubt.what}"
        yield f"    {doubt.do}"


def _peaks(environment: Environment) -> Iterator[tuple[str, str]]:
    peaks = environment.peaks
    if (peaks.foreign_cores or 0.0) > 0.0:
        yield "other programs", f"{peaks.foreign_cores:.2f} cores during the measurement"
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        yield f"matmul {precision}", _rate(getattr(peaks, f"matmul_{precision}_flops_per_second"), "FLOP/s")
    yield "memory", _rate(peaks.memory_bytes_per_second, "B/s")
    for memory in ("pageable", "pinned"):
        for way in ("to", "from"):
            rate = getattr(peaks, f"copy_{memory}_{way}_device_bytes_per_second")
            yield f"copy {way} device, {memory}", _rate(rate, "B/s")
    yield "storage read", _rate(peaks.storage_bytes_per_second, "B/s")
    launch = peaks.launch_seconds
    yield "starting an operator", NOT_MEASURED if launch is None else f"{launch * 1e6:.2f} us"
    if peaks.measured_at:
        yield "measured", peaks.measured_at


def _table(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    yield title
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"  {name.ljust(width)}  {value}"


def _device(environment: Environment) -> str:
    named = f" ({environment.device_name})" if environment.device_name else ""
    memory = f", {_bytes(environment.device_memory_bytes)}" if environment.device_memory_bytes else ""
    return f"{environment.device}{named}{memory}"


def _rate(rate: float | None, unit: str) -> str:
    """A rate with its prefix; what is not measured says so."""
    if rate is None:
        return NOT_MEASURED
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= size:
            return f"{rate / size:.3g} {prefix}{unit}"
    return f"{rate:.3g} {unit}"


def _bytes(count: int | None) -> str | None:
    return None if count is None else f"{count / 1024**3:.1f} GiB"


def _count(number: int | None) -> str | None:
    return None if number is None else str(number)
