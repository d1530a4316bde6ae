"""The pipeline as a graph: what the step would take if a stage, the workers or the threads were otherwise. Pure.

A small discrete-event simulation: workers fill bounded queues, the training process takes micro-batches
in order, the device runs what was issued. Whatever computes on the CPU shares the cores: when more
threads are ready than there are cores, each gets its share, and threads that wait for each other lose more: the
*interference model* says how fast each goes, from speeds that were measured of this workload.

With messages between processes it forecasts the throughput that other numbers of them would have."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cache, lru_cache

import networkx as nx
import numpy as np

from autoopt.records import Contention, Estimate, EstimateKind, Resource, Round, Simulation, Stage
from autoopt.records.distributed import Communication, ScalingForecast
from autoopt.simplify.stage_timings import DEFAULT_PREFETCH, INPUT, SLOWEST

_SETTLED, _OBSERVED = 24, 48
"""Micro-batches until the queues of the simulation are as they stay, and those whose mean is its step."""
_TINY = 1e-12
"""Seconds that count as none: what ends at once."""
LINK = ("pin", "copy")
COMPUTE = ("forward", "backward", "optimizer")
STEP = (*INPUT, *LINK, *COMPUTE, "communication", "host")
INTERRUPTIONS = ("evaluate", "checkpoint", "epoch")
BETWEEN = (*INTERRUPTIONS, "start")
"""What a run consists of besides steps; of its start no stage of a step can take the place."""
ONE_DRAW = 0.05
"""How far a simulation is off where that was not measured."""
_FURTHEST = 2.0
"""So many times a tried step may be off its simulation; beyond that one of them was disturbed."""


@dataclass(frozen=True)
class Demand:
    """Demand of one micro-batch, in seconds, by whom it is asked of.

    Args:
        wait: of a worker, without a core (storage).
        prepare: of a core, in a worker, or in the training process where there is none; handing over included.
        receive: of the training process's core.
        pin, copy: of the link; ``copy_waits``: the training process waits for the copy.
        compute: of the device, or of ``threads`` cores where the CPU is the device.
        issue: of the training process's core, to issue ``compute``; only where the device is not the CPU.
        host: of the training process's core besides.
        wakeup_ratio: seconds of ``compute`` on the CPU after the training process paused for ``pause`` seconds or
            longer, over those without a pause; in between on a line.
        contention: speeds while workers and step compete for cores, as they were measured of this workload.
    """

    wait: float = 0.0
    prepare: float = 0.0
    receive: float = 0.0
    pin: float = 0.0
    copy: float = 0.0
    copy_waits: bool = True
    compute: float = 0.0
    issue: float | None = None
    host: float = 0.0
    workers: int = 0
    prefetch: int = 2
    cores: int = 1
    threads: int = 1
    wakeup_ratio: float = 1.0
    pause: float = 0.0
    contention: tuple[Contention, ...] = ()


@dataclass(frozen=True)
class InterferenceModel:
    """Speeds as they were measured of a workload; between and beyond that, and without any, cores are shared fairly."""

    cores: int
    seen: tuple[Contention, ...] = ()

    def speeds(self, single: int, threads: int) -> tuple[float, float]:
        """Speeds of each of ``single`` threads that prepare and of a step with ``threads`` compute threads.

        Where so many threads were measured next to other numbers of workers, in between on a line. Else by fair shares,
        times what a measured combination of the same kind (cores enough or not) got beyond or below its fair one.
        """
        fair = min(1.0, self.cores / max(single + threads, 1))
        if not threads:  # workers alone: each the slower the more cores are busy, and sharing them beyond that
            full = next((item.prepare for item in self.seen if not item.threads), 1.0) if self.cores > 1 else 1.0
            busy = max(min(single, self.cores), 1)
            return (1.0 - (1.0 - full) * (busy - 1) / max(self.cores - 1, 1)) * fair, 1.0
        if not single:
            return 1.0, 1.0
        points = sorted((item for item in self.seen if item.threads == threads), key=lambda item: item.workers)
        if points and points[-1].workers >= single:
            workers = [0, *(item.workers for item in points)]
            prepare = [points[0].prepare, *(item.prepare for item in points)]
            step = [1.0, *(item.step or 1.0 for item in points)]  # without any worker the step has its own speed
            return float(np.interp(single, workers, prepare)), float(np.interp(single, workers, step))
        enough = single + threads <= self.cores
        kind = [item for item in self.seen if item.threads and (item.workers + item.threads <= self.cores) is enough]
        alike = points[-1:] or [item for item in kind if (item.threads > 1) == (threads > 1)] or kind
        known = min(alike, key=lambda item: abs(item.threads - threads) + abs(item.workers - single), default=None)
        if known is None:
            return fair, fair
        ratio = fair / min(1.0, self.cores / (known.workers + known.threads))
        return max(SLOWEST, min(1.0, known.prepare * ratio)), max(SLOWEST, min(1.0, (known.step or 1.0) * ratio))


@dataclass
class _Actor:
    """Somebody with phases to go through: (what, seconds) pairs."""

    phases: deque[tuple[str, float]] = field(default_factory=deque)
    kind: str = ""
    left: float = 0.0

    @property
    def idle(self) -> bool:
        return not self.kind

    def load(self, phases: list[tuple[str, float]]) -> None:
        self.phases.extend((kind, seconds) for kind, seconds in phases if seconds > _TINY)
        self.next()

    def next(self) -> None:
        self.kind, self.left = self.phases.popleft() if self.phases else ("", 0.0)


class _Flow:
    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.speeds = cache(InterferenceModel(demand.cores, demand.contention).speeds)
        self.workers = [_Actor() for _ in range(demand.workers)]
        self.made = [0] * demand.workers
        self.taken = 0
        self.main = _Actor()
        self.device = _Actor()
        self.queued = 0
        self.done: list[float] = []
        self.now = 0.0
        self.running = False
        self.stepped_at = 0.0

    def assign(self) -> None:
        demand = self.demand
        for number, worker in enumerate(self.workers):
            consumed = (self.taken - number + demand.workers - 1) // demand.workers
            if worker.idle and self.made[number] - consumed < demand.prefetch:
                worker.load([("wait", demand.wait), ("core", demand.prepare), ("made", 2 * _TINY)])
        if self.main.idle and not self.running:
            self._take()
        if self.device.idle and self.queued:
            self.queued -= 1
            # the device starts with the first thing that is issued, and ends no sooner than the last
            self.device.load([("device", max(demand.compute, demand.issue or 0.0)), ("computed", 2 * _TINY)])

    def _take(self) -> None:
        """The training process starts on its next micro-batch, if there is one and the device is not far behind."""
        demand = self.demand
        if demand.workers and self.made[self.taken % demand.workers] <= self.taken // demand.workers:
            return
        if demand.issue is not None and self.queued >= 2:  # issued and not computed
            return
        self.taken += 1
        self.running = True
        alone = [] if demand.workers else [("wait", demand.wait), ("core", demand.prepare)]
        paused = self.now - self.stepped_at + sum(seconds for _, seconds in alone)
        share = min(1.0, paused / demand.pause) if demand.pause > 0 else 0.0
        woken = 1.0 + (demand.wakeup_ratio - 1.0) * share  # a step takes longer after a pause
        compute = [("threads", demand.compute * woken)] if demand.issue is None else []
        drain = [("drain", 2 * _TINY)] if demand.issue is not None and demand.copy_waits and demand.copy else []
        self.main.load([
            *alone, ("core", demand.receive), *drain, ("link", demand.pin + demand.copy), *compute,
            ("issued", 2 * _TINY),
            ("core", (demand.issue or 0.0) + demand.host), ("stepped", 2 * _TINY),
        ])  # fmt: skip

    def advance(self) -> None:
        """To the next end of a phase. How fast some kinds of phases go depends on who else is at work."""
        demand, actors = self.demand, [*self.workers, self.main, self.device]
        single = sum(worker.kind == "core" for worker in self.workers) + (self.main.kind == "core")
        core, step = self.speeds(single, demand.threads if self.main.kind == "threads" else 0)
        rates = {"core": core, "threads": step, "drain": 1.0 if self.device.idle and not self.queued else 0.0}
        pairs = [(actor, rate) for actor in actors if actor.kind and (rate := rates.get(actor.kind, 1.0)) > 0]
        if not pairs:
            raise RuntimeError("the pipeline stands still")
        passed = min(actor.left / rate for actor, rate in pairs)
        self.now += passed
        for actor, rate in pairs:
            actor.left -= passed * rate
        for number, worker in enumerate(self.workers):
            if worker.kind and worker.left <= _TINY:
                self.made[number] += worker.kind == "made"
                worker.next()
        for actor in (self.main, self.device):
            if not actor.kind or actor.left > _TINY:
                continue
            if actor.kind == "computed" or (actor.kind == "stepped" and demand.issue is None):
                self.done.append(self.now)
            if actor.kind == "stepped":
                self.running, self.stepped_at = False, self.now
            if actor.kind == "issued":
                self.queued += demand.issue is not None
            actor.next()


@lru_cache(maxsize=4096)
def period(demand: Demand) -> float:
    """Seconds between micro-batches in the steady state."""
    flow = _Flow(demand)
    while len(flow.done) < _SETTLED + _OBSERVED:
        flow.assign()
        flow.advance()
    return (flow.done[-1] - flow.done[_SETTLED - 1]) / (len(flow.done) - _SETTLED)


class Pipeline:
    """A round's stages as a graph that can be simulated; implements ``strategy.PipelineView``.

    Args:
        doubtful: the machine was disturbed while they were measured: predictions order candidates, and exclude
            none but what they expect to be slower.
    """

    def __init__(self, round: Round, *, doubtful: bool = False) -> None:
        self.round, self.doubtful = round, doubtful
        self._changed: dict[str, float] = {}
        self._options: dict[str, int] = {}
        self._simulation = round.simulation or Simulation()

    def after(self, seconds: Mapping[str, float] | None = None, **options: int | None) -> Pipeline:
        """The pipeline as it is predicted to be after a replacement, from which further ones start."""
        other = copy(self)
        other._changed = {**self._changed, **(seconds or {})}
        other._options = {**self._options, **{name: value for name, value in options.items() if value is not None}}
        return other

    @property
    def stages(self) -> tuple[Stage, ...]:
        changed = self._changed
        return tuple(
            stage.model_copy(update={"seconds": changed[stage.name]}) if stage.name in changed else stage
            for stage in self.round.stages
        )

    @property
    def step_seconds(self) -> float:
        """The measured step, in seconds; after changes, as they are predicted to make it."""
        if not self._changed and not self._options:
            return self.round.step_seconds
        return self.round.step_seconds * self.simulate() / Pipeline(self.round).simulate()

    def stage(self, name: str) -> Stage | None:
        return next((stage for stage in self.stages if stage.name == name), None)

    def simulate(
        self,
        seconds: Mapping[str, float] | None = None,
        *,
        workers: int | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
    ) -> float:
        """Seconds of a steady step, without what comes between steps.

        Args:
            seconds: new seconds by stage, each with the stage's present parallelism.
            workers: loader workers; 0: the training process prepares its own batches.
            threads: compute threads of the training process; only the CPU's compute depends on them.
            prefetch: micro-batches that each worker prepares ahead.

        Raises:
            ValueError: a stage that the pipeline does not have, or a number below its least.
        """
        changed = {**self._changed, **(seconds or {})}
        asked = {"workers": workers, "threads": threads, "prefetch": prefetch}
        demand = self._demand(changed, **{n: self._options.get(n) if v is None else v for n, v in asked.items()})
        found = period(demand) * self._simulation.accumulation
        return found * self._held_to_life(demand.workers, demand.threads, as_fed=not set(changed) & set(INPUT))

    def _held_to_life(self, workers: int, threads: int, *, as_fed: bool) -> float:
        """The step that was tried with these workers and threads over its simulation, where the present step's own
        error is left out of both; that of the nearest number of workers with as many threads, and 1 where none was.
        Steps without workers say nothing of steps with them, but what other threads alone have brought.

        Args:
            as_fed: batches come as they do now.
        """
        known = self._simulation
        same = [one for one in known.fed if one.threads == threads]
        tried = [one for one in same if as_fed and bool(one.workers) is bool(workers)]
        if not tried and threads != known.threads:
            tried = [one for one in same if one.workers == known.workers]
        step = self.round.step_seconds
        if not tried or (workers, threads) == (known.workers, known.threads) or step <= 0:
            return 1.0
        nearest = min(tried, key=lambda one: abs(one.workers - workers))
        as_seen = {stage.name: stage.seconds for stage in self.round.stages}
        then = period(self._demand(as_seen, nearest.workers, nearest.threads, None)) * known.accumulation
        now = period(self._demand(as_seen, None, None, None)) * known.accumulation
        return min(_FURTHEST, max(1 / _FURTHEST, (nearest.seconds / then) / (step / now)))

    def gain(self, seconds: Mapping[str, float] | None = None, **options: int | None) -> Estimate:
        """The predicted speedup of the same replacement (:meth:`simulate`), against the present simulated alike.

        The interval is as wide as the simulation is off the measured step, and where a step was tried as its repeats
        scatter. It is the speedup of steps, and where only what comes between them is replaced, of both.
        """
        changed = seconds or {}
        now = self.simulate()
        then = self.simulate(seconds, **options)
        if changed and all(name in BETWEEN for name in changed):
            now += self._interruptions({})
            then += self._interruptions(changed)
        value = now / then
        off = abs(self.round.simulation_error) if self.round.simulation_error is not None else ONE_DRAW
        off = max(off, 0.01) * (abs(value - 1.0) / max(value, 1.0)) ** 0.5 if value != 1.0 else 0.0
        kind, known, workers = EstimateKind.SIMULATED, self._simulation, options.get("workers")
        if not (changed or options.get("prefetch") or self._changed or self._options):
            at = (known.workers if workers is None else workers, options.get("threads") or known.threads)
            ran = (one for one in known.fed if (one.workers, one.threads) == at != (known.workers, known.threads))
            tried = next(ran, None)  # the step that ran with these workers and threads
            if tried is not None:
                off, kind = max(tried.spread, 0.01), EstimateKind.TRIED
        return Estimate(value=value, low=value / (1 + off), high=value * (1 + off), n=1, kind=kind)

    def critical_path(self) -> tuple[str, ...]:
        """The heaviest chain of stages that run one after the other in the steady state, in their order.

        Stages of one resource exclude each other; without workers the training process does the input itself,
        and on a CPU it does everything.
        """
        known = self._simulation

        def lane(stage: Stage) -> str:
            if stage.name in INPUT:
                return "workers" if known.workers else "process"
            if known.device == "cpu":
                return "process"
            if stage.resource is Resource.DEVICE:
                return "device"
            return "process" if stage.resource is not Resource.LINK or known.blocking_copy else "link"

        graph: nx.DiGraph[str] = nx.DiGraph()
        latest: dict[str, str] = {}
        for stage in self.stages:
            if stage.name in STEP and stage.seconds > 0:
                graph.add_edge(latest.get(lane(stage), ""), stage.name, seconds=stage.seconds)
                latest[lane(stage)] = stage.name
        return tuple(nx.dag_longest_path(graph, weight="seconds")[1:])

    def saving(self, name: str) -> float:
        """Seconds per step that would be saved if this stage cost nothing; of an interruption, all of it."""
        stage = self.stage(name)
        if stage is None or stage.seconds <= 0:
            return 0.0
        if name in INTERRUPTIONS:
            return stage.seconds
        return max(0.0, self.simulate() - self.simulate({name: 0.0}))

    def _interruptions(self, changed: Mapping[str, float]) -> float:
        return sum(changed.get(stage.name, stage.seconds) for stage in self.stages if stage.name in BETWEEN)

    def _seconds(self, name: str, changed: Mapping[str, float]) -> float:
        """Work of one micro-batch in a stage: seconds of one lane."""
        stage = self.stage(name)
        if stage is None:
            return 0.0
        return changed.get(name, stage.seconds) * stage.parallel / self._simulation.accumulation

    def _demand(
        self, changed: Mapping[str, float], workers: int | None, threads: int | None, prefetch: int | None
    ) -> Demand:
        unknown = sorted(set(changed) - {stage.name for stage in self.stages})
        if unknown:
            raise ValueError(f"no stage {unknown[0]!r}; the stages are {', '.join(s.name for s in self.stages)}")
        if (workers or 0) < 0 or (threads is not None and threads < 1) or (prefetch is not None and prefetch < 1):
            raise ValueError(f"workers >= 0, threads >= 1 and prefetch >= 1, got {workers}, {threads}, {prefetch}")
        known = self._simulation
        workers = known.workers if workers is None else workers
        handing = known.handover_seconds / known.accumulation if workers else 0.0
        on_cpu = known.device == "cpu"
        compute = sum(self._seconds(name, changed) for name in COMPUTE)
        host, sent, messages = self._seconds("host", changed), 0.0, self.stage("communication")
        if messages is not None and messages.exposed_seconds is not None:  # what the backward pass does not hide stays
            hidden = max(0.0, messages.seconds - messages.exposed_seconds)
            longer = max(0.0, messages.exposed_seconds - messages.seconds)
            sent = max(0.0, changed.get("communication", messages.seconds) - hidden) + longer
        prepare = self._seconds("preparation", changed) + self._seconds("collate", changed)
        return Demand(
            wait=self._seconds("storage", changed),
            prepare=prepare + handing if workers else prepare * known.cold_ratio,
            receive=known.receive_seconds / known.accumulation if workers else 0.0,
            pin=self._seconds("pin", changed),
            copy=self._seconds("copy", changed),
            copy_waits=known.blocking_copy,
            compute=compute * (thread_ratio(known, threads) if on_cpu else 1.0) + sent / known.accumulation,
            issue=None if on_cpu else host,  # to a device issuing is all that the stage is
            host=host if on_cpu else 0.0,
            workers=workers,
            prefetch=prefetch or known.prefetch or DEFAULT_PREFETCH,
            cores=known.cores,
            threads=min(threads or known.threads, 4 * known.cores),
            wakeup_ratio=known.wakeup_ratio if on_cpu else 1.0,
            pause=known.pause_seconds / known.accumulation,
            contention=known.contention,
        )


def thread_ratio(known: Simulation, threads: int | None) -> float:
    """Compute seconds with so many threads over the present; between measured numbers, linear in 1 / threads.

    Fewer than were measured share the work alike, and more of them gain nothing.
    """
    if threads is None or threads == known.threads:
        return 1.0
    measured = known.compute_by_threads
    table = measured if measured.get(known.threads) else {known.threads: 1.0}
    counts = sorted(table, reverse=True)
    seconds = np.interp(1 / threads, [1 / count for count in counts], [table[count] for count in counts])
    return float(seconds) * max(counts[-1] / threads, 1.0) / table[known.threads]


SHARED = (*INPUT, *LINK, "forward", "backward")
"""Stages of which each process has its share of the batch."""


def forecasts(round_: Round, sent: Communication, *, own_batch: bool, cores: int | None) -> tuple[ScalingForecast, ...]:
    """Throughput over one process in 2, 4, 8 ... processes, each on a device (or share of a CPU) as those measured.

    Args:
        round_: of a plan in several processes, with its messages as a stage.
        own_batch: each process has a batch of its own (a script's); else all share the one batch.
        cores: of the machine; all processes prepare their samples on them. None: not known.
    """
    if sent.processes < 2 or not any(stage.name == "communication" for stage in round_.stages):
        return ()
    graph = Pipeline(round_)
    stages = {stage.name: stage for stage in graph.stages}
    # of what messages add to the step, the part beyond their own seconds: processes wait for one another
    beyond = max(0.0, sent.exposed - sent.alone.median)
    most_hidden = sent.hidden
    if sent.exposed <= 0.05 * sent.alone.median and "backward" in stages:  # where all were, as many as it takes
        most_hidden = max(sent.hidden, stages["backward"].seconds)

    def share(processes: int) -> float:
        """Samples of a process over those of one that was measured."""
        return 1.0 if own_batch else sent.processes / processes

    def step(processes: int, hidden: float) -> float:
        """Seconds of a step in so many processes, whose samples' preparation has the machine's cores.

        ``hidden``: seconds of messages that the backward pass hid when they were measured.
        """
        seconds = {name: stages[name].seconds * share(processes) for name in SHARED if name in stages}
        seconds["communication"] = sent.hidden + max(0.0, sending(sent, processes) - hidden * share(processes))
        found = graph.simulate(seconds) - (beyond if processes < 2 else 0.0)
        work = sum(stages[name].seconds * stages[name].parallel for name in INPUT[1:] if name in stages)
        return max(found, work * share(processes) * processes / cores) if cores else found

    off = abs(round_.simulation_error) if round_.simulation_error is not None else ONE_DRAW
    alone, told, count = step(1, sent.hidden), list[ScalingForecast](), 2
    # beyond that a machine has another link
    while count <= max(8, 2 * sent.processes):
        seconds, grown = step(count, sent.hidden), count if own_batch else 1
        ratio, most = alone / seconds * grown, alone / step(count, most_hidden) * grown
        told.append(
            ScalingForecast(
                processes=count,
                throughput=_simulated(ratio, most, off, 1),
                efficiency=_simulated(ratio, most, off, count),
                step_seconds=seconds,
            )
        )
        count *= 2
    return tuple(told)


def _simulated(ratio: float, most: float, off: float, over: int) -> Estimate:
    """A simulated ratio and the most it may be, over so many, as uncertain as the graph is off the measured step."""
    width = 1 + max(off, 0.01) * abs(ratio - 1.0) / max(ratio, 1.0)
    low, high = ratio / width / over, most * width / over
    return Estimate(value=ratio / over, low=low, high=high, n=1, kind=EstimateKind.SIMULATED)


def sending(sent: Communication, processes: int) -> float:
    """Seconds of a step's messages between so many processes, by those of the processes that were measured."""
    if processes < 2:
        return 0.0
    hops = (processes - 1) / (sent.processes - 1)
    moved = (1 - 1 / processes) / (1 - 1 / sent.processes)
    latency = min([sent.alone.median, *sent.by_size.values()])
    return latency * hops + (sent.alone.median - latency) * moved
