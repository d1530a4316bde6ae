"""Tasks of a trial's process: the machine's peaks, every stage measured alone, advice on what a user must change."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch

from autoopt.benchmark.contents import padding_share, samples_of
from autoopt.benchmark.distributed.step import measure_communication
from autoopt.benchmark.environment import usable_cores
from autoopt.benchmark.live import LiveTraining, drives
from autoopt.benchmark.seeding import kept_random_state
from autoopt.benchmark.warmup import for_seconds, run_block
from autoopt.records import Deeper, JsonDict
from autoopt.simplify import microbenchmarks
from autoopt.simplify.advise import advise_training
from autoopt.simplify.batches import ChildFailed, cached_batches, doubled_batch, in_child, nbytes, restored
from autoopt.simplify.contention import cache_effects_of, measure_contention, measure_overlap, steps_by_threads
from autoopt.simplify.costly import LEAST
from autoopt.simplify.drift import running_block
from autoopt.simplify.drilldown import measure_inputs, open_compute, open_evaluation
from autoopt.simplify.peaks import measured_peaks
from autoopt.simplify.source import Sampler
from autoopt.simplify.stage_timings import InputTimings, StageTimings, Timing


def measure_peaks(live: Any) -> JsonDict:
    """The peaks of the device that the trial runs on (``records.Peaks``)."""
    return measured_peaks(live.training.device.torch).model_dump()


@drives
def running(live: Any, seconds: float, min_steps: int = 1, ramp_seconds: float = 0.0) -> JsonDict:
    """A running ``block`` (:class:`~autoopt.records.messages.Block`), and its mean ``reference`` of speed."""
    block, reference = running_block(live.training, seconds, min_steps, ramp_seconds)
    return {"block": block.model_dump(), "reference": reference}


def measure_stages(live: Any, seconds: float = 8.0) -> JsonDict:
    """Every stage alone (``simplify.stage_timings.StageTimings``), within about so many seconds.

    The training stays as it was.
    """
    training: LiveTraining = live.training
    notes, inputs, loader = list[str](), InputTimings(), training.loader.loader
    used = training.device.memory_used()  # of training as it is: measuring sets copies of its state aside
    with training.apart(), kept_random_state():
        if not getattr(loader.dataset, "empty", False):
            try:  # in a forked child: the dataset's caches and the loader's random numbers must stay as they are
                inputs = in_child(lambda: measure_inputs(loader, seconds * 0.4), timeout=seconds * 4 + 30)
            except ChildFailed as error:
                notes.append(f"the input side was not measured: {error}")
        batches = cached_batches(training, notes)
        with restored(training):
            values = _compute(training, batches, inputs, seconds * 0.6, notes)
    own = training.evaluation_seconds
    if own:  # the first one starts what stays, such as workers and samples that are kept
        values["evaluate"] = Timing(seconds=fmean(own[1:] or own))
    whole = loader.batch_size if training.shared is None else None  # of several processes each has its share
    return StageTimings(
        device=training.device.kind,
        cores=max(1, usable_cores() // training.group.size),
        threads=torch.get_num_threads(),
        workers=loader.num_workers,
        prefetch=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        blocking_copy=not (loader.pin_memory and training.setup.transfer.non_blocking),
        batch_size=int(whole or samples_of(batches[0]) or 1),
        accumulation=training.lengths.accumulation,
        batch_bytes=nbytes(batches[0]),
        optimizer_bytes=microbenchmarks.optimizer_bytes(training.optimizer),
        evaluate_every=training.lengths.evaluate_every if training.evaluation else None,
        checkpoint_every=training.setup.cadence.checkpoint_every,
        allowed_precisions=("fp32", "tf32", "bf16", "fp16") if training.device.kind == "cuda" else ("fp32", "bf16"),
        inputs=inputs,
        padding=padding_share(batches),
        memory_used=used,
        notes=tuple(notes),
        **values,
    ).model_dump()


@drives
def own_code(live: Any, seconds: float, min_steps: int = 1) -> JsonDict:
    """``functions`` (``records.Deeper``) of the user's that take a share of a step outside of the model.

    ``left_out``: steps on held batches are without them.
    """
    with Sampler(live.training) as sampler:
        block = run_block(live.training, for_seconds(seconds, min_steps))
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


_GRACE = 2.5
"""Seconds over the limit in which a measurement may still begin: the first few turns of a slow step."""


def _compute(
    training: LiveTraining, host_batches: list[Any], inputs: InputTimings, limit: float, notes: list[str]
) -> JsonDict:
    """The compute side, and what it shares with the input; what fails leaves a note, not the rest without figures."""
    deadline = time.perf_counter() + 1.5 * limit + _GRACE
    batches = [training.to_device(batch) for batch in host_batches]
    values: JsonDict = {}

    def attempt(what: str, measure: Callable[[], JsonDict]) -> None:
        if time.perf_counter() > deadline:
            notes.append(f"{what} was not measured: the microbenchmarks before it took too long")
            return
        try:
            values.update(measure())
        except Exception as error:
            notes.append(f"{what} was not measured: {type(error).__name__}: {error}".split("\n")[0])

    attempt("copying", lambda: microbenchmarks.copies(training, host_batches[0], limit * 0.08))
    attempt("compute", lambda: microbenchmarks.compute(training, batches, limit * 0.4))
    attempt("operators", lambda: microbenchmarks.operators(training, batches[0]))
    eager, whole = training.setup.compile is None, values.get("compute")
    if whole is not None:
        on_cpu, step = training.device.kind == "cpu", whole.seconds
        if on_cpu:
            attempt("compute by threads", lambda: microbenchmarks.by_threads(training, batches, whole, limit * 0.1))
        sample = inputs.sample.seconds if inputs.sample else 0.0
        shares = training.group.size if training.shared is not None else 1  # else the loader has this one's share alone
        samples = sample * (training.loader.loader.batch_size or 1) / shares
        collate = inputs.collate.seconds if inputs.collate else 0.0
        seconds = (samples + collate) * training.lengths.accumulation  # of one core, for a step's batches
        # samples that take less gain nothing from workers, however cores are shared
        if seconds > 0.02 * step:
            if on_cpu and eager and not training.loader.loader.num_workers:
                attempt("cache effects", lambda: cache_effects_of(training, batches, inputs, step, limit * 0.2))
            attempt(
                "contention for the cores",
                lambda: {"contention": measure_contention(training, batches, limit * 0.25, sample)},
            )
            if on_cpu and eager and seconds > 0.1 * step:
                waits = inputs.sample is not None and (inputs.sample.wait_seconds or 0.0) > 0.5 * sample
                attempt("steps fed by workers", lambda: {"overlaps": measure_overlap(training, limit * 0.4, waits)})
        attempt("twice the batch", lambda: _doubled(training, batches[0], limit * 0.1))
    attempt("evaluation", lambda: microbenchmarks.evaluation(training, limit * 0.1))
    if whole is not None and eager:
        attempt(
            "the drill-down of the compute",
            lambda: {"deeper": open_compute(training, batches[0], values, limit * 0.15)},
        )
    if "evaluate" in values:
        below, evaluation = values.get("deeper", {}), values["evaluate"].seconds
        attempt(
            "the drill-down of the evaluation",
            lambda: {"deeper": {**below, "evaluate": open_evaluation(training, evaluation, limit * 0.03)}},
        )
    if training.setup.cadence.checkpoint_every:
        attempt("checkpoint", lambda: microbenchmarks.checkpoint(training, limit * 0.08))
    return values


def _doubled(training: LiveTraining, batch: Any, time_limit: float) -> JsonDict:
    """Forward and backward of twice the micro-batch over those of one, alternately."""
    twice = doubled_batch(training)
    if twice is None:
        return {}
    both = [microbenchmarks.both_directions(training, each) for each in (batch, twice)]
    one, two = microbenchmarks.interleaved(both, time_limit)
    return {"doubled": two.seconds / one.seconds}
