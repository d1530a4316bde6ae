"""Tasks of a trial's process: measure the machine's peaks, survey every stage, look for what a person must change."""

from __future__ import annotations

import io
import itertools
import pickle
import time
from collections.abc import Callable
from typing import Any

import torch

from autoopt.records import Deeper, JsonDict
from autoopt.simplify import stubs
from autoopt.simplify.advise import advise_parts
from autoopt.simplify.beside import preparation_beside_steps
from autoopt.simplify.deeper_compute import open_compute, open_evaluation
from autoopt.simplify.forked import ChildFailed, can_fork, in_child
from autoopt.simplify.inputs import Fetch, fresh_loader, nbytes, survey_inputs
from autoopt.simplify.live import parts_of
from autoopt.simplify.parts import Parts, cores_available
from autoopt.simplify.peaks import measured_peaks
from autoopt.simplify.restore import random_state, restored, set_random_state
from autoopt.simplify.rhythm import in_rhythm
from autoopt.simplify.roofline import count_operators, operators
from autoopt.simplify.running import running_block
from autoopt.simplify.survey import InputSurvey, Survey

_NEGLIGIBLE = 0.02
"""Of a step: samples that take less gain nothing from workers, however cores are shared."""

_HALF = 0.5
"""A device with more of its memory taken is not asked for twice the batch."""


def measure_peaks(live: Any) -> JsonDict:
    """The peaks of the device that the trial runs on (``records.Peaks``)."""
    return measured_peaks(live.training.device.torch).model_dump(mode="json")


def running(live: Any, seconds: float, min_steps: int = 1, ramp_seconds: float = 0.0) -> JsonDict:
    """The running system: its ``block`` (:class:`~autoopt.records.messages.Block`), and the machine's mean ``pace``."""
    block, pace = running_block(live.training, seconds, min_steps, ramp_seconds)
    return {"block": block.model_dump(mode="json"), "pace": pace}


def survey(live: Any, seconds: float = 8.0) -> JsonDict:
    """Every stage alone (``simplify.survey.Survey``), within about ``seconds``; the training stays as it was."""
    used = live.training.device.memory_used()  # of training as it is: stubs set copies of its state aside
    found = survey_parts(parts_of(live.training), seconds)
    return found.model_copy(update={"memory_used": used}).model_dump(mode="json")


def advise(live: Any, step_seconds: float | None = None) -> JsonDict:
    """What only a person can change, with file and line: ``{"advice": [...]}``.

    Args:
        step_seconds: of the running training, where it was measured.
    """
    parts = parts_of(live.training)
    peaks = measured_peaks(parts.device)
    batches = _batches(parts, [])
    return {"advice": [item.model_dump(mode="json") for item in advise_parts(parts, batches, peaks, step_seconds)]}


def survey_parts(parts: Parts, seconds: float) -> Survey:
    """Measures every stage of an assembled training."""
    start = time.perf_counter()
    notes: list[str] = []
    state = random_state(parts.device)
    try:
        inputs = _inputs(parts, seconds * 0.4, notes)
        batches = _batches(parts, notes)
        with restored(parts):
            values = _compute(parts, batches, inputs, seconds * 0.6, notes)
    finally:
        set_random_state(state, parts.device)
    loader, transfer = parts.loader, parts.setup.transfer
    return Survey(
        device=parts.device.type,
        cores=cores_available(),
        threads=torch.get_num_threads(),
        workers=loader.num_workers,
        prefetch=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        non_blocking=transfer.non_blocking,
        batch_size=_samples(parts, batches[0]),
        accumulation=parts.accumulation,
        batch_bytes=nbytes(batches[0]),
        evaluate_every=parts.evaluate_every,
        checkpoint_every=parts.checkpoint_every,
        allowed_precisions=_precisions(parts.device),
        inputs=inputs,
        seconds=time.perf_counter() - start,
        notes=tuple(notes),
        **values,
    )


def _inputs(parts: Parts, box: float, notes: list[str]) -> InputSurvey:
    """In a forked child, since the dataset's caches and the loader's random numbers must stay as they are."""
    if not can_fork():
        notes.append("the input side was not measured: this system cannot fork")
        return InputSurvey()
    try:
        found = in_child(lambda: survey_inputs(parts.loader, box).model_dump(mode="json"), timeout=box * 10 + 30)
    except ChildFailed as error:
        notes.append(f"the input side was not measured: {error}")
        return InputSurvey()
    return InputSurvey.model_validate(found)


def _batches(parts: Parts, notes: list[str]) -> list[Any]:
    """The micro-batches of one optimizer step, on the host: real ones.

    They are made in a forked child where that works, so that neither the dataset nor the loader notices.
    """
    if can_fork() and parts.device.type == "cpu":
        try:
            packed = in_child(lambda: {"batches": _packed(_read_batches(parts))}, timeout=120.0)["batches"]
            return _unpacked(packed)
        except (ChildFailed, AttributeError, pickle.PickleError) as error:
            notes.append(f"the cached batch was read in the training process: {error}")
    generator = getattr(parts.loader, "generator", None)
    saved = generator.get_state() if generator is not None else None
    try:
        return _read_batches(parts)
    finally:
        if generator is not None and saved is not None:
            generator.set_state(saved)


