"""Faults of a trial and what must become of each: the table that ``faults.py`` prints and the tests run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from benchmarks.documents import ROOT

WORKLOADS = ROOT / "tests" / "workloads"
TINY = f"{WORKLOADS / 'tiny.py'}:build"
FAULTY_IMPORT = f"{WORKLOADS / 'faulty_import.py'}:build"

PLACES = ("build", "dataset", "collate", "loss", "backward", "optimizer", "evaluate")

SURVIVED = "survived"
WORKLOAD_ERROR = "workload error (exit code 3)"
USAGE_ERROR = "usage error (exit code 2)"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        name: what goes wrong, and where.
        outcome: the kind of the failure, ``survived``, or the error that ends a run.
        reason: a pattern that the reason matches.
        knobs: environment variables of the workload.
        spec: further fields of the trial's spec.
        seconds: the time limit of a step; None for one that no slow machine reaches.
    """

    name: str
    outcome: str
    reason: str = ""
    knobs: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None

    def matches(self, outcome: str, reason: str) -> bool:
        return outcome == self.outcome and re.search(self.reason, reason) is not None


def tiny(name: str, outcome: str, reason: str = "", *, seconds: float | None = None, **knobs: Any) -> Fault:
    """A fault of the tiny workload, by its name in ``tiny.FAULTS``."""
    text = name.replace("_in_", " in ").replace("_", " ") + "".join(f", {k}={v}".lower() for k, v in knobs.items())
    named = {f"TINY_{knob}": value for knob, value in knobs.items()}
    return Fault(text, outcome, reason, {"TINY_FAULT": name, **named}, seconds=seconds)


def importing(fault: str, outcome: str, reason: str = "", *, seconds: float | None = None) -> Fault:
    return Fault(
        f"{fault.replace('_', ' ')} in import",
        outcome,
        reason,
        {"FAULTY_IMPORT": fault},
        {"workload": FAULTY_IMPORT},
        seconds=seconds,
    )


def strategy(name: str, kind: str, reason: str, setting: dict[str, Any], seconds: float | None = None) -> Fault:
    return Fault(
        f"{name} {' '.join(setting.values())}".rstrip(),
        kind,
        reason,
        spec={
            "strategies": (f"faulty_strategies:{kind_of(name)}",),
            "plan": {"changes": [{"strategy": name, "setting": setting}]},
        },
        seconds=seconds,
    )


