"""Advice on what only the user can change: its file and line, its measured share of a step, and the edit.

It is looked for in a live training's step, its source and its input. What a strategy can do is no advice."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from autoopt.benchmark.contents import tensors
from autoopt.benchmark.live import LiveTraining
from autoopt.records import Advice, Peaks
from autoopt.simplify.batches import Fetch, in_child, nbytes, restored
from autoopt.simplify.costly import (
    CALLS,
    LEAST_SHARE,
    Found,
    Line,
    Place,
    advice_of_calls,
    anomaly_advice,
    watched_calls,
    with_source,
)
from autoopt.simplify.source import (
    Function,
    WatchedStep,
    dataset_functions,
    dotted,
    function_of,
    step_functions,
    unused_outputs,
    watch,
)
from autoopt.simplify.stage_timings import StageTimings

_MAKERS = ("tensor", "as_tensor", "zeros", "ones", "full", "eye", "arange", "linspace", "rand", "randn", "randint",
           "from_numpy", "empty")  # fmt: skip


def sync_advice(functions: Iterable[Function], seen: WatchedStep) -> list[Advice]:
    """Values fetched from the device in every step: the host waits for all that was issued.

    For devices that run on their own: on a CPU a value is there, and asking for it makes nobody wait.
    """
    found: dict[Line, str] = {line: f"{count} in a step, watched" for line, count in seen.syncs.items()}
    edits: dict[Line, str] = {}
    for function, line, name, call in _calls(functions):
        prints = name == "print" and any(not isinstance(argument, ast.Constant) for argument in call.args)
        if name.endswith((".item", ".cpu", ".tolist", ".numpy")) or prints:
            edits[line] = "keep it"
            if isinstance(call.func, ast.Attribute) and call.func.attr != "cpu":
                edits[line] = f"keep {ast.unparse(call.func.value)}.detach()"
            found.setdefault(line, f"{name.lstrip('.')}() stands in {function.name}")
    return [
        _advice(
            "A value is fetched from the device in every step",
            f"{evidence}: the host waits for the device before it can issue the next work",
            line,
            f"{edits.get(line, 'keep it')} as a tensor, and fetch its value once in many steps, such as at each "
            "evaluation",
            seen.share(seen.waited[line]) if line in seen.waited else None,
        )
        for line, evidence in sorted(found.items())
    ]


def _calls(functions: Iterable[Function]) -> Iterator[tuple[Function, Line, str, ast.Call]]:
    """Every call in these functions: the function, the line, the name as it is written."""
    for function in functions:
        for name, call in function.calls():
            yield function, (function.file, call.lineno), name, call


def creation_advice(functions: Iterable[Function], seen: WatchedStep, waits: bool) -> list[Advice]:
    """Tensors made on the host in every step.

    Args:
        waits: where the model runs on a device, to which they must then be copied; else only what costs is reported.
    """
    found = []
    for function, line, name, call in _calls(functions):
        share = seen.share(seen.seconds.get(line, 0.0))
        module, _, made = name.partition(".")
        on_host = not any(keyword.arg == "device" for keyword in call.keywords)
        if module == "torch" and made in _MAKERS and on_host and (waits or (share or 0.0) >= LEAST_SHARE):
            edit = f'self.register_buffer("...", {ast.unparse(call)}, persistent=False)'
            evidence = f"{name}() without device= stands in {function.name}"
            suggestion = f"make it once, in __init__: {edit}; or give device= so that it is made in place"
            found.append(_advice("A tensor is made anew in every step", evidence, line, suggestion, share))
    return found


def copy_advice(functions: Iterable[Function], seen: WatchedStep, autocast: bool, waits: bool) -> list[Advice]:
    """Copies between devices or types inside the step, apart from those that autocast makes.

    Args:
        waits: where the model runs on a device; else only what costs is reported.
    """
    found: dict[Line, str] = {}
    for function, line, name, call in _calls(functions) if waits else ():
        given = [ast.unparse(each) for each in (*call.args, *(keyword.value for keyword in call.keywords))]
        named = any(word in text for text in given for word in ("device", "cuda", "'cpu'"))
        if name.endswith(".cuda") or (name.endswith(".to") and named):
            found[line] = f"{name.lstrip('.')}() stands in {function.name}"
    for line, count in seen.copies.items() if not autocast else ():
        told_otherwise = not seen.copied_bytes[line] or line in seen.doubles or line in seen.syncs
        if not told_otherwise and (waits or (seen.share(seen.copied[line]) or 0.0) >= LEAST_SHARE):
            size = seen.copied_bytes[line] / 1e6
            found[line] = f"{count} copies of {size:.3g} MB together in a step, watched"
    return [
        _advice(
            "A copy is made inside the step",
            evidence,
            line,
            "batches are on the device already; keep constants there as buffers, and convert once, in the dataset",
            seen.share(seen.copied[line]) if line in seen.copied else None,
        )
        for line, evidence in sorted(found.items())
    ]


def loop_advice(functions: Iterable[Function], seen: WatchedStep) -> list[Advice]:
    """Loops over tensors in Python: many operators from one line within a loop."""
    functions = list(functions)
    found = []
    for (file, number), count in seen.operators.most_common():
        share = seen.share(seen.seconds[file, number])
        # fewer operators gain little where they are one
        if count >= 16 and (share or 0.0) >= LEAST_SHARE and _over_tensors(functions, file, number):
            evidence = f"{count} operators in a step come from this line, which stands in a loop"
            edit = "write it as one operation on the whole tensor (broadcasting, einsum, gather, torch.vmap)"
            found.append(_advice("A Python loop over tensors", evidence, (file, number), edit, share))
    return found


def _over_tensors(functions: list[Function], file: str, line: int) -> bool:
    """Whether a line lies in a loop, and in none over submodules, as layers follow each other: ``x = block(x)``."""
    inside = False
    for function in functions:
        for loop in function.loops() if function.file == file else ():
            span = range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)
            if line not in span:
                continue
            inside = True
            target = ast.walk(loop.target) if isinstance(loop, ast.For) else ()
            names = {node.id for node in target if isinstance(node, ast.Name)}
            if any(name in names and call.lineno in span for name, call in function.calls()):
                return False
    return inside


def double_advice(seen: WatchedStep, batch_lines: Iterable[tuple[str, Line | None]]) -> list[Advice]:
    """float64 by accident: in the batch, or in the step."""
    found = [
        _advice(
            "float64 in the batch",
            f"{path} arrives as float64: twice the bytes, and arithmetic many times slower than float32",
            line,
            "convert where it is made: .float(), or dtype=np.float32",
        )
        for path, line in batch_lines
    ]
    share = seen.share(seen.double_seconds)
    if seen.doubles and not found and (share or 0.0) >= LEAST_SHARE:
        line = min(seen.doubles)
        found.append(
            _advice(
                "float64 in the step",
                f"{seen.double_total} operators of a step give float64, the first at this line",
                line,
                "use dtype=torch.float32; Python floats and np.float64 scalars promote where both are tensors",
                share,
            )
        )
    return found


def unused_advice(training: LiveTraining, batch: Any, step: float) -> list[Advice]:
    """Submodules that are computed for nothing.

    Args:
        step: seconds of a step; the backward of what is not used is never run, so its share is the forward's.
    """
    return [
        _advice(
            "An output that the loss does not use",
            f"the output of {module} does not reach the loss",
            line,
            "leave it out in training, or use it",
            min(1.0, seconds / step) if step > 0 else None,
        )
        for module, line, seconds in unused_outputs(training.model, lambda: training.forward(batch))
    ]


def collate_advice(
    function: Function | None, seconds: float | None, size: int, bandwidth: float | None, step: float
) -> list[Advice]:
    """A collate function that goes through samples or elements in Python.

    Args:
        seconds: per micro-batch.
        size: bytes of the batch.
        bandwidth: bytes per second.
        step: seconds of a micro-batch's part of a step, waiting for data included.
    """
    if function is None or seconds is None:
        return []

    def elementwise(loop: ast.AST) -> bool:
        """A loop statement, a nested comprehension, or one that makes a tensor each time."""
        inside = list(ast.walk(loop))
        nested = sum(isinstance(node, ast.comprehension) for node in inside) > 1
        makes = any(isinstance(node, ast.Call) and dotted(node.func).startswith("torch.") for node in inside)
        return isinstance(loop, (ast.For, ast.While)) or nested or makes

    loops = [loop for loop in function.loops() if elementwise(loop)]
    least = size / bandwidth if bandwidth else 0.0
    if not loops or seconds < max(10 * least, 2e-4):
        return []
    line = min(loop.lineno for loop in loops)
    return [
        _advice(
            "Collate goes through the samples in Python",
            f"{seconds * 1e3:.2f} ms for a batch of {size / 1e6:.2f} MB, which memory moves in {least * 1e3:.3f} ms",
            (function.file, line),
            "combine them once (torch.stack, np.stack, torch.nn.utils.rnn.pad_sequence) instead of row by row",
            min(1.0, seconds / step) if step > 0 else None,
        )
    ]


def _advice(title: str, evidence: str, line: Line | None, suggestion: str, share: float | None = None) -> Advice:
    """One piece of advice; its measured share and the line's own text belong to the evidence."""
    if share is not None:
        words = f"{share:.0%}" if share >= LEAST_SHARE else "less than 1%"
        evidence = f"{evidence}; {words} of a step"
    place: Place = line if line is not None and line[0] else (None, None)
    evidence = with_source(evidence, place)
    return Advice(title=title, evidence=evidence, share=share, file=place[0], line=place[1], suggestion=suggestion)