def _read_batches(parts: Parts) -> list[Any]:
    fetch = Fetch(parts.loader)
    if fetch.iterable or parts.loader.batch_sampler is None:
        clone = fresh_loader(parts.loader)
        clone.__dict__.update(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
        clone.__dict__["_DataLoader__multiprocessing_context"] = None
        return list(itertools.islice(iter(clone), parts.accumulation))
    return [parts.loader.collate_fn(fetch.samples(fetch.indices(), fetch.size)) for _ in range(parts.accumulation)]


def _doubled(parts: Parts, batch: Any, box: float) -> JsonDict:
    """What twice the samples cost, where the dataset can be asked for any samples and the device has room."""
    fetch = Fetch(parts.loader)
    if fetch.iterable or parts.loader.batch_sampler is None or _crowded(parts):
        return {}

    def read() -> JsonDict:
        indices = fetch.indices() + fetch.indices()
        return {"batches": _packed([parts.loader.collate_fn(fetch.samples(indices, 2 * fetch.size))])}

    twice = parts.to_device(_unpacked(in_child(read, timeout=120.0)["batches"])[0])
    return {"doubled": stubs.ratio_of_batches(parts, batch, twice, box)}


def _crowded(parts: Parts) -> bool:
    """Whether twice the batch may not fit."""
    if not parts.cuda:
        return False
    total: int = torch.cuda.get_device_properties(parts.device).total_memory
    return torch.cuda.max_memory_reserved(parts.device) > _HALF * total


def _packed(batches: list[Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(batches, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> list[Any]:
    """Batches of a child that this process has just forked itself: of any class, and from nobody else."""
    return list(torch.load(io.BytesIO(packed), weights_only=False))


def _samples(parts: Parts, batch: Any) -> int:
    if parts.loader.batch_size:
        return int(parts.loader.batch_size)
    from torch.utils._pytree import tree_leaves

    return next((len(x) for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()), 1)


def _compute(parts: Parts, host_batches: list[Any], inputs: InputSurvey, box: float, notes: list[str]) -> JsonDict:
    """All stubs of the compute side; one that fails leaves a note, not the others without a figure."""
    values: JsonDict = {}
    deadline = time.perf_counter() + max(2 * box, 10.0)

    def attempt(what: str, measure: Callable[[], JsonDict]) -> None:
        if time.perf_counter() > deadline:
            notes.append(f"{what} was not measured: the stubs before it took too long")
            return
        try:
            values.update(measure())
        except Exception as error:
            notes.append(f"{what} was not measured: {type(error).__name__}: {error}".split("\n")[0])

    batches = [parts.to_device(batch) for batch in host_batches]
    attempt("copying", lambda: stubs.copies(parts, host_batches[0], box * 0.08))
    attempt("compute", lambda: stubs.with_products(parts, lambda: stubs.compute(parts, batches, box * 0.4), box * 0.05))
    if parts.device.type == "cpu" and "compute" in values:
        attempt(
            "compute by threads",
            lambda: {"compute_by_threads": stubs.by_threads(parts, batches, values["compute"], box * 0.1)},
        )
    attempt("operators", lambda: _operators(parts, batches[0]))
    if can_fork() and "compute" in values:
        seconds = values["compute"].seconds
        if inputs_of_step(inputs, parts) > _NEGLIGIBLE * seconds:
            if parts.device.type == "cpu" and not parts.loader.num_workers and parts.setup.compile is None:
                attempt("stages in their turn", lambda: in_rhythm(parts, batches, inputs, seconds, box * 0.2))
            attempt(
                "preparation beside steps",
                lambda: {"beside": preparation_beside_steps(parts, batches, box * 0.25, _sample_seconds(inputs))},
            )
        attempt("twice the batch", lambda: _doubled(parts, batches[0], box * 0.1))
    if "forward" in values and parts.setup.compile is None:
        attempt("what lies below the compute", lambda: {"deeper": open_compute(parts, batches[0], values, box * 0.15)})
    attempt("evaluation", lambda: stubs.evaluation(parts, box * 0.1))
    if "evaluate" in values:
        seconds = values["evaluate"].seconds
        attempt(
            "what lies below the evaluation",
            lambda: _more(values, "evaluate", open_evaluation(parts, seconds, box * 0.03)),
        )
    attempt("checkpoint", lambda: stubs.checkpoint(parts, box * 0.08))
    model = list(parts.model.parameters())
    values["parameter_bytes"] = sum(p.numel() * p.element_size() for p in model)
    values["gradient_bytes"] = sum(p.numel() * p.element_size() for p in model if p.requires_grad)
    values["optimizer_bytes"] = stubs.optimizer_bytes(parts)
    return values


def _sample_seconds(inputs: InputSurvey) -> float:
    return inputs.sample.seconds if inputs.sample else 0.0


def inputs_of_step(inputs: InputSurvey, parts: Parts) -> float:
    """Seconds of one core that a step's samples take; 0 where they were not measured."""
    sample = _sample_seconds(inputs) * (parts.loader.batch_size or 1)
    collate = inputs.collate.seconds if inputs.collate else 0.0
    return (sample + collate) * parts.accumulation


def _more(values: JsonDict, stage: str, chain: tuple[Deeper, ...]) -> JsonDict:
    return {"deeper": {**values.get("deeper", {}), stage: chain}}


def _operators(parts: Parts, batch: Any) -> JsonDict:
    """Operators of forward and backward of one micro-batch."""
    parts.optimizer.zero_grad(set_to_none=True)
    forward = count_operators(lambda: parts.forward(batch))
    found, launches = operators(lambda: parts.backward(parts.forward(batch)), cuda=parts.cuda)
    total = sum(operator.flops or 0.0 for operator in found)
    share = sum(count.flops for count in forward.counts.values()) / total if total else None
    return {"operators": found, "launches": launches, "operators_forward_share": share}


def _precisions(device: torch.device) -> tuple[str, ...]:
    if device.type == "cuda":
        return ("fp32", "tf32", "bf16", "fp16")
    return ("fp32", "bf16")
