"""Looks at a live training for what only a person can change."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from typing import Any

import torch

from autoopt.benchmark.transfer import tensors
from autoopt.records import Advice, JsonDict, Peaks
from autoopt.simplify import advice, stubs
from autoopt.simplify.forked import ChildFailed, in_child
from autoopt.simplify.inputs import Clock, Fetch, few, nbytes
from autoopt.simplify.lines import is_users, profile_lines
from autoopt.simplify.parts import Parts
from autoopt.simplify.restore import restored
from autoopt.simplify.source import Function, dataset_functions, function_of, step_functions
from autoopt.simplify.timing import repeat
from autoopt.simplify.watch import Line, Seen, unused_outputs, watch


def advise_parts(
    parts: Parts, batches: list[Any], peaks: Peaks, running_step_seconds: float | None = None
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

    functions = step_functions(parts.user_objects.get("loss"), parts.user_objects.get("model") or parts.model)
    with restored(parts):
        on_device = [parts.to_device(batch) for batch in batches]
        step = repeat(lambda: parts.whole_step(on_device), 1.0, wait=parts.synchronize, least=3, most=10).seconds
        attempt(lambda: _step(parts, functions, on_device, peaks, step))
        attempt(lambda: advice.unused_advice(unused_outputs(parts.model, lambda: parts.forward(on_device[0]))))
        attempt(lambda: _cadence(parts, running_step_seconds or step))
    attempt(lambda: _inputs(parts, batches[0], peaks, step))
    return advice.merged(found)


def _step(parts: Parts, functions: list[Function], batches: list[Any], peaks: Peaks, seconds: float) -> list[Advice]:
    """The step, watched once; where it cannot be watched (compiled), by its source alone."""
    try:
        seen = watch(lambda: parts.whole_step(batches), parts.device)
    except Exception:
        seen = Seen()
    doubles = [
        (path or "the batch", _dataset_line(parts))
        for path, tensor in tensors(batches[0])
        if tensor.dtype == torch.float64
    ]
    return [
        *advice.sync_advice(functions, seen),
        *advice.creation_advice(functions),
        *advice.copy_advice(functions, seen, parts.setup.precision.dtype is not None),
        *advice.loop_advice(functions, seen),
        *advice.operator_advice(seen, seen.total, seconds, peaks.launch_seconds),
        *advice.double_advice(seen, doubles),
    ]


def _dataset_line(parts: Parts) -> Line | None:
    """Where the dataset makes its samples: the line that says float64 if one does, else the function."""
    functions = dataset_functions(parts.loader.dataset)
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


def _cadence(parts: Parts, step: float) -> list[Advice]:
    if not parts.evaluate_every or parts.evaluate is None:
        return []
    timing = stubs.evaluation(parts, 0.5).get("evaluate")
    if timing is None:
        return []
    function = function_of(parts.user_objects.get("evaluate"))
    where = (function.file, function.line) if function else None
    return advice.cadence_advice("evaluation", timing.seconds, parts.evaluate_every, step, where)


def _inputs(parts: Parts, batch: Any, peaks: Peaks, step: float) -> list[Advice]:
    """Decoding and collate, looked at in a forked child."""
    collate = function_of(parts.loader.collate_fn)
    functions = dataset_functions(parts.loader.dataset)
    try:
        seen = in_child(lambda: _look(parts, bool(collate)), timeout=60.0)
    except ChildFailed:
        return []
    sample = float(seen["sample"])
    shares = {(file, line): seconds for file, line, seconds in seen["lines"]}
    preparing = sample * (parts.loader.batch_size or 1) * parts.accumulation
    return [
        *advice.decode_advice(functions, shares, sample, preparing / (preparing + step) if step else 0.0),
        *advice.collate_advice(collate, seen["collate"], nbytes(batch), peaks.memory_bytes_per_second),
    ]


def _look(parts: Parts, own_collate: bool) -> JsonDict:
    fetch = Fetch(parts.loader)
    got = few(fetch)
    clock, start, count = Clock(), time.perf_counter(), 0
    while not count or time.perf_counter() - start < 0.3:
        count += few(fetch)
    sample = clock.read()[0] / max(count, 1)
    profile = profile_lines(lambda: few(fetch), 0.5)
    collate = None
    if own_collate:
        samples = fetch.samples(fetch.indices(), fetch.size)
        collate = repeat(lambda: parts.loader.collate_fn(samples), 0.3).seconds
    lines = [(file, line, seconds / max(got, 1)) for file, line, seconds in profile.hot() if is_users(file)]
    return {"sample": sample, "lines": lines, "collate": collate}
