"""Advice on a live training: what only a person can change, looked for in its step, its source and its input."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch

from autoopt.benchmark.contents import tensors
from autoopt.benchmark.live import LiveTraining
from autoopt.records import Advice, JsonDict, Peaks
from autoopt.simplify import advice
from autoopt.simplify.batches import Fetch, few, nbytes
from autoopt.simplify.ceilings import host_bandwidth
from autoopt.simplify.forced import CALLS, Found, advice_of_calls, watched_calls
from autoopt.simplify.isolation import ChildFailed, in_child, restored
from autoopt.simplify.source import Function, dataset_functions, function_of, is_users, profile_lines, step_functions
from autoopt.simplify.stage_timings import StageTimings
from autoopt.simplify.watch import Line, WatchedStep, unused_outputs, watch

_TRACED = 0.5
"""Seconds of samples under a tracer."""


def advise_training(
    training: LiveTraining, batches: list[Any], peaks: Peaks, timings: StageTimings, step_seconds: float | None = None
) -> list[Advice]:
    """All advice on an assembled training. A look that fails is left out: advice is never worth an error.

    Args:
        batches: micro-batches of one step, on the host.
        timings: of its stages; what is there is not measured again.
        step_seconds: of the running training, waiting for data included; the step on cached batches stands for it
            where it is not known.
    """
    found: list[Advice] = []

    def attempt(look: Callable[[], list[Advice]]) -> None:
        try:
            found.extend(look())
        except Exception:  # a user's object may do anything when it is looked at
            return

    functions = step_functions(training.workload.loss, training.workload.model)
    alone = timings.compute.seconds if timings.compute is not None else 0.0
    running = step_seconds or alone
    with restored(training):
        on_device = [training.to_device(batch) for batch in batches]
        attempt(lambda: _step(training, functions, on_device, peaks, alone))
        attempt(lambda: forced_in_step(training, on_device, running))
        attempt(lambda: _unused(training, on_device[0], running))
    attempt(lambda: _cadence(training, timings, running))
    attempt(lambda: _inputs(training, batches[0], peaks, timings, running))
    attempt(lambda: forced_in_batch(training, running))
    return advice.merged(found)


def _step(
    training: LiveTraining, functions: list[Function], batches: list[Any], peaks: Peaks, seconds: float
) -> list[Advice]:
    """The step, watched once; where it cannot be watched (compiled), by its source alone."""
    waits = training.device.kind != "cpu"
    try:
        seen = watch(lambda: training.whole_step(batches), training.device.torch)
    except Exception:
        seen = WatchedStep()
    doubles = [
        (path or "the batch", _dataset_line(training))
        for path, tensor in tensors(batches[0])
        if tensor.dtype == torch.float64
    ]
    return [
        *(advice.sync_advice(functions, seen) if waits else []),
        *advice.creation_advice(functions, seen, waits),
        *advice.copy_advice(functions, seen, training.setup.precision.dtype is not None, waits),
        *advice.loop_advice(functions, seen),
        *advice.operator_advice(seen, seen.total, seconds, peaks.launch_seconds),
        *advice.double_advice(seen, doubles),
    ]


def forced_in_step(training: LiveTraining, batches: list[Any], step: float) -> list[Advice]:
    """Calls in a step that are no part of training."""
    with watched_calls() as found:
        training.whole_step(batches)
    return advice_of_calls(found, step)


def forced_in_batch(training: LiveTraining, step: float) -> list[Advice]:
    """The same in making a batch, in a forked child, where the source of dataset or collate names such a call."""
    loader = training.loader.loader
    collating = function_of(loader.collate_fn)
    functions = [*dataset_functions(loader.dataset), *([collating] if collating is not None else [])]
    names = {name for _, _, name in CALLS}
    if loader.num_workers or not any(name in names for function in functions for name, _ in function.calls()):
        return []  # what workers do beside the step is no share of it
    fetch = Fetch(loader)

    def make() -> JsonDict:
        with watched_calls() as found:
            loader.collate_fn(fetch.samples(fetch.indices(), fetch.size))
        return {"found": [(name, *line, times) for (name, line), times in found.items()]}

    seen: Found = {(name, (file, line)): times for name, file, line, times in in_child(make, timeout=60.0)["found"]}
    return advice_of_calls(seen, step, training.lengths.accumulation)


def _unused(training: LiveTraining, batch: Any, step: float) -> list[Advice]:
    return advice.unused_advice(unused_outputs(training.model, lambda: training.forward(batch)), step)


def _dataset_line(training: LiveTraining) -> Line | None:
    """Where the dataset makes its samples: the line that says float64 if one does, else the function."""
    functions = dataset_functions(training.loader.loader.dataset)
    for function in functions:
        file = function.file
        for _, call in function.calls():
            if "float64" in ast.unparse(call) or "double" in ast.unparse(call):
                return file, call.lineno
    for function in functions:
        for name, call in function.calls():
            if name.split(".")[-1] in ("from_numpy", "as_tensor", "tensor"):
                return function.file, call.lineno
    return (functions[0].file, functions[0].line) if functions else None


def _cadence(training: LiveTraining, timings: StageTimings, step: float) -> list[Advice]:
    if training.evaluation is None or timings.evaluate is None:
        return []
    function = function_of(training.workload.evaluate)
    where = (function.file, function.line) if function else None
    return advice.cadence_advice("evaluation", timings.evaluate.seconds, training.lengths.evaluate_every, step, where)


def _inputs(training: LiveTraining, batch: Any, peaks: Peaks, timings: StageTimings, step: float) -> list[Advice]:
    """Decoding and collate: their seconds as they were measured, their lines in a forked child."""
    loader, inputs = training.loader.loader, timings.inputs
    functions = dataset_functions(loader.dataset)
    sample = inputs.sample.seconds if inputs.sample is not None else 0.0
    preparing = sample * timings.batch_size * timings.accumulation
    part = min(1.0, preparing / step) if step > 0 else 0.0
    found = []
    if part >= advice.CACHE:  # lines are traced only where they would be told
        shares = {(file, line): seconds for file, line, seconds in _lines(training)}
        found += advice.decode_advice(functions, shares, sample, part)
    collate = inputs.collate.seconds if inputs.collate is not None else None
    rate = host_bandwidth(peaks, training.device.kind)
    each = step / timings.accumulation
    return [*found, *advice.collate_advice(function_of(loader.collate_fn), collate, nbytes(batch), rate, each)]


def _lines(training: LiveTraining) -> list[tuple[str, int, float]]:
    """Seconds of each line of the user's own in which a sample is prepared, traced in a forked child."""
    fetch = Fetch(training.loader.loader)

    def trace() -> JsonDict:
        read: list[int] = []
        profile = profile_lines(lambda: read.append(few(fetch)), _TRACED)
        each = sum(read) / max(profile.runs, 1)
        return {"lines": [(file, line, seconds / max(each, 1)) for file, line, seconds in profile.hot()]}

    try:
        return [item for item in in_child(trace, timeout=60.0)["lines"] if is_users(item[0])]
    except ChildFailed:
        return []
