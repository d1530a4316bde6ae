"""Looks at a live training for what only a person can change."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from typing import Any

import torch

from autoopt.benchmark.training import Training
from autoopt.benchmark.transfer import tensors
from autoopt.records import Advice, JsonDict, Peaks
from autoopt.simplify import advice, microbenchmarks
from autoopt.simplify.inputs import Clock, Fetch, few, nbytes
from autoopt.simplify.isolation import ChildFailed, in_child, restored
from autoopt.simplify.lines import is_users, profile_lines
from autoopt.simplify.roofline import host_bandwidth
from autoopt.simplify.source import Function, dataset_functions, function_of, step_functions
from autoopt.simplify.timing import repeat
from autoopt.simplify.watch import Line, Seen, unused_outputs, watch


def advise_training(
    training: Training, batches: list[Any], peaks: Peaks, running_step_seconds: float | None = None
) -> list[Advice]:
    """All advice on an assembled training. A look that fails is left out: advice is never worth an error.

    Args:
        batches: micro-batches of one step, on the host.
        running_step_seconds: a step of the running training, waiting for data included; the step on cached
            batches stands for it where it is not known.
    """
    found: list[Advice] = []

    def attempt(look: Callable[[], list[Advice]]) -> None:
        try:
            found.extend(look())
        except Exception:  # a user's object may do anything when it is looked at
            return

    functions = step_functions(training.workload.loss, training.workload.model)
    with restored(training):
        on_device = [training.to_device(batch) for batch in batches]
        step = repeat(
            lambda: training.whole_step(on_device), 1.0, wait=training.device.synchronize, least=3, most=10
        ).seconds
        attempt(lambda: _step(training, functions, on_device, peaks, step))
        attempt(lambda: advice.unused_advice(unused_outputs(training.model, lambda: training.forward(on_device[0]))))
        attempt(lambda: _cadence(training, running_step_seconds or step))
    attempt(lambda: _inputs(training, batches[0], peaks, step))
    return advice.merged(found)


def _step(
    training: Training, functions: list[Function], batches: list[Any], peaks: Peaks, seconds: float
) -> list[Advice]:
    """The step, watched once; where it cannot be watched (compiled), by its source alone."""
    try:
        seen = watch(lambda: training.whole_step(batches), training.device.torch)
    except Exception:
        seen = Seen()
    doubles = [
        (path or "the batch", _dataset_line(training))
        for path, tensor in tensors(batches[0])
        if tensor.dtype == torch.float64
    ]
    return [
        *advice.sync_advice(functions, seen),
        *advice.creation_advice(functions),
        *advice.copy_advice(functions, seen, training.setup.precision.dtype is not None),
        *advice.loop_advice(functions, seen),
        *advice.operator_advice(seen, seen.total, seconds, peaks.launch_seconds),
        *advice.double_advice(seen, doubles),
    ]


def _dataset_line(training: Training) -> Line | None:
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


def _cadence(training: Training, step: float) -> list[Advice]:
    if training.evaluation is None:
        return []
    timing = microbenchmarks.evaluation(training, 0.5).get("evaluate")
    if timing is None:
        return []
    function = function_of(training.workload.evaluate)
    where = (function.file, function.line) if function else None
    return advice.cadence_advice("evaluation", timing.seconds, training.evaluate_every, step, where)


def _inputs(training: Training, batch: Any, peaks: Peaks, step: float) -> list[Advice]:
    """Decoding and collate, looked at in a forked child."""
    collate = function_of(training.loader.loader.collate_fn)
    functions = dataset_functions(training.loader.loader.dataset)
    try:
        seen = in_child(lambda: _look(training, bool(collate)), timeout=60.0)
    except ChildFailed:
        return []
    sample = float(seen["sample"])
    shares = {(file, line): seconds for file, line, seconds in seen["lines"]}
    preparing = sample * (training.loader.loader.batch_size or 1) * training.accumulation
    return [
        *advice.decode_advice(functions, shares, sample, preparing / (preparing + step) if step else 0.0),
        *advice.collate_advice(collate, seen["collate"], nbytes(batch), host_bandwidth(peaks, training.device.kind)),
    ]


def _look(training: Training, own_collate: bool) -> JsonDict:
    fetch = Fetch(training.loader.loader)
    got = few(fetch)
    clock, start, count = Clock(), time.perf_counter(), 0
    while not count or time.perf_counter() - start < 0.3:
        count += few(fetch)
    sample = clock.read()[0] / max(count, 1)
    profile = profile_lines(lambda: few(fetch), 0.5)
    collate = None
    if own_collate:
        samples = fetch.samples(fetch.indices(), fetch.size)
        collate = repeat(lambda: training.loader.loader.collate_fn(samples), 0.3).seconds
    lines = [(file, line, seconds / max(got, 1)) for file, line, seconds in profile.hot() if is_users(file)]
    return {"sample": sample, "lines": lines, "collate": collate}
