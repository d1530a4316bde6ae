"""Short runs of training steps, measured; and the first of them, from the first step to the steady state."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import ceil
from time import perf_counter

from autoopt.benchmark.compiling import compilations, trouble
from autoopt.benchmark.cputime import cpu_times, foreign_seconds, stalled_seconds, worker_seconds
from autoopt.benchmark.device import host_peak_bytes
from autoopt.benchmark.distributed.group import Enough, merged
from autoopt.benchmark.live import LiveTraining, run_until
from autoopt.benchmark.steady import Steady, cycle_of, epoch_start, find_steady, warmup_excess
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records.messages import Block, Startup

_LEAST_SECONDS, _LEAST_GROUPS, _LEAST_SLOW, _STEADY_SECONDS, _ALIKE = 0.5, 4, 2, 1.0, 1.2
"""Steady steps fill so many groups; where they are slow, fewer that last for so long and are alike to that factor: what
a process's first steps pay, lazy imports, pages, kernels that are looked for, is paid within two or three of them or
within parts of a second."""


def for_seconds(seconds: float, min_steps: int = 1, cycle: int = 1) -> Enough:
    """A block ends with a whole cycle, after so many seconds and so many steps."""
    return lambda done, elapsed: done >= min_steps and elapsed >= seconds and done % cycle == 0


def ready_batches(training: LiveTraining) -> int:
    """Batches that the loader's workers hold ready at most: its queue."""
    loader = training.loader.loader
    return int(loader.num_workers * (getattr(loader, "prefetch_factor", None) or 0))


def run_block(
    training: LiveTraining,
    enough: Enough,
    *,
    ramp_seconds: float = 0.0,
    ramp_steps: int = 0,
    settle: bool = True,
    most: int | None = None,
) -> Block:
    """Trains until ``enough``, and measures.

    Args:
        ramp_seconds, ramp_steps: trained first, unmeasured: so long, and at least so many.
        settle: takes what is paid once (compiling again, a search) out of the block's time.
        most: steps after which ``enough`` ends it in any case; several processes need to know.

    Of several processes that train together each gets the same block, that of all.
    """
    ramp_paid = 0.0
    if ramp_seconds or ramp_steps:
        lap, _ = run_until(training, lambda done, elapsed: elapsed >= ramp_seconds and done >= ramp_steps)
        ramp_paid = training.deferred_cost.settled(lap)[1]
    device = training.device
    workers = bool(training.loader.loader.num_workers)
    device.reset_peak()
    retries, compiled = device.allocation_retries(), compilations()
    first, samples = training.steps, training.samples
    before = cpu_times(with_children=workers)
    lap, recorder = run_until(training, enough, most)
    after = cpu_times(with_children=workers)
    lap, paid = training.deferred_cost.settled(lap) if settle else (lap, 0.0)
    block = Block(
        steps=training.steps - first,
        samples=None if samples is None or training.samples is None else training.samples - samples,
        seconds=lap.seconds,
        stage_seconds=lap.stages,
        step_seconds=tuple(lap.steps),
        losses=recorder.losses(),
        cpu_seconds=max(after.own - before.own, 0.0),
        foreign_cpu_seconds=foreign_seconds(before, after),
        peak_memory_bytes=device.peak_bytes(),
        allocated_memory_bytes=device.allocated_bytes(),
        peak_host_memory_bytes=host_peak_bytes(),
        allocation_retries=device.allocation_retries() - retries,
        recompilations=compilations() - compiled,
        late_seconds=ramp_paid + paid,
        first_step=first,
        page_faults=after.page_faults - before.page_faults,
        stalled_seconds=stalled_seconds(before, after, lap.seconds),
        worker_cpu_seconds=worker_seconds(before, after),
    )
    if training.group.size == 1:
        return block
    return merged([Block.model_validate(each) for each in training.group.gather(block.model_dump())])


def warm_up(live: TrialContext, max_seconds: float, most_steps: int | None = None) -> Startup:
    """Trains until steps are steady, or until the time is up.

    A step that compiles again (``torch.compile`` meets a new shape) starts the wait anew, and so does
    any lasting change of level, such as a late search of cuDNN for a new shape.

    Args:
        max_seconds: of training; at least two steps are trained.
        most_steps: of training, about: a script may have few.
    """
    training = live.training
    agree = training.group.agree
    first_step, began = training.steps, perf_counter()
    times: list[float] = []
    losses: list[float | None] = []
    waits: list[tuple[float, float]] = []
    compiled_until = 0
    steady: Steady | None = None
    last_look = 0.0
    while True:
        left = agree(max_seconds - (perf_counter() - began))
        part = min(max(0.25, last_look * 0.2), max(left, 0.0))  # seconds before each check
        most = None if most_steps is None else max(most_steps - len(times), 1)
        block = run_block(training, for_seconds(part), settle=False, most=most)
        times += block.step_seconds
        losses += block.losses
        waits.append((block.stage_seconds.get("data", 0.0), block.seconds))
        if block.recompilations:
            compiled_until = len(times)
        last_look = agree(perf_counter() - began)
        if last_look >= _LEAST_SECONDS:
            steady = find_steady(times[compiled_until:], least_groups(times))
        over = last_look >= max_seconds or (most_steps is not None and len(times) >= most_steps)
        if steady is not None or (over and len(times) >= 2):
            break
    if training.device.kind != "cpu":
        training.device.empty_cache()  # what first steps and searches have left behind is no need of the steady ones
    start = steady.start + compiled_until if steady is not None else len(times) // 2
    settled = times[start:]
    level = Steady(start, steady.seconds if steady is not None else statistics.median(settled))
    openings, loader = training.openings, training.loader.loader
    usual = block.stage_seconds.get("data", 0.0) / max(block.steps, 1)
    # of the later half: the first batch of all is no steady wait
    waited, seconds = (sum(column) for column in zip(*waits[len(waits) // 2 :], strict=True))
    return Startup(
        build_seconds=live.build_seconds,
        setup_seconds=live.setup_seconds,
        warmup_seconds=sum(times),
        warmup_steps=len(times),
        fixed_seconds=live.build_seconds + live.setup_seconds + warmup_excess(times, level),
        losses=tuple(losses),
        compiler=trouble() if live.setup.compile is not None else None,
        first_step=first_step,
        cycle=int(agree(cycle_of(settled, loader.num_workers, float(waited / max(seconds, 1e-9))))),
        first_batch_seconds=openings[0] if openings else None,
        epoch_seconds=epoch_start(openings, loader, usual),
    )


def least_groups(times: Sequence[float]) -> int:
    """Groups that the steady part must fill, by the latest of these steps."""
    few = min(max(ceil(_STEADY_SECONDS / max(times[-1], 1e-9)), _LEAST_SLOW), _LEAST_GROUPS)
    latest = times[-few:]
    return few if max(latest) <= _ALIKE * min(latest) else _LEAST_GROUPS
