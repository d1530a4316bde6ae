"""Microbenchmarks of the compute side: forward, backward, optimizer, host, copies, evaluation, checkpoint alone.

Each is repeated until its median is steady, within a limit of time. Operators have their FLOPs and bytes from shapes,
and their seconds from a short profile."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from autoopt.benchmark.contents import samples_of, tensor_leaves
from autoopt.benchmark.environment import usable_cores
from autoopt.benchmark.live import LiveTraining
from autoopt.records import JsonDict, Operator
from autoopt.simplify.batches import nbytes
from autoopt.simplify.drift import TENSORS, ReferenceSpeed, normalized, sensitivity
from autoopt.simplify.stage_timings import Timing

STEADY, MOST = 0.02, 1000
"""Relative standard error of a median at which repeats end, and their number at the most."""
Kind = Literal["matmul", "elementwise", "memory", "other"]
_VIEWS = frozenset(
    """
    view _unsafe_view reshape _reshape_alias transpose t permute expand as_strided slice select squeeze unsqueeze
    detach alias split split_with_sizes unbind narrow diagonal view_as empty empty_like empty_strided new_empty
    new_empty_strided is_same_size lift_fresh chunk swapaxes movedim unfold
    """.split()  # noqa: SIM905
)
_MEMORY = frozenset(
    """
    copy_ clone _to_copy contiguous cat stack index index_select gather scatter scatter_ embedding fill_ zero_
    zeros zeros_like ones ones_like full full_like arange index_put_ index_put embedding_dense_backward
    constant_pad_nd repeat roll _pin_memory
    """.split()  # noqa: SIM905
)
_LIBRARY = tuple("rnn lstm gru fft linalg ctc_loss grid_sampler embedding_bag sort topk unique".split())  # noqa: SIM905
"""Parts of the names of operators that are one kernel of a library, which nothing fuses with what stands next to it."""


@dataclass(frozen=True)
class Microbenchmark:
    """A call to time, what is made ready before each repeat, and what ends it on a device."""

    call: Callable[[], Any]
    before: Callable[[], Any] | None = None
    wait: Callable[[], Any] | None = None

    def once(self, at_once: int = 1) -> tuple[float, float]:
        """Wall-clock and CPU seconds of a call, as the mean of so many."""
        if self.before:
            self.before()
        if self.wait:
            self.wait()
        cpu, wall = time.thread_time(), time.perf_counter()
        for _ in range(at_once):
            self.call()
        if self.wait:
            self.wait()
        return (time.perf_counter() - wall) / at_once, (time.thread_time() - cpu) / at_once


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile of one or more values."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def summary(
    values: list[float],
    *,
    readings: Sequence[float] = (),
    usual: float = TENSORS,
    cpu_seconds: float | None = None,
) -> Timing:
    """A timing from repeats of one thing, in seconds.

    Args:
        readings: of the speed reference next to each repeat; empty where they were not read.
        usual: sensitivity where the repeats do not tell it.
    """
    degree = sensitivity(values, readings, usual) if readings else None
    if degree is not None:
        values = normalized(values, readings, degree)
    low, middle, high = quartiles(values)
    return Timing(
        seconds=middle,
        spread=(high - low) / 2 / middle if middle else 0.0,
        cpu_seconds=cpu_seconds,
        reference=statistics.median(readings) if readings else None,
        sensitivity=degree,
    )


def is_steady(values: list[float], least: int) -> bool:
    """Whether the median's own standard error is below ``STEADY`` of it."""
    if len(values) < least:
        return False
    low, middle, high = quartiles(values)
    return bool((high - low) / 1.349 * 1.253 / len(values) ** 0.5 <= STEADY * middle)


def repeat(call: Callable[[], Any], time_limit: float, **how: Any) -> Timing:
    """Times one call again and again.

    Args:
        how: ``before`` and ``wait`` of the :class:`Microbenchmark`; else as of :func:`interleaved`.
    """
    one = Microbenchmark(call, how.pop("before", None), how.pop("wait", None))
    return interleaved([one], time_limit, **how)[0]


