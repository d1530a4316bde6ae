"""Short runs of training steps, measured."""

from __future__ import annotations

from autoopt.benchmark.clock import Lap
from autoopt.benchmark.compiling import compilations
from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.benchmark.loss_recorder import LossRecorder
from autoopt.benchmark.straight import Enough, train_straight
from autoopt.benchmark.training import Training
from autoopt.records.messages import Block


def run_block(training: Training, enough: Enough, *, ramp_seconds: float = 0.0, settle: bool = True) -> Block:
    """Trains until ``enough``, and measures.

    Args:
        training: goes on from where it stands.
        enough: asked after each step.
        ramp_seconds: trained first, unmeasured.
        settle: takes what is paid once (compiling again, a search) out of the block's time.
    """
    late = _ramp(training, ramp_seconds)
    device = training.device
    workers = bool(training.loader.loader.num_workers)
    device.reset_peak()
    retries, compiled = device.allocation_retries(), compilations()
    first, samples = training.steps, training.samples
    before = cpu_times(with_children=workers)
    lap, captured = train_until(training, enough)
    after = cpu_times(with_children=workers)
    lap, paid = training.late.settled(lap) if settle else (lap, 0.0)
    return Block(
        steps=training.steps - first,
        samples=training.samples - samples,
        seconds=lap.seconds,
        stage_seconds=lap.stages,
        step_seconds=tuple(lap.steps),
        losses=captured.losses(),
        cpu_seconds=max(after.own - before.own, 0.0),
        foreign_cpu_seconds=foreign_seconds(before, after),
        peak_memory_bytes=device.peak_bytes(),
        peak_host_memory_bytes=training.host_peak_bytes(),
        allocation_retries=device.allocation_retries() - retries,
        recompilations=compilations() - compiled,
        late_seconds=late + paid,
        first_step=first,
    )


def train_until(training: Training, enough: Enough) -> tuple[Lap, LossRecorder]:
    """The loop that every measurement runs: steps, their losses, and which of them paid for what comes once."""
    clock, late, steps, over = training.clock, training.late, 0, False
    captured = LossRecorder(training.device.kind == "cpu")
    late.begin()
    clock.start()
    while not over:
        if training.straight():
            steps, over = train_straight(training, enough, steps, captured)
            continue
        batches = training.next()
        captured.add(training.advance(batches))
        if late.watching:
            late.look(batches)
        steps += 1
        over = enough(steps, clock.elapsed())
    return clock.stop(), captured


def _ramp(training: Training, seconds: float) -> float:
    """Trains unmeasured; the seconds in it that were paid once."""
    if seconds <= 0:
        return 0.0
    lap, _ = train_until(training, lambda _, elapsed: elapsed >= seconds)
    return training.late.settled(lap)[1]