def merged(found: Iterable[Advice]) -> list[Advice]:
    """Each title once for a line, the largest measured share first."""
    kept: dict[Any, Advice] = {}
    for item in found:
        kept.setdefault((item.title, item.file, item.line), item)
    return sorted(kept.values(), key=lambda item: -(item.share or 0.0))


def advise_training(
    training: LiveTraining, batches: list[Any], peaks: Peaks, timings: StageTimings, step_seconds: float | None = None
) -> list[Advice]:
    """All advice on an assembled training. A measurement that fails is left out: advice is never worth an error.

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
        except Exception:  # a user's object may do anything when it is examined
            return

    if training.finds_anomalies and training.takes_batches:  # a script's line is known
        found.append(anomaly_advice())
    functions = step_functions(training.workload.loss, training.workload.model)
    running = step_seconds or (timings.compute.seconds if timings.compute is not None else 0.0)
    with restored(training):
        on_device = [training.to_device(batch) for batch in batches]
        attempt(lambda: _step(training, functions, on_device))
        attempt(lambda: forced_in_step(training, on_device, running))
        attempt(lambda: unused_advice(training, on_device[0], running))
    collate = timings.inputs.collate.seconds if timings.inputs.collate is not None else None
    function, size = function_of(training.loader.loader.collate_fn), nbytes(batches[0])
    rate, share = peaks.host_bandwidth(training.device.kind), running / timings.accumulation
    attempt(lambda: collate_advice(function, collate, size, rate, share))
    attempt(lambda: forced_in_batch(training, running))
    return merged(found)


def _step(training: LiveTraining, functions: list[Function], batches: list[Any]) -> list[Advice]:
    """The step, watched once; where it cannot be watched (compiled), by its source alone."""
    waits = training.device.kind != "cpu"
    try:
        seen = watch(lambda: training.whole_step(batches), training.device.torch)
    except Exception:
        seen = WatchedStep()
    doubles = [path or "the batch" for path, tensor in tensors(batches[0]) if tensor.dtype == torch.float64]
    line: Line | None = None
    if doubles:  # where the dataset makes its samples: the line that says float64 if one does, else the function
        made = dataset_functions(training.loader.loader.dataset)
        calls = [(line, name, ast.unparse(call)) for _, line, name, call in _calls(made)]
        lines = (
            *(line for line, _, text in calls if "float64" in text or "double" in text),
            *(line for line, name, _ in calls if name.split(".")[-1] in ("from_numpy", "as_tensor", "tensor")),
            *((function.file, function.line) for function in made),
        )
        line = next(iter(lines), None)
    return [
        *(sync_advice(functions, seen) if waits else []),
        *creation_advice(functions, seen, waits),
        *copy_advice(functions, seen, training.setup.precision.dtype is not None, waits),
        *loop_advice(functions, seen),
        *double_advice(seen, [(path, line) for path in doubles]),
    ]


def forced_in_step(training: LiveTraining, batches: list[Any], step: float) -> list[Advice]:
    with watched_calls() as found:
        training.whole_step(batches)
    return advice_of_calls(found, step)


def forced_in_batch(training: LiveTraining, step: float) -> list[Advice]:
    """The same in making a batch, in a forked child, where the source of dataset or collate names such a call."""
    loader = training.loader.loader
    collating = function_of(loader.collate_fn)
    functions = [*dataset_functions(loader.dataset), *([collating] if collating is not None else [])]
    names = {name for _, _, name in CALLS}
    if loader.num_workers or not any(name in names for _, _, name, _ in _calls(functions)):
        return []  # what workers do next to the step is no share of it
    fetch = Fetch(loader)

    def make() -> Found:
        with watched_calls() as found:
            loader.collate_fn(fetch.samples(fetch.indices(), fetch.size))
        return found

    return advice_of_calls(in_child(make), step, training.lengths.accumulation)