def interleaved(
    microbenchmarks: list[Microbenchmark],
    time_limit: float,
    *,
    least: int = 8,
    most: int = MOST,
    derived: Sequence[Callable[[Sequence[float]], float]] = (),
    reference: ReferenceSpeed | None = None,
    usual: float = TENSORS,
) -> list[Timing]:
    """Times several microbenchmarks one after the other, so that a burst of the machine does not fall on one of them
    alone: until the medians are steady, the time is up or ``most`` is reached.

    With a reference all of the time is used: what is steady for a moment may be so at one speed alone. A call far
    shorter than the clock's own cost is timed several at once.

    Args:
        time_limit: seconds for all of them; at least two turns are made however long they take. Where one takes half of
            it, the first call of each, which is left out otherwise, is one of them: setting up is little next to it.
        least: turns before medians count as steady.
        derived: what follows from the seconds of one turn, such as a difference; each is a further timing, of 0 at
            least.
        reference: of speed, read next to each repeat, not timed.
        usual: sensitivity where the repeats do not tell it; of the part that a core works.
    """
    start = time.perf_counter()
    count = len(microbenchmarks)
    at_once = [1] * count
    walls, cpus, readings = ([list[float]() for _ in range(count)] for _ in range(3))

    def turn() -> None:
        for number, one in enumerate(microbenchmarks):
            first = reference.now() if reference else 0.0
            wall, cpu = one.once(at_once[number])
            walls[number].append(wall)
            cpus[number].append(cpu)
            if reference:  # the speed next to it: the mean of before and after
                readings[number].append((first + reference.now()) / 2)

    turn()
    at_once = [
        1 if one.before else max(1, min(1000, int(5e-4 / max(cold[0], 1e-7))))
        for one, cold in zip(microbenchmarks, walls, strict=True)
    ]
    if time.perf_counter() - start <= time_limit / 2:
        for values in (*walls, *cpus, *readings):
            values.clear()
    while len(walls[0]) < 2 or (len(walls[0]) < most and time.perf_counter() - start < time_limit):
        if reference is None and all(is_steady(values, least) for values in walls):
            break
        turn()
    found = []
    for wall, cpu, seen in zip(walls, cpus, readings, strict=True):
        share = min(1.0, sum(cpu) / max(sum(wall), 1e-12))
        found.append(summary(wall, readings=seen, usual=usual * share, cpu_seconds=statistics.median(cpu)))
    by_turn = [statistics.fmean(seen) for seen in zip(*readings, strict=True)]
    differences = ([max(0.0, derive(each)) for each in zip(*walls, strict=True)] for derive in derived)
    return [*found, *(summary(values, readings=by_turn) for values in differences)]


