"""Drill-down: transforms of a Compose-like pipeline, submodules forward and backward, lines of the user's source.

And the input side alone: one sample, collate, the user's loader, and what handing a batch over costs."""

from __future__ import annotations

import inspect
import itertools
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from autoopt.benchmark.contents import tensor_leaves
from autoopt.benchmark.facts import place_of
from autoopt.benchmark.libraries import is_users
from autoopt.benchmark.live import LiveTraining
from autoopt.records import Deeper
from autoopt.simplify.batches import Fetch, few, fresh_loader
from autoopt.simplify.drift import SAMPLES, ReferenceSpeed, normalized, sensitivity
from autoopt.simplify.microbenchmarks import MOST, repeat, summary
from autoopt.simplify.source import WORTH, Kind, parts_of, profile_lines
from autoopt.simplify.stage_timings import InputTimings, Timing


def open_dataset(
    fetch: Fetch, cpu: float, wait: float, time_limit: float
) -> tuple[tuple[Deeper, ...], tuple[Deeper, ...], tuple[str, ...]]:
    """Chains below one sample. Meant for a forked child: it changes the dataset's transforms in place.

    Args:
        cpu, wait: seconds per sample as measured without looking inside.

    Returns:
        Where a core works, and where it waits, in seconds per sample; notes.
    """
    counts: list[int] = []
    profile = profile_lines(lambda: counts.append(few(fetch)), time_limit / 2)
    each = sum(counts) / max(profile.runs, 1)
    if not each:
        return (), (), ("the dataset was not opened: it gave no sample",)
    timers, chains = list[Timer](), list[tuple[Deeper, ...]]()
    for compose in [part for part in parts_of(fetch.dataset) if isinstance(getattr(part, "transforms", None), list)]:
        compose.transforms[:] = found = [Timer(transform) for transform in compose.transforms]
        timers += found
    count, start = 0, time.perf_counter()
    while timers and (not count or time.perf_counter() - start < time_limit / 2):
        got = few(fetch)
        if not got:
            break
        count += got
    kinds: tuple[tuple[Kind, float], ...] = (("cpu", cpu), ("wait", wait))
    for kind, seconds in kinds:
        chain = profile.chain(kind, seconds * each if seconds else None)
        lines = tuple(item.model_copy(update={"seconds": item.seconds / each}) for item in chain)
        costs = [(timer.cpu if kind == "cpu" else max(0.0, timer.wall - timer.cpu), timer) for timer in timers]
        whole, top = max(costs, key=lambda item: item[0], default=(0.0, None))
        cost = whole / max(count, 1)
        if top is not None and cost and cost >= WORTH * seconds:  # between the line that calls it and those within it
            file, line = source_of(top.inner)
            name = str(getattr(top.inner, "__name__", None) or type(top.inner).__name__)
            above = tuple(item for item in lines if item.seconds >= cost and item.line != line)[:1]
            inside = (item for item in lines if item not in above and item.file == file is not None)
            transform = Deeper(name=name, kind="transform", seconds=cost, file=file, line=line)
            lines = (*above, transform, *(item for item in inside if (item.line or 0) >= (line or 0)))
        chains.append(lines)
    notes = () if any(chains) or timers else ("the dataset was not opened: all of its source is a library's",)
    return chains[0], chains[1], notes


class Timer:
    """A transform that is timed, by the thread's CPU clock and the wall's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.wall = self.cpu = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start, used = time.perf_counter(), time.thread_time()
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.wall += time.perf_counter() - start
            self.cpu += time.thread_time() - used

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def source_of(thing: Any) -> tuple[str | None, int | None]:
    """File and first line of what a callable runs, if that is the user's own."""
    kind: Any = type(thing)
    for candidate in (thing, getattr(kind, "forward", None), kind.__dict__.get("__call__"), kind):
        file, line = place_of(candidate)
        if file and is_users(file):
            return file, line
    return None, None


def open_compute(
    training: LiveTraining, batch: Any, timings: dict[str, Any], time_limit: float
) -> dict[str, tuple[Deeper, ...]]:
    """Chains below forward, backward and the optimizer's step; seconds of one call of each."""
    forward, backward = timings["forward"], timings["backward"].seconds
    modules_forward, modules_backward = module_seconds(training, batch, time_limit * 0.3)
    ahead = profile_lines(lambda: training.forward(batch), time_limit * 0.2)
    back = profile_lines(lambda: training.backward(training.forward(batch)), time_limit * 0.3)
    training.optimizer.zero_grad(set_to_none=True)
    # of the user's own an autograd.Function runs in the backward pass
    own = back.hottest(lambda code: code.co_name == "backward", backward, WORTH)
    file, update = inspect.getsourcefile(type(training.optimizer)) or "<", tuple[Deeper, ...]()
    if is_users(file):

        def whole() -> None:
            training.backward(training.forward(batch))
            training.update()

        lines = profile_lines(whole, time_limit * 0.1)
        update = lines.hottest(lambda code: code.co_filename == file, timings["optimizer"].seconds)
    return {
        "forward": (*_path(training.model, modules_forward, forward.seconds), *ahead.chain("wall", forward.seconds)),
        "backward": (*_path(training.model, modules_backward, backward), *own),
        "optimizer": update,
    }


