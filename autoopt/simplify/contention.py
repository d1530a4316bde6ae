"""Contention for the cores, measured: the workload's own preparation next to its own training step.

First both sides work all the time, which reports two speeds. In a running step the training process also waits, its
compute threads fall asleep or spin next to the workers, and batches are handed over. So a few combinations that
strategies are likely to ask for are run as they would train, and the graph is held to them.

Cache effects: what stages cost in the step's own order, over what they cost in a loop of their own.

A loop of its own finds caches, branch tables and threads as it left them. In a running step whatever is small finds
them as another stage left them, or asleep: batches of a few microseconds a sample take up to twice as long between two
training steps as one after the other, small steps a third longer after a pause, and threads that went to sleep must be
woken. So both are timed in the step's own order next to the same thing repeated at once, and their ratio is kept: the
cold ratio of batches and the wake-up ratio of steps. It is a mean over a median: what happens in one step of ten is
part of a step's mean, and of no microbenchmark's median."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from autoopt.benchmark.environment import usable_cores
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.steady import usual_step
from autoopt.benchmark.switching import unswitchable
from autoopt.benchmark.warmup import for_seconds, ready_batches, run_block
from autoopt.records import Contention, JsonDict
from autoopt.simplify.batches import Fetch, forked, fresh_loader, in_child
from autoopt.simplify.drift import TENSORS, ReferenceSpeed
from autoopt.simplify.microbenchmarks import MOST, ratios_by_threads, summary
from autoopt.simplify.stage_timings import DEFAULT_PREFETCH, SLOWEST, InputTimings, Overlap

FEWEST_TURNS = 20
"""Turns below which a mean says nothing; what is so long that fewer fit the time_limit warms its own caches."""
HIGHEST_RATIO = 10.0
"""A ratio beyond that is a disturbance."""
_ROUNDS = 4
"""Of all combinations: enough for a median."""
_PAIRS = 6
"""Blocks of running steps with each number of threads, at most."""


def cache_effects_of(
    training: LiveTraining, batches: list[Any], inputs: InputTimings, step_seconds: float, time_limit: float
) -> JsonDict:
    """Both ratios of a training that prepares its own batches on the CPU, where enough turns fit.

    Args:
        batches: micro-batches of one step, on the device.

    Returns:
        ``cold_ratio``: CPU seconds of a batch of the loader after a step over those of one after another batch;
        ``wakeup_ratio``: seconds of a step after a pause as long as its input over those of one after another step;
        ``pause_seconds``: that pause. Empty where it is not measured.
    """
    sample, loader = inputs.sample, inputs.loader
    if sample is None or loader is None:
        return {}
    samples = training.loader.loader.batch_size or 1
    wait = min(sample.wait_seconds or 0.0, loader.seconds / samples)
    pause = loader.seconds * training.lengths.accumulation
    found: JsonDict = {}
    if FEWEST_TURNS * (2 * loader.seconds + step_seconds) < time_limit:
        ratio = in_child(lambda: cold_batches(training, batches, time_limit / 2), timeout=10 * time_limit + 20.0)
        found["cold_ratio"] = ratio
    if FEWEST_TURNS * (pause + 2 * step_seconds) < time_limit:
        idle = pause_like(wait, loader.seconds / samples - wait, samples * training.lengths.accumulation)
        ratio = ratio_after(lambda: training.whole_step(batches), idle, time_limit / 2, time.perf_counter)
        found |= {"wakeup_ratio": ratio, "pause_seconds": pause}
    return found


def cold_batches(training: LiveTraining, batches: list[Any], time_limit: float) -> float:
    """Meant for a forked child, which has one compute thread and a training of its own to go on with."""
    source = fresh_loader(training.loader.loader)
    stream = iter(source)

    def batch() -> None:
        nonlocal stream
        if next(stream, None) is None:  # a loader that starts again is part of every epoch
            stream = iter(source)
            next(stream, None)

    return ratio_after(batch, lambda: training.whole_step(batches), time_limit, time.thread_time)


def pause_like(wait: float, work: float, samples: int) -> Callable[[], None]:
    """A pause that waits and then keeps a core at plain work, sample by sample, as preparing a batch does.

    ``wait``, ``work``: seconds of each sample without a core and on one.
    """
    # the kernel's timer is later than a shorter sleep
    waits = wait > 5e-5

    def pause() -> None:
        made: list[int] = []
        end = time.perf_counter()
        for _ in range(samples):
            if waits:
                time.sleep(wait)
                end = time.perf_counter()
            end += work
            while time.perf_counter() < end:
                made.append(len(made))

    return pause


def ratio_after(
    call: Callable[[], Any],
    other: Callable[[], Any],
    time_limit: float,
    clock: Callable[[], float],
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Mean of ``call`` after ``other`` over its median after itself; 1 at least."""
    after: list[float] = []
    again: list[float] = []
    call()
    end = now() + time_limit
    while len(after) < 2 or (len(after) < MOST and now() < end):
        other()
        for seconds in (after, again):
            start = clock()
            call()
            seconds.append(clock() - start)
    usual = statistics.median(again)
    return min(HIGHEST_RATIO, max(1.0, statistics.fmean(after) / usual)) if usual > 0 else 1.0