@dataclass
class Count:
    """Sums over all calls of one operator in a step."""

    calls: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    kind: Kind = "elementwise"


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls, FLOPs (torch's own registry of formulas) and bytes (all inputs and outputs once) by operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, Count] = defaultdict(Count)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", func)
        name = str(packet).replace(".", "::", 1)
        base = name.split("::")[-1]
        if base in _VIEWS:
            return out
        count = self.counts[name]
        count.calls += 1
        moved = float(nbytes(args) + nbytes(kwargs or {}) + nbytes(out))
        count.bytes += moved
        formula = flop_registry.get(packet)
        if formula is not None:
            count.kind = "matmul"
            count.flops += float(formula(*args, **(kwargs or {}), out_val=out))
        elif base in _MEMORY:
            count.kind = "memory"
        elif any(part in base for part in _LIBRARY):
            count.kind = "other"
        return out


def count_operators(run: Callable[[], Any]) -> dict[str, Count]:
    counter = Counter()
    with counter:
        run()
    return counter.counts


def profiled_seconds(run: Callable[[], Any], names: set[str], cuda: bool) -> dict[str, float]:
    """Seconds per run by operator, from a short window of the profiler.

    Time of a kernel below goes to the operator above it that ``names`` knows, since a convolution's
    time stands under the library's name.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    steps, began = 0, time.perf_counter()
    with profile(activities=activities) as profiler:
        while steps < 3 and (steps == 0 or time.perf_counter() - began < 0.5):
            run()
            steps += 1
        if cuda:
            torch.cuda.synchronize()
    found: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        seconds, owner = event.self_device_time_total if cuda else event.self_cpu_time_total, event
        while owner is not None and owner.name not in names:
            owner = owner.cpu_parent
        if owner is not None and seconds > 0:
            found[owner.name] += seconds / 1e6 / steps
    return dict(found)


def operators(training: LiveTraining, batch: Any) -> JsonDict:
    """Operators of forward and backward of one micro-batch, the costliest first, and how many are launched.

    Without ceilings yet.
    """

    def both() -> None:
        training.backward(training.forward(batch))

    training.optimizer.zero_grad(set_to_none=True)
    forward = sum(count.flops for count in count_operators(lambda: training.forward(batch)).values())
    counts = count_operators(both)
    seconds = profiled_seconds(both, set(counts), training.device.kind == "cuda")
    flops = sum(count.flops for count in counts.values())
    found = [
        Operator(
            name=name,
            seconds=seconds.get(name, 0.0),
            flops=count.flops or None,
            bytes=count.bytes,
            calls=count.calls,
            kind=count.kind,
        )
        for name, count in counts.items()
    ]
    return {
        "operators": tuple(sorted(found, key=lambda operator: -operator.seconds)),
        "launches": sum(count.calls for count in counts.values()),
        "operators_forward_share": forward / flops if flops else None,
    }


def compute(training: LiveTraining, batches: list[Any], time_limit: float) -> JsonDict:
    """Forward, both directions, the optimizer on cached gradients, the whole step on cached batches, and what it adds.

    Args:
        batches: micro-batches of one optimizer step, on the device.
    """
    batch, wait = batches[0], training.device.synchronize
    gradients: list[tuple[Any, torch.Tensor]] = []
    directions = both_directions(training, batch)

    def cached_gradients() -> None:
        if not gradients:
            directions.once()  # cloned: those of a replayed graph lie in its own memory, which it overwrites
            gradients.extend((p, p.grad.clone()) for p in training.model.parameters() if p.grad is not None)
        for parameter, gradient in gradients:  # unscaling changes them in place, until nothing is left of them
            parameter.grad = gradient.clone() if training.scaler is not None else gradient

    stages = {
        "compute": Microbenchmark(lambda: training.whole_step(batches), None, wait),
        "forward": Microbenchmark(lambda: training.forward(batch), None, wait),
        "both": directions,
        "optimizer": Microbenchmark(training.update, cached_gradients, wait),
    }
    # differences alternately: a burst of the machine spoils one turn, not the difference of two medians
    derived = {
        "backward": lambda turn: turn[2] - turn[1],
        "host": lambda turn: turn[0] - training.lengths.accumulation * turn[2] - turn[3],
    }
    reference = reference_of(training)
    timings = interleaved(list(stages.values()), time_limit, derived=tuple(derived.values()), reference=reference)
    found: JsonDict = dict(zip((*stages, *derived), timings, strict=True))
    del found["both"]
    if training.device.kind == "cuda":  # until work is issued to an idle device: Python and launches, without results
        few: JsonDict = {"least": 5, "most": 5}

        def idle() -> None:
            cached_gradients()
            wait()

        found["issue"] = repeat(lambda: training.whole_step(batches), 2.0, before=wait, **few)
        found["issue_update"] = repeat(training.update, 2.0, before=idle, **few)
    return found


def both_directions(training: LiveTraining, batch: Any) -> Microbenchmark:
    """Forward and backward of a micro-batch, from no gradients on."""
    return Microbenchmark(
        lambda: training.backward(training.forward(batch)),
        lambda: training.optimizer.zero_grad(set_to_none=True),
        training.device.synchronize,
    )


def reference_of(training: LiveTraining) -> ReferenceSpeed | None:
    """Reads the machine's speed next to a microbenchmark; None on a device, which has its own."""
    return ReferenceSpeed() if training.device.kind == "cpu" else None


def ratios_by_threads(
    seconds: Callable[[int], float], counts: list[int], time_limit: float, *, fewest: int = 2, most: int = 15
) -> dict[int, list[float]]:
    """Seconds of what takes ``seconds(threads)`` with other numbers of compute threads over those with the present one.

    The present number is measured again next to each other one, so that a burst does not pass for a speedup.

    Args:
        counts: those other numbers.
        fewest, most: pairs for each number of threads, however long they take, and however short.
    """
    present, found = torch.get_num_threads(), {threads: list[float]() for threads in counts}
    for threads, ratios in found.items():
        end = time.perf_counter() + time_limit / len(found)
        while len(ratios) < fewest or (len(ratios) < most and time.perf_counter() < end):
            order = (threads, present) if len(ratios) % 2 else (present, threads)
            each = {count: seconds(count) for count in order}
            ratios.append(each[threads] / each[present])
    return found


def by_threads(training: LiveTraining, batches: list[Any], measured: Timing, time_limit: float) -> JsonDict:
    """``compute_by_threads``: seconds of a whole step on cached batches by number of compute threads; the CPU only.

    Besides the present number one, half of the cores and all of them are tried.
    """
    cores, present, fewest = usable_cores(), torch.get_num_threads(), 2 if measured.seconds < time_limit else 1
    others = sorted({1, max(1, cores // 2), cores} - {present})

    def steps(threads: int) -> float:
        """The median of a few; the first wakes the threads, and counts only where it is a long one."""
        torch.set_num_threads(threads)
        walls: list[float] = []
        start = time.perf_counter()
        while not walls or (len(walls) < 16 and time.perf_counter() - start < 0.03):
            mark = time.perf_counter()
            training.whole_step(batches)
            walls.append(time.perf_counter() - mark)
        return statistics.median(walls[1:] or walls)

    ratios = ratios_by_threads(steps, others, time_limit, fewest=fewest)
    torch.set_num_threads(present)
    found = {threads: measured.seconds * statistics.median(each) for threads, each in ratios.items()}
    return {"compute_by_threads": {present: measured.seconds, **found}}


def copies(training: LiveTraining, batch: Any, time_limit: float) -> JsonDict:
    """A host batch to the device, as the training moves it, and on CUDA the pinning of one."""
    wait, tensors = training.device.synchronize, tensor_leaves(batch)
    found: JsonDict = {"transfer": repeat(lambda: training.to_device(batch), time_limit * 0.6, wait=wait)}
    if training.device.kind == "cuda":
        found["pin"] = repeat(lambda: [tensor.pin_memory() for tensor in tensors], time_limit * 0.4)
    return found


def evaluation(training: LiveTraining, time_limit: float) -> JsonDict:
    """One whole evaluation, scaled from a few of its batches."""
    if training.evaluation is None:
        return {}
    source = training.evaluation.batches
    try:
        total = len(source)
    except TypeError:
        total = sum(1 for _ in itertools.islice(source, 10_000))
    start = time.perf_counter()
    stream = iter(source)
    batches = list(itertools.islice(stream, 1))
    first = time.perf_counter() - start
    batches += itertools.islice(stream, min(3, total) - 1)
    following = (time.perf_counter() - start - first) / max(len(batches) - 1, 1)
    if not batches:
        return {}
    timing = repeat(
        lambda: training.evaluation.on(training.model, batches), time_limit, wait=training.device.synchronize,
        least=2, most=5, reference=reference_of(training),
    )  # fmt: skip
    loading, scale = first + (total - 1) * following, total / len(batches)
    scaled: JsonDict = {"seconds": timing.seconds * scale + loading, "cpu_seconds": None}
    samples = sum(samples_of(batch) or 0 for batch in batches) * scale
    return {"evaluate": timing.model_copy(update=scaled), "evaluation_samples": samples or None}


def checkpoint(training: LiveTraining, time_limit: float) -> JsonDict:
    """A checkpoint of model and optimizer to a file that is on the disk."""
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}

    def to_disk() -> None:
        with tempfile.TemporaryFile() as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    return {"checkpoint": repeat(to_disk, time_limit, least=2, most=5, reference=reference_of(training))}


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that one optimizer step must move: parameters, gradients and states read, parameters and states written."""
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                held = tensor_leaves(optimizer.state.get(parameter, {}))
                states = sum(state.nbytes for state in held if state.numel() == parameter.numel())
                total += 3 * parameter.nbytes + 2 * states
    return total