def module_seconds(training: LiveTraining, batch: Any, time_limit: float) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of every submodule of an eager model by its dotted name, with all below it: forward and backward.

    Backward is timed between the gradients of its output and of its input.
    """
    forward, backward = defaultdict[str, float](float), defaultdict[str, float](float)
    handles, runs = list[Any](), 0

    def now() -> float:
        training.device.synchronize()
        return time.perf_counter()

    def watch(name: str, module: nn.Module) -> None:
        begun: list[float] = []

        def stop(module: nn.Module, inputs: Any, output: Any) -> None:
            if begun:
                forward[name] += now() - begun.pop()
            outputs, before = (
                [tensor for tensor in tensor_leaves(each) if tensor.requires_grad] for each in (output, inputs)
            )
            if not outputs or not before or outputs[0] is before[0]:
                return
            mark: list[float] = []

            def ended(gradient: Any) -> None:
                if mark:
                    backward[name] += now() - mark.pop()

            # hooks on tensors leave in-place code alone
            outputs[0].register_hook(lambda gradient: None if mark else mark.append(now()))  # type: ignore[no-untyped-call]
            before[0].register_hook(ended)  # type: ignore[no-untyped-call]

        handles.append(module.register_forward_pre_hook(lambda module, inputs: begun.append(now())))
        handles.append(module.register_forward_hook(stop))

    for name, module in training.model.named_modules():
        if name:
            watch(name, module)
    start = time.perf_counter()
    try:
        while runs < 2 or (time.perf_counter() - start < time_limit and runs < 30):
            training.optimizer.zero_grad(set_to_none=True)
            training.backward(training.forward(batch))
            training.device.synchronize()
            runs += 1
            if time.perf_counter() - start > 3 * time_limit:
                break
    finally:
        for handle in handles:
            handle.remove()
    ahead, back = ({name: seconds / runs for name, seconds in table.items()} for table in (forward, backward))
    return ahead, back


def _path(model: nn.Module, seconds: dict[str, float], whole: float) -> tuple[Deeper, ...]:
    """From the model down to the costliest submodule, as long as one explains enough of what is above it."""
    found, modules = list[Deeper](), dict(model.named_modules())
    above, prefix = whole, ""
    while True:
        below = (name for name in seconds if name.startswith(prefix))
        # the outermost ones: a container that is only iterated has no seconds of its own
        dots = {name: [at for at, letter in enumerate(name) if letter == "." and at > len(prefix)] for name in below}
        children = [name for name in dots if not any(name[:at] in seconds for at in dots[name])]
        name = max(children, key=lambda child: seconds[child], default=None)
        if name is None or seconds[name] < WORTH * above:
            return tuple(found)
        kind, (file, line) = type(modules[name]).__name__, source_of(modules[name])
        took = min(seconds[name], above)
        found.append(Deeper(name=f"{name} ({kind})", kind="module", seconds=took, file=file, line=line))
        above, prefix = seconds[name], f"{name}."


def open_evaluation(training: LiveTraining, seconds: float, time_limit: float) -> tuple[Deeper, ...]:
    """Lines of the user's evaluation on a few batches, scaled to the whole."""
    if training.evaluation is None:
        return ()
    batches = list(itertools.islice(iter(training.evaluation.batches), 2))
    return profile_lines(lambda: training.evaluation.on(training.model, batches), time_limit, most=5).chain(
        "wall", seconds
    )


class Clock:
    """Wall, CPU and waiting seconds since it was made. Waiting for a core is not waiting."""

    def __init__(self) -> None:
        self.switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        self.delay = _run_delay()
        self.cpu = time.process_time()
        self.wall = time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        wall = time.perf_counter() - self.wall
        cpu = time.process_time() - self.cpu
        delay = _run_delay() - self.delay
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > self.switches
        return wall, cpu, max(0.0, wall - cpu - delay) if slept else 0.0


def measure_inputs(loader: DataLoader[Any], time_limit: float) -> InputTimings:
    """Measures the input side of a loader. Meant for a forked child: it leaves caches warm behind it."""
    notes: list[str] = []
    fetch = Fetch(loader)
    sample, spread = time_sample(fetch, time_limit * 0.3)
    collate: Timing | None = None
    collating: tuple[Deeper, ...] = ()
    if loader.batch_sampler is None and loader.batch_size is None:
        batch = fetch.samples(fetch.indices(), 1)[0]
    else:
        samples, reference = fetch.samples(fetch.indices(), fetch.size), ReferenceSpeed()
        batch = loader.collate_fn(samples)
        collate = repeat(lambda: loader.collate_fn(samples), time_limit * 0.1, reference=reference, usual=SAMPLES)
        collating = profile_lines(lambda: loader.collate_fn(samples), time_limit * 0.05).chain("wall", collate.seconds)
    alone = None if loader.num_workers else _loader(loader, time_limit * 0.25, notes)
    handover, receive = _handover(batch, time_limit * 0.15) if batch is not None else (None, None)
    deeper, waiting, more = open_dataset(fetch, sample.cpu_seconds or 0.0, sample.wait_seconds or 0.0, time_limit * 0.2)
    return InputTimings(
        sample=sample,
        sample_spread=spread,
        collate=collate,
        loader=alone,
        handover=handover,
        receive=receive,
        deeper=deeper,
        waiting=waiting,
        collating=collating,
        notes=(*notes, *more),
    )


