"""Stage profile of a plan: one trial measured from the inside, and whether it was disturbed in the meantime."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from math import inf
from typing import Any, Protocol, TypeVar

from autoopt.benchmark.cputime import CpuTimes, foreign_cores
from autoopt.errors import TrialFailed
from autoopt.records import Advice, Deeper, Environment, JsonDict, Peaks, Plan, Record
from autoopt.records.distributed import Communication
from autoopt.records.facts import WorkloadFacts
from autoopt.records.machine import FOREIGN_CORES, disturbed
from autoopt.records.messages import Block, Startup
from autoopt.simplify.costly import time_text
from autoopt.simplify.drift import whole

BENCHMARK = "autoopt.benchmark.tasks"
SIMPLIFY = "autoopt.simplify.tasks"
WARM_UP_SECONDS = 120.0
"""Until steps are steady, at most: a model that is compiled takes one or two minutes."""
RAMP_SECONDS = 0.2
"""Trained unmeasured after the microbenchmarks, until the loader's queues are as they were."""
STAGES_STEPS, THREADS_STEPS = 36.0, 16.0
"""Slow steps: microbenchmarks, and what strategies ask, take as long as so many of them, about, and other numbers of
threads as so many cycles of them, with one thread slower than the others."""
PARTS = 8
"""Of a short run's steps: one to become steady, two for the block's halves, one for numbers of threads, and as much for
what else lets it train."""
SLOW_STEP = 0.3
"""Seconds of a step from which on a half of the block holds two: such steps differ by some per cent."""
DRIFT = 1.3
"""How far the profile's own step may be from the one that the paired comparison measured."""

Measured = TypeVar("Measured")


class Process(Protocol):
    """A trial's process (``autoopt.trial.process.LocalTrial``)."""

    def call(self, task: str, *, timeout: float, **arguments: Any) -> JsonDict: ...


class Trials(Protocol):
    """Starts trials (``autoopt.search.trial_runner.TrialRunner``)."""

    @property
    def registry(self) -> Iterable[str]: ...

    def trial(self, plan: Plan, label: str) -> AbstractContextManager[Process]: ...


class Description(Record):
    """The workload before anything is tried: its facts and the machine's peaks."""

    facts: WorkloadFacts
    environment: Environment


class StageProfile(Record):
    """A plan measured from the inside.

    ``timings``: ``simplify.stage_timings.StageTimings``; empty where they could not be measured. ``missing``: what
    could not be measured, and why. ``communication``: messages of several processes. ``monitor``: means over a block of
    a CUDA device (``autoopt.benchmark.environment``); ``joules_per_step``: its energy; ``other_users``: other processes
    on it; ``foreign_cores``: how many cores other programs used, on average, while block and stages were measured;
    ``own``: functions of the user's outside of the model's (``simplify.source``).
    """

    plan: Plan
    startup: Startup
    block: Block
    timings: JsonDict = field(default_factory=dict)
    communication: Communication | None = None
    flops_per_step: float | None = None
    inspected: dict[str, JsonDict] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    own: tuple[Deeper, ...] = ()
    missing: tuple[str, ...] = ()
    monitor: JsonDict = field(default_factory=dict)
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
        if (self.monitor.get("throttled") or 0.0) > 0.1:
            found.append(
                f"the device lowered its clock for heat or power in {self.monitor['throttled']:.0%} of the readings: "
                "ratios are paired and hold, absolute times are those of a throttled device"
            )
        return found


def describe(runner: Trials) -> Description:
    """Starts the baseline once and asks for its facts and the machine's peaks.

    Raises:
        TrialFailed: the baseline cannot be built or set up.
    """
    with runner.trial(Plan(), "inspect") as process:
        return described_by(process)


def described_by(process: Process) -> Description:
    """The same of a process of the baseline that has been started.

    Raises:
        TrialFailed: it cannot tell.
    """
    facts = WorkloadFacts.model_validate(process.call(f"{BENCHMARK}:facts", timeout=120.0))
    environment = Environment.model_validate(process.call(f"{BENCHMARK}:environment", timeout=60.0))
    try:
        peaks = Peaks.model_validate(process.call(f"{SIMPLIFY}:measure_peaks", timeout=120.0))
    except TrialFailed:  # without peaks there are no ceilings, which the report says; the rest goes on
        peaks = Peaks()
    return Description(facts=facts, environment=environment.model_copy(update={"peaks": peaks}))