def measure_contention(
    training: LiveTraining, batches: list[Any], time_limit: float, sample_seconds: float = 0.0
) -> tuple[Contention, ...]:
    """Speeds of workers that prepare samples and of the training step, while they compete, over their speeds alone.

    Args:
        batches: micro-batches of one step, on the device.
        time_limit: seconds for all of it; each window holds a step at least.
        sample_seconds: of one sample; a window is long enough to count several.
    """
    cores, threads = usable_cores(), torch.get_num_threads()
    wanted = combinations(cores, threads) if training.device.kind == "cpu" else [(0, cores)]
    window = max(time_limit / (_ROUNDS * 3 * len(wanted)), 0.05, min(10 * sample_seconds, 0.15))
    work = _preparing(training.loader.loader)
    workers = [ForkedWorker(work) for _ in range(max(count for _, count in wanted))]
    prepared: dict[tuple[int, int], list[float]] = defaultdict(list)
    stepped: dict[tuple[int, int], list[float]] = defaultdict(list)

    def idle() -> None:
        time.sleep(window)

    def steps() -> float:
        """A second."""
        count, start = 0, time.perf_counter()
        while not count or time.perf_counter() - start < window:
            training.whole_step(batches)
            count += 1
        return count / (time.perf_counter() - start)

    def speed(ratios: list[float]) -> float:
        return min(1.0, max(statistics.median(ratios), SLOWEST))

    start = time.perf_counter()
    try:
        rate_during(workers, idle)  # first samples are colder than those that follow
        for number in range(_ROUNDS):
            if number and time.perf_counter() - start > time_limit:
                break
            for count, other in wanted[:: -1 if number % 2 else 1]:
                # the first ones are measured however long a step takes
                if len(prepared) >= 3 and time.perf_counter() - start > 2 * time_limit:
                    break
                # alone and together alternately: a core's speed shifts within tenths of a second, and their ratio not
                alone, _ = rate_during(workers[:1], idle)
                if alone <= 0:
                    continue
                if count:
                    torch.set_num_threads(count)
                    training.whole_step(batches)
                    before = steps()
                    together, slowed = rate_during(workers[:other], steps)
                    stepped[count, other].append(slowed / before)
                else:
                    together, _ = rate_during(workers[:other], idle)
                prepared[count, other].append(together / alone)
    finally:
        torch.set_num_threads(threads)
        for worker in workers:
            worker.process.kill()
            worker.process.join()
    return tuple(
        Contention(
            threads=count,
            workers=other,
            prepare=speed(prepared[count, other]),
            step=speed(stepped[count, other]) if count else None,
        )
        for count, other in wanted
        if prepared[count, other]
    )


