"""Short runs of training steps, measured."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.benchmark.compiling import compilations
from autoopt.benchmark.cputime import cpu_times, foreign_seconds, page_faults
from autoopt.benchmark.distributed.group import Enough
from autoopt.benchmark.distributed.merging import merged
from autoopt.benchmark.live import LiveTraining
from autoopt.records.messages import Block


@dataclass(frozen=True)
class Ramp:
    """Training before a block that is not measured: so many seconds, and at least so many steps."""

    seconds: float = 0.0
    steps: int = 0


def ready_batches(training: LiveTraining) -> int:
    """Batches that the loader's workers hold ready at most: its queue."""
    loader = training.loader.loader
    return int(loader.num_workers * (getattr(loader, "prefetch_factor", None) or 0))


def run_block(
    training: LiveTraining, enough: Enough, *, ramp: Ramp = Ramp(), settle: bool = True, most: int | None = None
) -> Block:
    """Trains until ``enough``, and measures.

    Args:
        training: goes on from where it stands.
        enough: asked after each step.
        ramp: trained first, unmeasured.
        settle: takes what is paid once (compiling again, a search) out of the block's time.
        most: steps after which ``enough`` says so in any case; several processes need to know.

    Of several processes that train together each gets the same block, that of all.
    """
    ramp_paid = _ramp(training, ramp)
    device = training.device
    workers = bool(training.loader.loader.num_workers)
    device.reset_peak()
    retries, compiled = device.allocation_retries(), compilations()
    first, samples = training.steps, training.samples
    before = cpu_times(with_children=workers)
    lap, recorder = training.run_until(enough, most)
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
        peak_host_memory_bytes=training.host_peak_bytes(),
        allocation_retries=device.allocation_retries() - retries,
        recompilations=compilations() - compiled,
        late_seconds=ramp_paid + paid,
        first_step=first,
        page_faults=page_faults(before, after),
    )
    return block if training.group.size == 1 else merged(training.group.gather(block))


def _ramp(training: LiveTraining, ramp: Ramp) -> float:
    """Trains unmeasured; the seconds in it that were paid once."""
    if ramp == Ramp():
        return 0.0
    lap, _ = training.run_until(lambda done, elapsed: elapsed >= ramp.seconds and done >= ramp.steps)
    return training.deferred_cost.settled(lap)[1]
