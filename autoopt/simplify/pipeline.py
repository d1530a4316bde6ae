"""The pipeline as a graph: what the step would take if a stage, the workers or the threads were otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import networkx as nx

from autoopt.records import Estimate, EstimateKind, Resource, Round, Simulation, Stage
from autoopt.simplify.flow import Demand, period

INPUT = ("storage", "preparation", "collate")
LINK = ("pin", "copy")
COMPUTE = ("forward", "backward", "optimizer")
STEP = (*INPUT, *LINK, *COMPUTE, "communication", "host")
INTERRUPTIONS = ("evaluate", "checkpoint", "epoch")
BETWEEN = (*INTERRUPTIONS, "start")
"""What a run consists of besides steps; of its start no stage of a step can take the place."""
DEFAULT_PREFETCH = 2
ONE_DRAW = 0.05
_FURTHEST = 2.0
"""So many times a tried step may be off its simulation; beyond that one of them was disturbed."""

_period = lru_cache(maxsize=4096)(period)


class Pipeline:
    """A round's stages as a ``networkx.DiGraph`` that can be simulated; implements ``strategy.PipelineView``.

    A node is a stage with its ``resource``, ``seconds`` and ``ceiling``; an edge means "must precede".
    """

    def __init__(self, round: Round) -> None:
        self._round = round
        self._simulation = round.simulation or Simulation()
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        for stage in round.stages:
            self.graph.add_node(
                stage.name, resource=stage.resource, seconds=stage.seconds, ceiling=stage.ceiling_seconds
            )
        self.graph.add_edges_from(round.edges)

    @property
    def round(self) -> Round:
        return self._round

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._round.stages

    @property
    def step_seconds(self) -> float:
        """The measured step, in seconds."""
        return self._round.step_seconds

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
        changed = seconds or {}
        demand = self._demand(changed, workers, threads, prefetch)
        found = _period(demand) * self._simulation.accumulation
        return found if set(changed) & set(INPUT) else found * self._held_to_life(demand.workers, demand.threads)

    def _held_to_life(self, workers: int, threads: int) -> float:
        """The step that was tried with these workers and threads over its simulation, where the present step's own
        error is left out of both; that of the nearest number of workers with as many threads, and 1 where none was.
        """
        known = self._simulation
        tried = [one for one in known.fed if one.threads == threads and workers]
        if not tried or (workers, threads) == (known.workers, known.threads) or self.step_seconds <= 0:
            return 1.0
        nearest = min(tried, key=lambda one: abs(one.workers - workers))
        then = _period(self._demand({}, nearest.workers, nearest.threads, None)) * known.accumulation
        now = _period(self._demand({}, None, None, None)) * known.accumulation
        return min(_FURTHEST, max(1 / _FURTHEST, (nearest.seconds / then) / (self.step_seconds / now)))

    def gain(
        self,
        seconds: Mapping[str, float] | None = None,
        *,
        workers: int | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
    ) -> Estimate:
        """The predicted speedup of the same replacement, against the present simulated alike.

        The interval is as wide as the simulation is off the measured step; what comes between steps counts
        where one part of it is replaced.
        """
        changed = seconds or {}
        now = self.simulate()
        then = self.simulate(seconds, workers=workers, threads=threads, prefetch=prefetch)
        if any(name in BETWEEN for name in changed):
            now += self._interruptions({})
            then += self._interruptions(changed)
        value = now / then
        off = abs(self._round.simulation_error) if self._round.simulation_error is not None else ONE_DRAW
        off = max(off, 0.01) * (abs(value - 1.0) / max(value, 1.0)) ** 0.5 if value != 1.0 else 0.0
        return Estimate(value=value, low=value / (1 + off), high=value * (1 + off), n=1, kind=EstimateKind.SIMULATED)

    def critical_path(self) -> tuple[str, ...]:
        """The stages of the resource that decides the step, in their order."""
        return critical_path(self)

    def saving(self, name: str) -> float:
        """Seconds per step that would be saved if this stage cost nothing; of an interruption, all of it."""
        stage = self.stage(name)
        if stage is None or stage.seconds <= 0:
            return 0.0
        if name in INTERRUPTIONS:
            return stage.seconds
        return max(0.0, self.simulate() - self.simulate({name: 0.0}))

    def _interruptions(self, changed: Mapping[str, float]) -> float:
        return sum(changed.get(name, stage.seconds) for name in BETWEEN if (stage := self.stage(name)) is not None)

    def _seconds(self, name: str, changed: Mapping[str, float]) -> float:
        """Work of one micro-batch in a stage: seconds of one lane."""
        stage = self.stage(name)
        if stage is None:
            return 0.0
        return changed.get(name, stage.seconds) * stage.parallel / self._simulation.accumulation

    def _exposed_messages(self, changed: Mapping[str, float]) -> float:
        """Of messages between processes, a micro-batch's share of what the backward pass does not hide: that stays."""
        stage = self.stage("communication")
        if stage is None or stage.exposed_seconds is None:
            return 0.0
        hidden = max(0.0, stage.seconds - stage.exposed_seconds)
        longer = max(0.0, stage.exposed_seconds - stage.seconds)
        seconds = max(0.0, changed.get("communication", stage.seconds) - hidden) + longer
        return seconds / self._simulation.accumulation

    def _issue(self, changed: Mapping[str, float]) -> float:
        """Seconds in which the training process issues a micro-batch to a device: there its ``host`` stage is that."""
        if self.stage("host") is None:
            return (self._simulation.host_seconds or 0.0) / self._simulation.accumulation
        return self._seconds("host", changed)

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
        sent = self._exposed_messages(changed)
        prepare = self._seconds("preparation", changed) + self._seconds("collate", changed)
        return Demand(
            wait=self._seconds("storage", changed),
            prepare=prepare + handing if workers else prepare * known.in_turn,
            receive=known.receive_seconds / known.accumulation if workers else 0.0,
            pin=self._seconds("pin", changed),
            copy=self._seconds("copy", changed),
            copy_waits=known.blocking_copy,
            compute=compute * (thread_ratio(known, threads) if on_cpu else 1.0) + sent,
            issue=None if on_cpu else self._issue(changed),
            host=self._seconds("host", changed) if on_cpu else 0.0,
            workers=workers,
            prefetch=prefetch or known.prefetch or DEFAULT_PREFETCH,
            cores=known.cores,
            threads=min(threads or known.threads, 4 * known.cores),
            wakeup_ratio=known.rested if on_cpu else 1.0,
            pause=known.rest_seconds / known.accumulation,
            contention=known.beside,
        )


