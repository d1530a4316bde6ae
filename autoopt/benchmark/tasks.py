"""Tasks of a trial's process: ``task(live, **arguments) -> dict``, JSON both ways."""

from __future__ import annotations

import time
from math import inf
from typing import Any

from autoopt.benchmark import warmup
from autoopt.benchmark.contents import bytes_of, tensors
from autoopt.benchmark.cputime import cpu_times
from autoopt.benchmark.environment import Monitor, other_users
from autoopt.benchmark.environment import environment as machine
from autoopt.benchmark.facts import inspected
from autoopt.benchmark.live import drives
from autoopt.benchmark.probe import Asked
from autoopt.benchmark.probe import probe as probe_plan
from autoopt.benchmark.run import RunUnderWay
from autoopt.benchmark.trace import write_trace
from autoopt.benchmark.trial_context import TrialContext
from autoopt.benchmark.warmup import for_seconds, ready_batches
from autoopt.benchmark.warmup import run_block as run_block_until
from autoopt.benchmark.whatif import count_flops, tried_within
from autoopt.records import JsonDict, Plan
from autoopt.records.messages import Block


def ready(live: TrialContext) -> JsonDict:
    """Assembles the training and says what was found: a :class:`~autoopt.records.messages.Ready`."""
    return {"facts": facts(live)}


@drives
def warm_up(live: TrialContext, max_seconds: float, most_steps: int | None = None) -> JsonDict:
    """Trains until steps are steady or the time is up: a :class:`~autoopt.records.messages.Startup`."""
    return warmup.warm_up(live, max_seconds, most_steps).model_dump()


@drives
def run_block(
    live: TrialContext,
    seconds: float,
    min_steps: int = 1,
    ramp_seconds: float = 0.0,
    cycle: int = 1,
    ramp_steps: int = 0,
) -> JsonDict:
    """Trains ``ramp_seconds`` unmeasured, then measures: a :class:`~autoopt.records.messages.Block`.

    Args:
        ramp_seconds: after a thaw, until caches and clocks are as they were.
        cycle: steps after which step times repeat: the block holds whole cycles.
        ramp_steps: of the ramp at least. Loader workers that wait for storage wait on while they are stopped, so that
            their next batches come early: a cycle of them.
    """
    enough = for_seconds(seconds, min_steps, cycle)
    return run_block_until(live.training, enough, ramp_seconds=ramp_seconds, ramp_steps=ramp_steps).model_dump()


@drives
def switched_block(
    live: TrialContext,
    plan: JsonDict,
    seconds: float,
    min_steps: int = 1,
    ramp_seconds: float = 0.0,
    cycle: int = 1,
) -> JsonDict:
    """A block under another plan in this process, whose training is then what it was but for its place in the data.

    Args:
        plan: that the process can take on (``autoopt.benchmark.switching``), or its own.
        seconds, min_steps, ramp_seconds, cycle: as of :func:`run_block`; the ramp is trained under that plan, and long
            enough to use up the batches that the loader had made ready under another one. Where the plan has not waited
            for batches after that, the loader keeps up with it, and what is ready is ready under any plan.
    """
    taken_on = Plan.model_validate(plan)
    setup = live.registry.fold(taken_on, live.workload.setup)
    kept_up = taken_on.key in live.switching.kept_up
    used_up = max(0 if kept_up else ready_batches(live.training), cycle if cycle > 1 else 0)
    with live.switching.to(setup):
        block = run_block(live, seconds, min_steps, ramp_seconds, cycle, used_up)
    seen = live.switching.kept_up
    (seen.add if Block.model_validate(block).kept_up else seen.discard)(taken_on.key)
    return block


@drives
def probe_losses(live: TrialContext, steps: int) -> JsonDict:
    """Trains so many steps for their losses: a :class:`~autoopt.records.messages.Block`."""
    return run_block_until(live.training, lambda done, _: done >= steps, most=steps).model_dump()


@drives
def evaluations(live: TrialContext, count: int, seconds: float, stage: str = "evaluate") -> JsonDict:
    """Evaluates so often at the present weights: :class:`~autoopt.records.evaluating.HeldEvaluations`.

    Args:
        seconds: after which no other one is begun, or waited for in a script.
        stage: ``checkpoint`` for a script's checkpoints in their place.
    """
    return live.training.held_evaluations(count, seconds, stage).model_dump()


@drives
def train(live: TrialContext, steps: int | None = None, **arguments: Any) -> JsonDict:
    """Trains from the first step to the target or a limit: a :class:`~autoopt.records.messages.TrainingRun`.

    Args:
        steps: at which a level of a search ends: trains on to the evaluation there, and goes on when it is asked again.
        arguments: of :class:`~autoopt.benchmark.run.RunUnderWay`; the first level's hold.
    """
    run = (live.under_way if steps else None) or RunUnderWay(live, **arguments)
    if steps:
        live.under_way = run
    run.go_on(steps=steps or inf)
    document: JsonDict = run.document().model_dump()
    return document


