"""Servers of a workload as arms of an arena, and quantiles of their latency with intervals.

A process is the unit: requests of one process share its memory layout and the machine's bursts, so that an interval
from requests alone is too narrow. Each fresh process gives one P95 (a median-unbiased quantile of all its requests)
with the error that the scatter between its blocks leaves; the interval is that of both levels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from autoopt.latency.options import Serve
from autoopt.latency.quality import CONFIDENCE
from autoopt.latency.serving.requests import quantile
from autoopt.latency.serving.variants import Variant
from autoopt.records import Change, Estimate, JsonDict, Plan
from autoopt.records.latency import ColdStart, Judged, Load
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.arm import TrialArm
from autoopt.search.compare.comparison import most
from autoopt.search.compare.sequential_test import as_estimate
from autoopt.search.compare.statistics import MIN_BLOCKS, BetweenProcess, Level, TwoLevel
from autoopt.search.trial_runner import TrialRunner

TASKS = "autoopt.latency.tasks:"
FEWEST = 3
"""Processes below which no interval is given: two may be alike by chance, and a limit is promised to others."""


def plan_of(variant: Variant) -> Plan:
    """A variant as the account names it."""
    return Plan(changes=(Change(strategy=variant.name),)) if variant != Variant() else Plan()


class ServingArm(TrialArm):
    """An arm that answers requests: a step is a request.

    Args:
        timeout: seconds until it answers, and those until it is judged.

    Attributes:
        blocks: so far, by the number of clients.
    """

    def __init__(self, process: Any, servers: Servers, variant: Variant, timeout: float) -> None:
        super().__init__(process, plan_of(variant), ready_seconds=timeout)
        self.servers, self.variant = servers, variant
        self.opened: JsonDict = {}
        self.blocks: dict[int, list[Block]] = {}
        self.began, self.start_seconds = servers.clock(), 0.0

    def ready(self) -> Any:
        folder = self.servers.artefact(self.variant)
        self.opened = self._process.call(
            f"{TASKS}start", timeout=self._ready_seconds, variant=self.variant.document(),
            weights=self.servers.weights_of(self.variant), folder=str(folder) if folder else "", **self.servers.shape,
        )  # fmt: skip
        self.start_seconds = self.servers.clock() - self.began

    def warm_up(self, max_seconds: float) -> Startup:
        """The quality of a variant is judged in its first process."""
        if self.plan.key not in self.servers.judged:
            seed = self.servers.runner.base.seed
            judged = self._process.call(f"{TASKS}judge", timeout=self._ready_seconds, seed=seed)
            self.servers.judged[self.plan.key] = Judged.model_validate(judged)
        start = self.cold_start
        seconds, steps = self.opened["warm_up_seconds"], self.opened["warm_up_requests"]
        self._step_seconds = seconds / max(steps, 1)
        return Startup(
            build_seconds=start.load_seconds, setup_seconds=start.first_seconds, warmup_seconds=seconds,
            warmup_steps=steps, fixed_seconds=start.load_seconds + start.first_seconds,
        )  # fmt: skip

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        """A block under the clients of the limit, which is the arena's, and one under the other number."""
        for clients in reversed(self.servers.serve.loads):
            block = self._block(f"{TASKS}block", seconds, min_steps, ramp_seconds, cycle, clients=clients)
            self.blocks.setdefault(clients, []).append(block)
        return block

    @property
    def cold_start(self) -> ColdStart:
        return ColdStart(load_seconds=self.opened["load_seconds"], first_seconds=self.opened["first_seconds"])

    @property
    def peak_memory_bytes(self) -> int | None:
        return most(block.peak_host_memory_bytes for block in chain.from_iterable(self.blocks.values()))

    @property
    def complete(self) -> bool:
        return len(self.blocks.get(self.servers.serve.clients, ())) >= MIN_BLOCKS

    @property
    def tail(self) -> Level:
        """Log of the P95 under the clients of the limit, in seconds."""
        return tail([block.step_seconds for block in self.blocks[self.servers.serve.clients]])


