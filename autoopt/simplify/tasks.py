"""Tasks of a trial's process: the machine's peaks, the timings of every stage, advice on what a user must change."""

from __future__ import annotations

from typing import Any

from autoopt.benchmark.distributed.step import measure_communication
from autoopt.benchmark.live import drives
from autoopt.benchmark.seeding import kept_random_state
from autoopt.benchmark.warmup import run_block
from autoopt.records import Deeper, JsonDict
from autoopt.simplify.advise import advise_training
from autoopt.simplify.batches import cached_batches, restored
from autoopt.simplify.contention import steps_by_threads
from autoopt.simplify.costly import LEAST
from autoopt.simplify.drift import running_block
from autoopt.simplify.measure import measure_training
from autoopt.simplify.peaks import measured_peaks
from autoopt.simplify.source import Sampler
from autoopt.simplify.stage_timings import StageTimings


def measure_peaks(live: Any) -> JsonDict:
    """The peaks of the device that the trial runs on (``records.Peaks``)."""
    return measured_peaks(live.training.device.torch).model_dump()


@drives
def running(live: Any, seconds: float, min_steps: int = 1, ramp_seconds: float = 0.0) -> JsonDict:
    """A running ``block`` (:class:`~autoopt.records.messages.Block`), and its mean ``reference`` of speed."""
    block, reference = running_block(live.training, seconds, min_steps, ramp_seconds)
    return {"block": block.model_dump(), "reference": reference}


def measure_stages(live: Any, seconds: float = 8.0) -> JsonDict:
    """Every stage alone (``simplify.stage_timings.StageTimings``); the training stays as it was."""
    used = live.training.device.memory_used()  # of training as it is: measuring sets copies of its state aside
    with live.training.apart():
        found = measure_training(live.training, seconds)
    return found.model_copy(update={"memory_used": used}).model_dump()


@drives
def own_code(live: Any, seconds: float, min_steps: int = 1) -> JsonDict:
    """``functions`` (``records.Deeper``) of the user's that take a share of a step outside of the model.

    ``left_out``: steps on held batches are without them.
    """
    with Sampler(live.training) as sampler:
        block = run_block(live.training, lambda done, passed: done >= min_steps and passed >= seconds)
    step, found = block.seconds / max(block.steps, 1), list[Deeper]()
    for name, file, line, share in sampler.samples.functions():
        if share >= LEAST:
            found.append(Deeper(name=name, kind="line", seconds=share * step, file=file, line=line))
    return {"functions": [one.model_dump() for one in found], "left_out": not live.training.takes_batches}


@drives
def try_threads(live: Any, counts: list[int], seconds: float, cycle: int = 1) -> JsonDict:
    """Running steps with other numbers of compute threads: ``steps`` (``Overlap``), in units of the present step."""
    return {"steps": [one.model_dump() for one in steps_by_threads(live.training, counts, seconds, cycle)]}


def measure_messages(live: Any, seconds: float = 2.0) -> JsonDict:
    """Messages between processes that train together (``records.distributed.Communication``); empty of one process."""
    training = live.training
    if training.group.size == 1 or not training.replicated:
        return {}
    with kept_random_state(), restored(training):
        batches = [training.to_device(batch) for batch in cached_batches(training, [])]
        found = measure_communication(training, batches, seconds)
    return found.model_dump()


def advise(live: Any, timings: JsonDict, step_seconds: float | None = None) -> JsonDict:
    """Advice on what only the user can change, with file and line: ``{"advice": [...]}``."""
    training = live.training
    peaks = measured_peaks(training.device.torch)
    with training.apart():
        found = advise_training(
            training, cached_batches(training, []), peaks, StageTimings.model_validate(timings), step_seconds
        )
    return {"advice": [item.model_dump() for item in found]}