def thread_ratio(known: Simulation, threads: int | None) -> float:
    """Compute seconds with so many threads over the present; between measured numbers, linear in 1 / threads."""
    table = known.compute_by_threads
    now = table.get(known.threads)
    if threads is None or threads == known.threads or not now or len(table) < 2:
        return 1.0
    if threads in table:
        return table[threads] / now
    below = max((n for n in table if n < threads), default=None)
    above = min((n for n in table if n > threads), default=None)
    if below is None or above is None:
        return table[below or above or known.threads] / now
    share = (1 / below - 1 / threads) / (1 / below - 1 / above)
    return (table[below] + share * (table[above] - table[below])) / now


def critical_path(pipeline: Pipeline) -> tuple[str, ...]:
    """The heaviest chain of stages that run one after the other in the steady state.

    Stages of one resource exclude each other; without workers the training process does the input itself,
    and on a CPU it does everything.
    """
    lanes: dict[str, list[Stage]] = {}
    for stage in pipeline.stages:
        if stage.name in STEP and stage.seconds > 0:
            lanes.setdefault(_lane(stage, pipeline.round.simulation or Simulation()), []).append(stage)
    if not lanes:
        return ()
    heaviest = max(lanes.values(), key=lambda stages: sum(stage.seconds for stage in stages))
    return tuple(stage.name for stage in heaviest)


def _lane(stage: Stage, known: Simulation) -> str:
    if stage.name in INPUT:
        return "workers" if known.workers else "process"
    if known.device == "cpu":
        return "process"
    if stage.resource is Resource.DEVICE:
        return "device"
    return "process" if stage.resource is not Resource.LINK or known.blocking_copy else "link"