@drives
def train_leg(live: TrialContext, seconds: float, no_further: list[int] | None = None, **arguments: Any) -> JsonDict:
    """Trains a leg of a training that takes turns with another one in another process.

    Args:
        seconds: of this leg; a step and an evaluation are finished.
        no_further: a step at which it ends, wherever else it would, and one at which it is evaluated besides; known
            once the other training is over.
        arguments: those of :func:`train`; the first leg's hold.

    Returns:
        ``over``; ``run``: the :class:`~autoopt.records.messages.TrainingRun` once it is over; ``seconds`` and ``steps``
        so far.
    """
    run = live.under_way = live.under_way or RunUnderWay(live, **arguments)
    if no_further is not None:
        run.go_no_further(*no_further)
    over = run.go_on(seconds)
    document = run.document().model_dump() if over else None
    return {"over": over, "run": document, "seconds": run.seconds, "steps": run.steps}


def flops(live: TrialContext) -> JsonDict:
    """Floating-point operations of a step of all processes: ``flops_per_step``."""
    training = live.training
    with training.apart():
        found = count_flops(training)
    return {"flops_per_step": sum(training.group.gather(found))}


@drives
def probe(live: TrialContext, **asked: Any) -> JsonDict:
    """Probes the plan: a :class:`~autoopt.records.messages.Probe`; ``asked``: see ``autoopt.benchmark.probe.Asked``."""
    return probe_plan(live.from_start(), Asked(**asked)).model_dump()


def facts(live: TrialContext) -> JsonDict:
    """Facts that strategies may know: :class:`~autoopt.records.facts.WorkloadFacts`."""
    return live.facts.model_copy(update={"inspected": live.inspected}).model_dump()


def environment(live: TrialContext) -> JsonDict:
    """The machine as this process may use it: :class:`~autoopt.records.Environment`, without peaks."""
    found = machine(live.device.torch)
    if live.device.limit is not None:
        found = found.model_copy(update={"device_memory_bytes": live.device.limit_bytes()})
    return found.model_dump()


@drives
def cpu_clock(live: TrialContext) -> JsonDict:
    """CPU seconds so far: ``own`` of this trial with its workers, ``busy`` of the machine; ``at`` in seconds."""
    used = cpu_times(with_children=True)
    return {"own": used.own, "busy": used.busy, "at": time.perf_counter()}


@drives
def trace(live: TrialContext, directory: str, steps: int) -> JsonDict:
    """Writes a short torch.profiler trace: ``raw``, ``readable`` (paths)."""
    return write_trace(live.training, directory, steps)


@drives
def monitored_block(live: TrialContext, seconds: float, min_steps: int = 1) -> JsonDict:
    """A block with utilization: ``block`` and ``monitor`` (:meth:`autoopt.benchmark.environment.Monitor.summary`)."""
    with Monitor(live.device) as monitor:
        block = run_block(live, seconds, min_steps)
    return {"block": block, "monitor": monitor.summary(), "other_users": other_users(live.device)}


@drives
def inspect(live: TrialContext, strategies: list[str], seconds: float | None = None) -> JsonDict:
    """The findings of the named strategies in the live workload, by name; nothing is tried after so many seconds."""

    def between_steps() -> None:
        with live.training.apart(), tried_within(seconds):
            live.inspected.update(inspected(live, strategies))

    live.training.do(between_steps)
    for name, found in inspected(live, strategies, "inspect_steps").items():
        live.inspected[name] |= found
    return {name: live.inspected[name] for name in strategies}


def largest_batch(live: TrialContext, batches: int = 64) -> JsonDict:
    """Trains two steps on the largest of the coming batches, for the peak of memory: every micro-batch is that one.

    Where shapes never vary the first batch is as large as any; where they do, the largest of an epoch
    is what a real run meets sooner or later.
    """
    training, device = live.training, live.training.device
    count = max(1, batches) if training.takes_batches else 1  # else these are all that it holds
    coming = (batch for _ in range(count) for batch in training.next())
    largest = max(coming, key=lambda batch: sum(bytes_of(tensor) for _, tensor in tensors(batch)))
    group = [largest] * training.lengths.accumulation
    device.empty_cache()  # what earlier shapes have left in the allocator is no need of this one
    device.reset_peak()
    retries = device.allocation_retries()
    if device.tensors is not None:
        device.tensors.add(group)
    with device.watched():
        for _ in range(2):
            training.whole_step(group)
    device.synchronize()
    return {
        "peak_memory_bytes": device.peak_bytes(),
        "allocated_memory_bytes": device.allocated_bytes(),
        "limit_bytes": device.limit_bytes(),
        "allocation_retries": device.allocation_retries() - retries,
    }