def combinations(cores: int, threads: int) -> list[tuple[int, int]]:
    """(compute threads, workers) to measure, what decides most first: cores just filled, more wanted than there are."""
    half = max(1, cores // 2)
    found = [(half, cores - half), (threads, cores), (1, cores), (0, cores), (threads, 1), (1, cores - 1)]
    return list(dict.fromkeys(pair for pair in found if pair[1] > 0))


def _preparing(loader: DataLoader[Any]) -> Callable[[], int]:
    """The work of one worker: samples one by one, and every micro-batch collated."""
    fetch = Fetch(loader)
    pending: list[Any] = []
    made: list[Any] = []
    many = hasattr(fetch.dataset, "__getitems__")

    def work() -> int:
        if many or fetch.iterable:
            samples = fetch.samples(fetch.indices(), fetch.size)
            loader.collate_fn(samples)
            return fetch.size
        if not pending:
            pending.extend(fetch.indices())
        made.append(fetch.dataset[pending.pop()])
        if not pending:
            loader.collate_fn(made)
            made.clear()
        return 1

    return work


class ForkedWorker:
    """A forked process that works while its gate is open."""

    def __init__(self, work: Callable[[], int]) -> None:
        context, parent = multiprocessing.get_context("fork"), os.getpid()
        self.counter: Any = context.Value("Q", 0, lock=False)
        self.gate = context.Event()

        def go_on() -> None:
            while os.getppid() == parent:
                self.gate.wait(1.0)
                while self.gate.is_set():
                    try:
                        self.counter.value += work()
                    except Exception:  # of the user's dataset: it is reported where samples are measured alone
                        return

        self.process = forked(go_on, daemon=True)


def rate_during(workers: list[ForkedWorker], meanwhile: Callable[[], Any]) -> tuple[float, Any]:
    """Work of one worker per second while something else ran, and what that returned; none works before or after."""

    def done() -> int:
        return sum(worker.counter.value for worker in workers)

    for worker in workers:
        worker.gate.set()
    count, start = done(), time.perf_counter()
    found = meanwhile()
    wall = time.perf_counter() - start
    counted = done() - count
    for worker in workers:
        worker.gate.clear()
    return counted / wall / len(workers), found


def measure_overlap(training: LiveTraining, time_limit: float, waits: bool = False) -> tuple[Overlap, ...]:
    """Seconds of a step fed by loader workers, by numbers of workers and compute threads; the CPU only.

    Neither the user's loader nor its samplers are touched: indices come from a forked child, samples from workers.
    Empty for datasets that cannot be asked for samples by index. The training must be restored afterwards.

    Args:
        time_limit: seconds for all of it; a combination that there is no time for is left out.
        waits: samples wait for storage rather than for a core, so that more workers than cores pay.
    """
    loader = training.loader.loader
    fetch = Fetch(loader)
    if training.device.kind != "cpu" or fetch.iterable or loader.batch_sampler is None:
        return ()
    # micro-batches whose indices are drawn beforehand, and read again and again
    indices = in_child(lambda: [fetch.indices() for _ in range(64)])
    threads = torch.get_num_threads()
    wanted = [
        pair for pair in fed_combinations(usable_cores(), threads, waits) if pair != (loader.num_workers, threads)
    ]
    end = time.perf_counter() + time_limit
    found: list[Overlap] = []
    try:
        for number, (workers, count) in enumerate(wanted):
            share = (end - time.perf_counter()) / (len(wanted) - number)
            if share <= 0 and found:
                break
            torch.set_num_threads(count)
            found.append(_tried(training, indices, workers, count, max(share, 0.0)))
    finally:
        torch.set_num_threads(threads)
    return tuple(found)


def steps_by_threads(training: LiveTraining, counts: list[int], seconds: float, cycle: int) -> list[Overlap]:
    """Running steps with other numbers of compute threads, in units of one with the present number; the CPU only.

    Empty where the threads of a running process cannot be switched. These are whole steps of the training itself. A
    step that is replayed leaves out a script's own lines and its calls without gradients, which follow the threads,
    too: threads that wait for work keep the cores busy.

    Args:
        counts: those other numbers.
        seconds: for all of it, about; two pairs are taken in any case.
        cycle: steps after which step times repeat: a block holds whole cycles.

    What comes once in more steps than a block holds, as a script's own evaluation, would decide by which blocks it
    falls into: the middle cycle of each block is taken.
    """
    present, setup, kept_up = torch.get_num_threads(), training.setup, set[int]()
    if training.device.kind != "cpu" or unswitchable(setup, setup.with_flags(threads=present), training.switches):
        return []
    turn, blocks = seconds / max(1, len(counts)) / (2 * _PAIRS), list[Sequence[float]]()

    def step(threads: int) -> float:
        training.do(lambda: torch.set_num_threads(threads))
        ramp = max(cycle, 0 if threads in kept_up else ready_batches(training))
        block = run_block(training, for_seconds(turn, cycle=cycle), ramp_steps=ramp)
        (kept_up.add if block.kept_up else kept_up.discard)(threads)
        blocks.append(block.step_seconds)
        return usual_step(block.step_seconds, cycle)

    try:
        found = ratios_by_threads(step, counts, seconds, most=_PAIRS)
    finally:
        training.do(lambda: torch.set_num_threads(present))
    workers, scatter = training.loader.loader.num_workers, scatter_of_blocks(blocks)

    def tried(threads: int, ratios: list[float]) -> Overlap:
        timing = summary(ratios)
        # two ratios that happen to agree are no small error
        spread = max(timing.spread, scatter * math.sqrt(2 / len(ratios)))
        return Overlap(workers=workers, threads=threads, **{**timing.model_dump(), "spread": spread})

    return [tried(threads, ratios) for threads, ratios in found.items()]


def scatter_of_blocks(blocks: Sequence[Sequence[float]]) -> float:
    """How the logs of blocks of steps scatter, by how steps differ from those before them; 0 of single steps."""
    apart = [abs(math.log(after / before)) for block in blocks for before, after in itertools.pairwise(block)]
    if not apart:
        return 0.0
    of_step = statistics.median(apart) / (math.sqrt(2) * statistics.NormalDist().inv_cdf(0.75))
    return of_step / math.sqrt(statistics.fmean(map(len, blocks)))


def fed_combinations(cores: int, threads: int, waits: bool) -> list[tuple[int, int]]:
    """(workers, compute threads) to try: half of the cores each, then workers on all of them, next to one thread or
    all.

    Where samples wait, twice as many workers as cores, next to one thread or all.
    """
    half = max(1, cores // 2)
    found = [(2 * cores, 1), (2 * cores, threads)] if waits else [(half, max(1, cores - half)), (cores, 1)]
    return list(dict.fromkeys([*found, (cores, threads)]))


def _tried(training: LiveTraining, indices: list[Any], workers: int, threads: int, time_limit: float) -> Overlap:
    """Steps that wait for batches of so many workers; they end with this.

    What a script's own lines make of a batch is held, and trained on in its place.
    """
    loader = training.loader.loader
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores, and a fork next to threads, are what is tried
        source: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=itertools.cycle(indices),
            num_workers=workers,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context="fork",
            prefetch_factor=DEFAULT_PREFETCH,
            generator=torch.Generator(),
        )
        stream = iter(source)
    held = None if training.takes_batches else training.next()

    def steps(count: int) -> None:
        for _ in range(count):
            fed = [next(stream) for _ in range(training.lengths.accumulation)]
            training.whole_step([training.to_device(batch) for batch in fed] if held is None else held)

    steps(DEFAULT_PREFETCH * workers // training.lengths.accumulation + 1)  # batches that were made before any step
    reference = ReferenceSpeed(fresh=0.0)
    first, start = reference.now(), time.perf_counter()
    walls: list[float] = []
    while len(walls) < 4 or (len(walls) < 200 and time.perf_counter() - start < time_limit):
        mark = time.perf_counter()
        steps(workers)  # batches come in bunches, one of each worker
        walls.append((time.perf_counter() - mark) / workers)
        if len(walls) >= 2 and time.perf_counter() - start > 2 * time_limit:
            break
    reading = (first + reference.now()) / 2
    timing = summary(walls, readings=[reading] * len(walls), usual=TENSORS)
    return Overlap(workers=workers, threads=threads, **timing.model_dump())