def kind_of(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


FIRST: dict[str, dict[str, int]] = {place: {"AT": 1} if place == "evaluate" else {} for place in PLACES}
"""An evaluation may be the only one."""

LATE: dict[str, Any] = {"AT": 20, "TARGET": "none"}

ERROR = r"ValueError: broken on purpose"
AT_TINY = r" \(tiny\.py:\d+\)"

FAULTS: tuple[Fault, ...] = (
    # an exception, wherever the user's code runs
    *(
        tiny(f"error_in_{place}", WORKLOAD_ERROR if place == "build" else "error", "broken on purpose", **FIRST[place])
        for place in PLACES
    ),
    tiny("error_in_dataset", "error", "broken on purpose.*in a data loader worker", WORKERS=2),
    tiny("error_in_collate", "error", "broken on purpose.*in a data loader worker", WORKERS=2),
    tiny("recursion_in_loss", "error", "RecursionError"),
    tiny("sys_exit_in_build", "error", r"sys\.exit\(3\)" + AT_TINY),
    tiny("sys_exit_in_loss", "error", r"sys\.exit\(3\)" + AT_TINY),
    tiny("sys_exit_in_evaluate", "error", r"sys\.exit\(3\)" + AT_TINY, AT=1),
    tiny("interrupt_in_loss", "error", "KeyboardInterrupt"),
    tiny("generator_exit_in_loss", "error", "GeneratorExit"),
    # what is not a number
    tiny("nan_in_loss", "not_finite", "", AT=1),
    tiny("nan_in_loss", "not_finite", "", **LATE),
    tiny("inf_in_loss", "not_finite", "", AT=1),
    tiny("inf_in_loss", "not_finite", "", **LATE),
    # memory
    tiny("host_memory_in_build", "out_of_memory", "host has no memory left"),
    tiny("host_memory_in_loss", "out_of_memory", "host has no memory left"),
    tiny("python_memory_in_dataset", "out_of_memory", "host has no memory left"),
    tiny("python_memory_in_dataset", "out_of_memory", "host has no memory left", WORKERS=2),
    tiny("device_memory_in_backward", "out_of_memory", "Tried to allocate"),
    tiny("device_memory_in_optimizer", "out_of_memory", "Tried to allocate"),
    tiny("shared_memory_in_loss", "out_of_memory", "/dev/shm is full"),
    Fault("memory limit of a simulated device", "out_of_memory", "the limit is", spec={"memory_limit_bytes": 5000}),
    # the process is gone
    *(
        tiny(f"segfault_in_{place}", "crashed", "signal 11 .SIGSEGV", **FIRST[place])
        for place in ("build", "loss", "backward", "optimizer", "evaluate")
    ),
    tiny("bus_error_in_loss", "crashed", "signal 7 .SIGBUS.*dev/shm"),
    tiny("abort_in_loss", "crashed", "signal 6 .SIGABRT"),
    tiny("kill_in_loss", "crashed", "signal 9 .SIGKILL"),
    tiny("os_exit_in_build", "crashed", "exit code 7"),
    tiny("os_exit_in_loss", "crashed", "exit code 7"),
    tiny("segfault_in_dataset", "crashed", "data loader worker .* Segmentation fault", WORKERS=2),
    tiny("kill_in_dataset", "crashed", "data loader worker .* Killed", WORKERS=2),
    tiny("bus_error_in_dataset", "out_of_memory", "shm|shared memory", WORKERS=2),
    tiny("os_exit_in_dataset", "crashed", "data loader worker .* ended without a word", WORKERS=2),
    tiny("device_lost_in_loss", "crashed", "the device failed: CUDA error: unspecified launch failure"),
    # hanging
    *(tiny(f"hang_in_{place}", "timeout", r"no answer within", seconds=1.0) for place in ("build", "loss", "backward")),
    tiny("hang_in_dataset", "timeout", "no answer within", seconds=1.0, WORKERS=2),
    tiny("hard_hang_in_loss", "timeout", "no answer within", seconds=1.0),
    tiny("spin_in_loss", "timeout", "no answer within", seconds=1.0),
    # the import
    importing("error", WORKLOAD_ERROR, "ValueError"),
    importing("missing", WORKLOAD_ERROR, "a_module_that_nobody_has"),
    importing("sys_exit", WORKLOAD_ERROR, "exit"),
    importing("os_exit", "crashed", "exit code 9"),
    importing("segfault", "crashed", "SIGSEGV"),
    importing("hang", "timeout", "no answer within", seconds=1.0),
    importing("deadlock", "timeout", "no answer within", seconds=1.0),
    importing("fork_unsafe", SURVIVED),
    importing("threads", SURVIVED),
    # what user code does beside training
    *(
        tiny(f"{what}_in_{place}", SURVIVED)
        for what in ("prints", "closed_output", "chdir", "handlers", "threads", "children", "reseed")
        for place in ("build", "loss")
    ),
    tiny("shared_memory_left_in_loss", SURVIVED),
    tiny("files_left_in_loss", SURVIVED),
    # a third party's strategy
    strategy("faulty_apply_raises", "error", ERROR, {}),
    strategy("faulty_apply_exits", "error", r"sys\.exit\(3\)", {}),
    strategy("faulty_apply_nonsense", "error", "must return a Setup, got str", {}),
    strategy("faulty_apply_none", "error", "must return a Setup, got NoneType", {}),
    strategy("spoiler", "error", ERROR, {"how": "error"}),
    strategy("spoiler", "crashed", "SIGSEGV", {"how": "segfault"}),
    strategy("spoiler", "crashed", "exit code 5", {"how": "os_exit"}),
    strategy("spoiler", "not_finite", "", {"how": "nan"}),
    strategy("spoiler", "error", "", {"how": "not_a_step"}),
    strategy("spoiler", "timeout", "no answer within", {"how": "hang"}, seconds=1.0),
    Fault(
        "a strategy that cannot be imported",
        WORKLOAD_ERROR,
        "nowhere",
        spec={"strategies": ("nowhere.to_be_found:Strategy",)},
    ),
)