class Servers:
    """Starts servers of one workload. ``judged``: the quality of each variant, by its plan's key."""

    def __init__(self, runner: TrialRunner, serve: Serve, folder: Path, clock: Callable[[], float]) -> None:
        self.runner, self.serve, self.folder, self.clock = runner, serve, folder, clock
        self.judged: dict[str, Judged] = {}
        self._prepared: dict[str, float] = {}

    @property
    def shape(self) -> JsonDict:
        return {"sizes": list(self.serve.sizes), "lengths": list(self.serve.lengths)}

    def describe(self) -> JsonDict:
        with self.runner.trial(Plan(), "describe") as process:
            answer = process.call(
                f"{TASKS}describe", timeout=300.0, weights=self.serve.weights, students=list(self.serve.students),
                **self.shape,
            )  # fmt: skip
            answer["environment"] = process.call("autoopt.benchmark.tasks:environment", timeout=120.0)
        return answer

    def artefact(self, variant: Variant) -> Path | None:
        """The folder of a variant's artefact, made once; None where it has none."""
        return self.folder / variant.artefact if variant.artefact else None

    def prepare(self, variant: Variant, timeout: float) -> float | None:
        """Makes the artefact: seconds that it took; None where there is none.

        Raises:
            TrialFailed: it cannot be made.
        """
        if variant.artefact and variant.artefact not in self._prepared:
            with self.runner.trial(Plan(), f"make-{variant.artefact}") as process:
                made = process.call(
                    f"{TASKS}make", timeout=timeout, variant=variant.document(), weights=self.weights_of(variant),
                    folder=str(self.artefact(variant)),
                )  # fmt: skip
            self._prepared[variant.artefact] = made["seconds"]
        return self._prepared.get(variant.artefact)

    def weights_of(self, variant: Variant) -> str:
        return "" if variant.model else self.serve.weights  # a student has its own

    def start(self, variant: Variant, timeout: float) -> ServingArm:
        """A process that is to serve a variant.

        Raises:
            TrialFailed: it cannot be started.
        """
        began = self.clock()
        process = self.runner.launch(Plan(), "serve-" + variant.name.replace(" ", "-").replace("/", "_"))
        arm = ServingArm(process, self, variant, timeout)
        arm.began, arm.process = began, Path(self.runner.latest_log or variant.name).stem
        return arm


def pooled(arms: Sequence[ServingArm], clients: int) -> Load | None:
    """Requests of several processes as one load; None where there are none."""
    blocks = [block for arm in arms for block in arm.blocks.get(clients, ())]
    latencies = [value for block in blocks for value in block.step_seconds]
    if not latencies:
        return None
    return Load(
        clients=clients,
        requests=len(latencies),
        p50=quantile(latencies, 0.5),
        p95=quantile(latencies, 0.95),
        p99=quantile(latencies, 0.99),
        throughput=len(latencies) / sum(block.seconds for block in blocks),
    )


def tail(blocks: Sequence[Sequence[float]]) -> Level:
    """Log of the P95 of one process, over the latencies of all its blocks."""
    each = [math.log(quantile(list(block), 0.95)) for block in blocks]
    n, sd = len(each), statistics.stdev(each) if len(each) > 1 else 0.0
    return Level(math.log(quantile(list(chain.from_iterable(blocks)), 0.95)), sd / math.sqrt(n), n, sd)


def against(one: Level, other: Level) -> Level:
    """Log of the ratio of two processes' P95 that were measured alternately."""
    return Level(one.value - other.value, math.hypot(one.error, other.error), one.n, math.hypot(one.sd, other.sd))


def over_processes(processes: Sequence[Level]) -> Estimate | None:
    """A P95 in seconds, or a ratio of two, over processes, with its interval; None for fewer than three of them."""
    if len(processes) < FEWEST:
        return None
    level = TwoLevel([each.value for each in processes], [each.error for each in processes], BetweenProcess())
    return as_estimate(level, level.interval(CONFIDENCE), CONFIDENCE)
