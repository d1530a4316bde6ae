"""One trial that is measured from the inside: its block, its stubs, its operators, what strategies ask of it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from autoopt.benchmark.cputime import CpuTimes, foreign_cores
from autoopt.errors import TrialFailed
from autoopt.records import Advice, Environment, JsonDict, Peaks, Plan, Record
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block, Startup
from autoopt.search.trial_runner import TrialRunner
from autoopt.simplify.drift import whole

BENCHMARK = "autoopt.benchmark.tasks"
SIMPLIFY = "autoopt.simplify.tasks"
WARM_UP_SECONDS = 120.0
RAMP_SECONDS = 0.2
"""Trained unmeasured after the stubs, until the loader's queues are as they were."""
THROTTLED = 0.1
"""Share of readings with a lowered clock from which on it is told."""


class Inspection(Record):
    """What is known before anything is tried: the workload's facts and the machine's peaks."""

    facts: WorkloadFacts
    environment: Environment


class Examined(Record):
    """A plan looked at from the inside.

    ``missing``: what could not be measured, and why. ``monitor``: means over a block of a CUDA device
    (``autoopt.benchmark.monitors``); ``joules_per_step``: its energy; ``other_users``: other processes on it;
    ``foreign_cores``: how many cores other programs used, on average, while block and stubs were measured.
    """

    plan: Plan
    startup: Startup
    block: Block
    survey: JsonDict = Field(default_factory=dict)
    flops_per_step: float | None = None
    inspected: dict[str, JsonDict] = Field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    missing: tuple[str, ...] = ()
    monitor: JsonDict = Field(default_factory=dict)
    joules_per_step: float | None = None
    other_users: tuple[int, ...] = ()
    foreign_cores: float | None = None

    @property
    def step_seconds(self) -> float | None:
        """Mean step of the block; None where it had none."""
        return self.block.seconds / self.block.steps if self.block.steps else None

    @property
    def doubts(self) -> list[str]:
        """Why figures of this device may be doubtful, each with what to do about it."""
        found = []
        if self.other_users:
            pids = ", ".join(map(str, self.other_users))
            found.append(
                f"{len(self.other_users)} other processes use the device (pid {pids}): "
                "stop them, or read the figures as those of a shared device"
            )
        if (self.monitor.get("throttled") or 0.0) > THROTTLED:
            found.append(
                f"the device lowered its clock for heat or power in {self.monitor['throttled']:.0%} of the readings: "
                "ratios are paired and hold, absolute times are those of a throttled device"
            )
        return found


def inspect(bench: TrialRunner) -> Inspection:
    """Starts the baseline once and asks for its facts and the machine's peaks.

    Raises:
        TrialFailed: the baseline cannot be built or set up.
    """
    with bench.trial(Plan(), "inspect") as process:
        facts = WorkloadFacts.model_validate(process.call(f"{BENCHMARK}:facts", timeout=120.0))
        environment = Environment.model_validate(process.call(f"{BENCHMARK}:environment", timeout=60.0))
        try:
            peaks = Peaks.model_validate(process.call(f"{SIMPLIFY}:measure_peaks", timeout=120.0))
        except TrialFailed:  # without peaks there are no ceilings, which the report says; the rest goes on
            peaks = Peaks()
    return Inspection(facts=facts, environment=environment.model_copy(update={"peaks": peaks}))


def examine(bench: TrialRunner, plan: Plan, *, seconds: float, advise: bool, trace: str | None = None) -> Examined:
    """Runs a plan, then stubs its stages one by one.

    Args:
        seconds: for the stubs; the block takes about a quarter of it besides.
        advise: also look for what only a person can change.
        trace: a folder for a short torch.profiler trace.

    Raises:
        TrialFailed: the plan does not train.
    """
    missing: list[str] = []
    with bench.trial(plan, "examine") as process:
        startup = process.call(f"{BENCHMARK}:warm_up", timeout=600.0, max_seconds=WARM_UP_SECONDS)

        def optional(what: str, task: str, **arguments: Any) -> JsonDict:
            """What may fail without spoiling the rest."""
            try:
                return process.call(task, timeout=seconds * 10 + 120.0, **arguments)
            except TrialFailed as failure:
                missing.append(f"{what}: {failure.reason}")
                return {}

        before = optional("use of the cores", f"{BENCHMARK}:cpu_clock")
        each: JsonDict = {"seconds": max(seconds / 8, 0.5), "min_steps": 4}
        running = process.call(f"{SIMPLIFY}:running", timeout=seconds * 10 + 60.0, **each)
        flops = optional("floating-point operations", f"{BENCHMARK}:flops")
        survey = optional("stage ceilings", f"{SIMPLIFY}:measure_stages", seconds=seconds)
        # stubs lie between two halves: both see the same stretches of a machine whose speed changes
        again = optional("the step after its stages", f"{SIMPLIFY}:running", **each, ramp_seconds=RAMP_SECONDS)
        halves = [(Block.model_validate(half["block"]), half["reference"]) for half in (running, again) if half]
        block, reference = whole(*halves)
        if survey:
            survey = {**survey, "reference": reference}
        after = optional("use of the cores", f"{BENCHMARK}:cpu_clock") if before else {}
        inspected = optional("what strategies ask", f"{BENCHMARK}:inspect", strategies=list(bench.registry))
        step = block.seconds / max(block.steps, 1)
        advice = optional("advice", f"{SIMPLIFY}:advise", step_seconds=step) if advise else {}
        monitored: JsonDict = {}
        if survey.get("device") == "cuda":
            watched = max(seconds / 8, 1.0)
            monitored = optional("use of the device", f"{BENCHMARK}:monitored_block", seconds=watched, min_steps=8)
        if trace:
            optional("trace", f"{BENCHMARK}:trace", directory=trace, steps=4)
    return Examined(
        plan=plan,
        startup=Startup.model_validate(startup),
        block=block,
        survey=survey,
        flops_per_step=flops.get("flops_per_step"),
        inspected=inspected,
        advice=tuple(Advice.model_validate(item) for item in advice.get("advice", ())),
        missing=tuple(missing),
        monitor=monitored.get("monitor", {}),
        joules_per_step=_joules(monitored),
        other_users=tuple(monitored.get("other_users", ())),
        foreign_cores=_foreign_cores(before, after),
    )


def _foreign_cores(before: JsonDict, after: JsonDict) -> float | None:
    """Cores that others used between two readings of the trial's process; None where one of them failed."""
    if not before or not after:
        return None
    first, last = (CpuTimes(own=seen["own"], busy=seen["busy"]) for seen in (before, after))
    return foreign_cores(first, last, after["at"] - before["at"])


def _joules(monitored: JsonDict) -> float | None:
    """Energy of one step; None where the device does not tell it."""
    energy = monitored.get("monitor", {}).get("energy_joules")
    return None if energy is None else float(energy) / int(monitored["block"]["steps"])