def time_sample(fetch: Fetch, time_limit: float) -> tuple[Timing, float | None]:
    """One sample alone, in chunks long enough to be timed; spread: deviation of one sample over its mean."""
    many = hasattr(fetch.dataset, "__getitems__")
    pending: list[Any] = []
    size = 1
    repeats: list[tuple[float, float, float, float]] = []
    reference = ReferenceSpeed()
    cold = None
    start = time.perf_counter()
    while len(repeats) < 2 or (time.perf_counter() - start < time_limit and len(repeats) < MOST):
        while not fetch.iterable and len(pending) < size:
            pending += fetch.indices()
        if many:
            size = max(size, min(len(pending), fetch.size))
        chunk, pending = pending[:size], pending[size:]
        before = reference.now()
        clock = Clock()
        got = fetch.samples(chunk, size)
        wall, cpu, wait = clock.read()
        level = (before + reference.now()) / 2
        count = max(1, len(got) if fetch.iterable else len(chunk))
        if cold is None:
            cold = wall / count
            size = max(1, min(256, int(2e-3 / max(cold, 1e-6))))
            continue
        repeats.append((wall / count, cpu / count, wait / count, level))
    walls, cpus, waits, readings = map(list, zip(*repeats, strict=True))
    spread = statistics.stdev(walls) / statistics.fmean(walls) if len(walls) > 3 and size == 1 else None
    working = sensitivity(cpus, readings, SAMPLES)
    # a mean keeps rare slow samples, which a median forgets; trimmed, since bursts of the machine are not the dataset's
    cpu, wait = _trimmed(normalized(cpus, readings, working)), _trimmed(waits)
    timing = summary(walls, readings=readings, usual=SAMPLES * cpu / max(cpu + wait, 1e-12), cpu_seconds=cpu)
    # its own degree, not that of the wall-clock, in which waiting is
    degree = min(1.0, working * cpu / max(timing.seconds, 1e-12))
    return timing.model_copy(update={"wait_seconds": wait, "sensitivity": degree}), spread


def _loader(loader: DataLoader[Any], time_limit: float, notes: list[str]) -> Timing | None:
    """Seconds per micro-batch of the user's loader, which has no workers, when nobody uses the batches."""
    clone, reference = fresh_loader(loader), ReferenceSpeed()
    stream: Iterator[Any] = iter(())
    repeats: list[tuple[float, float, float]] = []
    start = time.perf_counter()
    while len(repeats) < 3 or (time.perf_counter() - start < time_limit and len(repeats) < MOST):
        before = reference.now()
        mark, spent = time.perf_counter(), time.thread_time()
        if next(stream, None) is not None:
            wall, cpu = time.perf_counter() - mark, time.thread_time() - spent
            repeats.append((wall, cpu, (before + reference.now()) / 2))
        else:  # the first batch of an epoch takes what starts it, too
            stream = iter(clone)
            next(stream, None)
        if time.perf_counter() - start > 4 * time_limit:
            break
    if not repeats:
        notes.append("the loader alone was not measured: an epoch holds one batch")
        return None
    walls, cpus, readings = map(list, zip(*repeats, strict=True))
    share = min(1.0, sum(cpus) / max(sum(walls), 1e-12))
    even = normalized(cpus, readings, sensitivity(cpus, readings, SAMPLES))
    return summary(walls, readings=readings, usual=SAMPLES * share, cpu_seconds=statistics.median(even))


def _handover(batch: Any, time_limit: float) -> tuple[Timing, Timing]:
    """A ready micro-batch from one worker to this process: wall-clock of both, CPU seconds of this one.

    The worker copies it each time as a collate would write it.
    """
    loader: DataLoader[Any] = DataLoader(
        range(1_000_000),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=1,
        collate_fn=lambda _: tree_map(lambda item: item.clone() if isinstance(item, torch.Tensor) else item, batch),
        multiprocessing_context="fork",
    )
    batches = iter(loader)
    for _ in range(4):  # the worker starts, and fills its queue
        next(batches)
    wall = repeat(lambda: next(batches), time_limit, least=60)
    return wall, Timing(seconds=wall.cpu_seconds or 0.0)


def _trimmed(values: list[float]) -> float:
    """The mean without the highest and the lowest tenth."""
    cut = len(values) // 10
    ordered = sorted(values)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def _run_delay() -> float:
    """Seconds that this thread was ready and got no core; 0 where the system does not tell."""
    try:
        return float(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