def profile_stages(
    runner: Trials,
    plan: Plan,
    *,
    seconds: float,
    advise: bool,
    trace: str | None = None,
    strategies: Sequence[str] | None = None,
    limit: float = inf,
    trying: float | None = None,
    run_steps: int | None = None,
    on_profile: Callable[[StageProfile], None] = lambda seen: None,
) -> StageProfile:
    """Runs a plan, then measures its stages one by one.

    Args:
        seconds: for the microbenchmarks. The two halves of the block take a quarter of it besides; what strategies
            ask and advice are held to as much.
        strategies: that may look into the workload; all where None.
        limit: seconds of all of it, about: what steps are too slow for is left out, and reported.
        trying: seconds after which strategies try nothing more on copies of the model; without limit where None.
        run_steps: after which a script ends; its parts are measured in an eighth of them each.
        on_profile: called with what predictions need, as soon as that is there: before advice and trace.

    Raises:
        TrialFailed: the plan does not train.
    """
    began, asking = time.monotonic(), list(runner.registry if strategies is None else strategies)
    with runner.trial(plan, "examine") as process:
        tasks = _Tasks(process, seconds, until=began + limit)
        until_steady: JsonDict = {"max_seconds": min(WARM_UP_SECONDS, limit / 2)}
        if run_steps is not None:
            until_steady["most_steps"] = max(run_steps // PARTS, 1)
        startup = process.call(f"{BENCHMARK}:warm_up", timeout=600.0, **until_steady)
        before = tasks.may("use of the cores", f"{BENCHMARK}:cpu_clock")
        step = startup["warmup_seconds"] / max(startup["warmup_steps"], 1)
        most = inf if run_steps is None else run_steps / PARTS * step
        each: JsonDict = {"seconds": min(max(seconds / 8, 0.5), most), "min_steps": 4 if step <= SLOW_STEP else 2}
        running = process.call(f"{SIMPLIFY}:running", timeout=seconds * 10 + 60.0, **each)
        tasks.step = running["block"]["seconds"] / max(running["block"]["steps"], 1)
        cycle = max(int(startup.get("cycle") or 1), 1)
        flops = tasks.may("floating-point operations", f"{BENCHMARK}:flops")
        timings = tasks.may("stage ceilings", f"{SIMPLIFY}:measure_stages", of_plan=STAGES_STEPS, seconds=seconds)
        tried: JsonDict = {}
        # other numbers of compute threads with which the compute alone does not take longer than the whole step now
        alone = {int(count): seconds for count, seconds in timings.get("compute_by_threads", {}).items()}
        counts = [each for each, seconds in alone.items() if each != timings["threads"] and seconds < tasks.step]
        if counts:
            other = {"of_plan": THREADS_STEPS * cycle, "seconds": min(seconds / 4, most), "cycle": cycle}
            tried = tasks.may("steps with other numbers of threads", f"{SIMPLIFY}:try_threads", counts=counts, **other)
        sent = tasks.may("messages between processes", f"{SIMPLIFY}:measure_messages", seconds=seconds / 4)
        # stages lie between two halves: both see the same stretches of a machine whose speed changes
        each["ramp_seconds"] = min(RAMP_SECONDS, most)
        again = tasks.may("the step after its stages", f"{SIMPLIFY}:running", **each)
        halves = [(Block.model_validate(half["block"]), half["reference"]) for half in (running, again) if half]
        block, reference = whole(*halves)
        own: JsonDict = {}
        if timings:
            block_of = {"of_plan": each["min_steps"], "seconds": each["seconds"], "min_steps": each["min_steps"]}
            own = tasks.may("functions outside the model", f"{SIMPLIFY}:own_code", **block_of)
            timings |= _as_they_run(timings, own, block, tried.get("steps", ()))
        after = tasks.may("use of the cores", f"{BENCHMARK}:cpu_clock") if before else {}
        foreign: float | None = None
        if after:
            first, last = (CpuTimes(own=seen["own"], busy=seen["busy"]) for seen in (before, after))
            foreign = foreign_cores(first, last, after["at"] - before["at"])
        asked = {"strategies": asking, "seconds": trying}
        inspected = tasks.may("what strategies ask", f"{BENCHMARK}:inspect", of_plan=STAGES_STEPS, **asked)
        monitored: JsonDict = {}
        if timings.get("device") == "cuda":
            watched = max(seconds / 8, 1.0)
            monitored = tasks.may("use of the device", f"{BENCHMARK}:monitored_block", seconds=watched, min_steps=8)
        energy = monitored.get("monitor", {}).get("energy_joules")
        seen = StageProfile(
            plan=plan,
            startup=Startup.model_validate(startup),
            block=block,
            timings={**timings, "reference": reference} if timings else {},
            communication=Communication.model_validate(sent) if sent else None,
            flops_per_step=flops.get("flops_per_step"),
            inspected=inspected,
            monitor=monitored.get("monitor", {}),
            joules_per_step=None if energy is None else float(energy) / int(monitored["block"]["steps"]),
            other_users=tuple(monitored.get("other_users", ())),
            foreign_cores=foreign,
        )
        on_profile(seen)
        advice: JsonDict = {}
        if advise and timings:
            advice = tasks.may("advice", f"{SIMPLIFY}:advise", timings=timings, step_seconds=seen.step_seconds)
        if trace:
            tasks.may("trace", f"{BENCHMARK}:trace", directory=trace, steps=4)
    found = tuple(Advice.model_validate(item) for item in advice.get("advice", ()))
    functions = tuple(Deeper.model_validate(item) for item in own.get("functions", ()))
    return seen.model_copy(update={"advice": found, "own": functions, "missing": tuple(tasks.missing)})


def _as_they_run(timings: JsonDict, own: JsonDict, block: Block, by_threads: Sequence[JsonDict]) -> JsonDict:
    """Timings with what microbenchmarks leave out of running steps: of the host, of steps that workers feed, and of
    the samples that they prepare.

    A step that ran itself, with other threads, stands for the one that was fed with as many.

    Args:
        own: functions of the user's, and whether steps on held batches are without them.
        by_threads: steps that ran, in units of the present one.
    """
    usual = block.seconds / max(block.steps, 1)
    seconds = _left_out(timings, own["functions"], block) if own.get("left_out") else 0.0
    ran = [{**step, "seconds": usual * step["seconds"]} for step in by_threads]
    known = {(one["workers"], one["threads"]) for one in ran}
    fed = [{**one, "seconds": one["seconds"] + seconds} for one in timings.get("overlaps", ())]
    host, inputs = timings.get("host") or {"seconds": 0.0}, timings.get("inputs", {})
    sample, collate, more = inputs.get("sample"), inputs.get("collate") or {"seconds": 0.0}, 0.0
    if sample and block.worker_cpu_seconds:  # workers share their core's caches, and hand their batches on
        one, pieces = sample.get("cpu_seconds") or sample["seconds"], int(timings.get("accumulation", 1))
        batch = pieces * (timings["batch_size"] * one + (collate.get("cpu_seconds") or collate["seconds"]))
        more = block.worker_cpu_seconds / max(block.steps, 1) / max(batch, 1e-9) - 1
    if more > 0:
        slower = {n: sample[n] + more * one for n in ("seconds", "cpu_seconds") if sample.get(n) is not None}
        deeper = [{**each, "seconds": (1 + more) * each["seconds"]} for each in inputs.get("deeper", ())]
        # they worked at the speed of the running steps
        inputs = {**inputs, "sample": {**sample, **slower, "reference": None}, "deeper": deeper}
    return {
        "overlaps": [*(one for one in fed if (one["workers"], one["threads"]) not in known), *ran],
        "host": {**host, "seconds": host["seconds"] + seconds} if seconds else timings.get("host"),
        "inputs": inputs,
    }


def _left_out(timings: JsonDict, functions: Sequence[JsonDict], block: Block) -> float:
    """Seconds of a running step beyond one on held batches, but for its input and for waiting for a core: the script's
    own lines, calls without gradients, such as a teacher's, batches that are new to the caches."""
    lived: dict[str, float] = {name: seconds / max(block.steps, 1) for name, seconds in block.stage_seconds.items()}
    stages = ("forward", "backward", "optimizer", "host")
    held: dict[str, float] = {name: (timings.get(name) or {}).get("seconds", 0.0) for name in stages}
    if timings.get("device") != "cpu" or not held["backward"] or not lived.get("backward"):
        named = float(sum(one["seconds"] for one in functions))
        made = timings.get("inputs", {}).get("sample")  # else those that make batches are timed as such
        return named if made else max(named - lived.get("data", 0.0), 0.0)
    micro = int(timings.get("accumulation", 1))
    alone = micro * (held["forward"] + held["backward"]) + held["optimizer"] + held["host"]
    running = sum(lived.get(name, 0.0) for name in ("forward", "backward", "optimizer", "other"))
    return max(running - (block.stalled_seconds or 0.0) / max(block.steps, 1) - alone, 0.0)


class _Tasks:
    """Tasks of one trial's process; what may fail without spoiling the rest leaves its reason."""

    def __init__(self, process: Process, seconds: float, until: float = inf) -> None:
        self._process, self._timeout, self._until, self.step = process, seconds * 10 + 120.0, until, 0.0
        self.missing: list[str] = []

    def may(self, what: str, task: str, of_plan: float = 0.0, **arguments: Any) -> JsonDict:
        """A task's answer; nothing where it fails, or where so many steps ``of_plan`` do not fit the time."""
        if time.monotonic() + of_plan * self.step > self._until:
            self.missing.append(f"{what}: about {of_plan * self.step:.0f} s, for which a larger --budget leaves time")
            return {}
        try:
            return self._process.call(task, timeout=self._timeout, **arguments)
        except TrialFailed as failure:
            self.missing.append(f"{what}: {failure.reason}")
            return {}


def least_doubtful(measure: Callable[[], Measured], doubt: Callable[[Measured], float]) -> Measured:
    """Measures, and once more where that was disturbed; the less doubtful of the two.

    Args:
        doubt: how much that was disturbed; 1 is as much as is let pass.
    """
    first = measure()
    return first if doubt(first) <= 1 else min(first, measure(), key=doubt)


def doubt_of(seen: StageProfile, usual_step: float | None, error: float | None) -> float:
    """How much a profile was disturbed; 1 is as much as is let pass.

    Args:
        usual_step: seconds of its step in a paired comparison; None where there was none.
        error: of the model: the simulated step over the measured one, less 1; None where that is not known.
    """
    step = seen.step_seconds
    drift = max(step / usual_step, usual_step / step) - 1 if usual_step and step else 0.0
    # where step and graph differ by more than a fifth, the machine most likely changed its speed between the two
    return max(drift / (DRIFT - 1), (seen.foreign_cores or 0.0) / FOREIGN_CORES, abs(error or 0.0) / 0.2)


def reason_to_doubt(seen: StageProfile, usual_step: float | None = None, *, watched_step: float | None = None) -> str:
    """The reason to doubt a profile, as a user reads it; "" where there is none.

    Args:
        usual_step: seconds of its step in a paired comparison.
        watched_step: seconds of a script's first steps, which are slower than any later ones for being watched.
    """
    step = seen.step_seconds
    if watched_step and step and step > DRIFT * watched_step:
        other = f"{time_text(watched_step)} in the first steps, which are slower"
    elif usual_step and step and not 1 / DRIFT <= step / usual_step <= DRIFT:
        other = f"{time_text(usual_step)} in comparisons"
    elif disturbed(seen.foreign_cores):
        return f"other programs used {seen.foreign_cores:.1f} cores while its stages were measured"
    else:
        return ""
    return f"a step took {time_text(step)} while its stages were measured, and {other}"
