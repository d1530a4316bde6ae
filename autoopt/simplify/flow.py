"""A training step as a flow of work through workers, the training process and the device.

A small discrete-event simulation: workers fill bounded queues, the training process takes micro-batches
in order, the device runs what was issued. Whatever computes on the CPU shares the cores: when more
threads are ready than there are cores, each gets its share, and threads that wait for each other lose more: the
*interference model* says how fast each goes, from speeds that were measured of this workload. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from autoopt.records import Contention

_SETTLED, _OBSERVED = 24, 48
_TINY = 1e-12
_AHEAD = 2
_SLOWEST = 0.02
"""Least speed over the speed alone, however many compete."""


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
    """Speeds as they were measured of a workload; between and beyond that, and without any, cores are shared fairly.

    Args:
        cores: of the machine.
        seen: speeds over speeds alone.
    """

    cores: int
    seen: tuple[Contention, ...] = ()

    def speeds(self, single: int, threads: int) -> tuple[float, float]:
        """Speeds of each of ``single`` threads that prepare and of a step with ``threads`` compute threads.

        Where so many threads were measured beside other numbers of workers, in between on a line. Else by fair shares,
        times what a measured combination of the same kind (cores enough or not) got beyond or below its fair one.
        """
        if not threads:
            return self._crowd(single), 1.0
        if not single:
            return 1.0, 1.0
        points = sorted((item for item in self.seen if item.threads == threads), key=lambda item: item.workers)
        inside = [item for item in points if item.workers >= single]
        if points and inside:
            return self._between(points, single)
        known = points[-1] if points else self._nearest(single, threads)
        if known is None:
            fair = self._fair(single + threads)
            return fair, fair
        ratio = self._fair(single + threads) / self._fair(known.workers + known.threads)
        return max(_SLOWEST, min(1.0, known.prepare * ratio)), max(_SLOWEST, min(1.0, (known.step or 1.0) * ratio))

    def _crowd(self, single: int) -> float:
        """Workers alone: each the slower the more cores are busy, and sharing them where there are more."""
        if single <= 1:
            return 1.0
        full = next((item.prepare for item in self.seen if not item.threads), 1.0)
        if self.cores <= 1:
            return self._fair(single)
        busy = min(single, self.cores)
        return (1.0 - (1.0 - full) * (busy - 1) / (self.cores - 1)) * self._fair(single)

    def _between(self, points: list[Contention], single: int) -> tuple[float, float]:
        below = max((item for item in points if item.workers <= single), key=lambda item: item.workers, default=None)
        above = min((item for item in points if item.workers >= single), key=lambda item: item.workers)
        if below is None:  # without any worker the step has its own speed
            share = single / above.workers
            return above.prepare, 1.0 + share * ((above.step or 1.0) - 1.0)
        if below is above:
            return above.prepare, above.step or 1.0
        share = (single - below.workers) / (above.workers - below.workers)
        prepare = below.prepare + share * (above.prepare - below.prepare)
        step = (below.step or 1.0) + share * ((above.step or 1.0) - (below.step or 1.0))
        return prepare, step

    def _nearest(self, single: int, threads: int) -> Contention | None:
        """A measured combination in which the cores suffice, or do not, as in this one."""
        enough = single + threads <= self.cores
        known = [item for item in self.seen if item.threads and (item.workers + item.threads <= self.cores) is enough]
        alike = [item for item in known if (item.threads > 1) == (threads > 1)] or known
        return min(alike, key=lambda item: abs(item.threads - threads) + abs(item.workers - single), default=None)

    def _fair(self, busy: int) -> float:
        return min(1.0, self.cores / busy)


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
        self.interference = InterferenceModel(demand.cores, demand.contention)
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

    def period(self) -> float:
        """Seconds between micro-batches once the flow is steady."""
        while len(self.done) < _SETTLED + _OBSERVED:
            self._assign()
            self._advance()
        return (self.done[-1] - self.done[_SETTLED - 1]) / (len(self.done) - _SETTLED)

    def _assign(self) -> None:
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
        if demand.issue is not None and self.queued >= _AHEAD:
            return
        self.taken += 1
        self.running = True
        alone = [] if demand.workers else [("wait", demand.wait), ("core", demand.prepare)]
        paused = self.now - self.stepped_at + sum(seconds for _, seconds in alone)
        compute = [("threads", demand.compute * self._woken(paused))] if demand.issue is None else []
        drain = [("drain", 2 * _TINY)] if demand.issue is not None and demand.copy_waits and demand.copy else []
        self.main.load([
            *alone, ("core", demand.receive), *drain, ("link", demand.pin + demand.copy), *compute,
            ("issued", 2 * _TINY),
            ("core", (demand.issue or 0.0) + demand.host), ("stepped", 2 * _TINY),
        ])  # fmt: skip

    def _woken(self, paused: float) -> float:
        """How much longer a step takes after a pause of so many seconds."""
        demand = self.demand
        share = min(1.0, paused / demand.pause) if demand.pause > 0 else 0.0
        return 1.0 + (demand.wakeup_ratio - 1.0) * share

    def _advance(self) -> None:
        actors = [*self.workers, self.main, self.device]
        rates = self._rates()
        pairs = [(actor, rates[actor.kind]) for actor in actors if actor.kind and rates[actor.kind] > 0]
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
            if actor.kind and actor.left <= _TINY:
                self._finish(actor)

    def _finish(self, actor: _Actor) -> None:
        if actor.kind == "computed" or (actor.kind == "stepped" and self.demand.issue is None):
            self.done.append(self.now)
        if actor.kind == "stepped":
            self.running = False
            self.stepped_at = self.now
        if actor.kind == "issued":
            self.queued += self.demand.issue is not None
        actor.next()

    def _rates(self) -> dict[str, float]:
        """How fast each kind of phase goes now."""
        demand = self.demand
        single = sum(worker.kind == "core" for worker in self.workers) + (self.main.kind == "core")
        threads = demand.threads if self.main.kind == "threads" else 0
        idle_device = self.device.idle and not self.queued
        rates = {"wait": 1.0, "link": 1.0, "device": 1.0, "made": 1.0, "stepped": 1.0, "issued": 1.0, "computed": 1.0,
                 "drain": 1.0 if idle_device else 0.0}  # fmt: skip
        core, step = self.interference.speeds(single, threads)
        return {**rates, "core": core, "threads": step}


def period(demand: Demand) -> float:
    """Seconds between micro-batches in the steady state."""
    return _Flow(demand).period()
