"""Processes that serve: started, judged, and asked in blocks that take turns; intervals of quantiles of latency.

A process is the unit: requests of one process share its memory layout and the machine's bursts, so that an interval
from requests alone is too narrow. Each fresh process gives one P95 (a median-unbiased quantile of all its requests,
asked in blocks that take turns with the other variants'); the interval is Student's, over processes, of its logarithm.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scipy.stats import t

from autoopt.latency.options import Serve
from autoopt.latency.serving.load import quantile
from autoopt.latency.serving.variants import Variant
from autoopt.records import Estimate, JsonDict, Plan
from autoopt.records.latency import ColdStart, Judged, Load
from autoopt.search.compare.arm import TrialProcess
from autoopt.search.trial_runner import TrialRunner

TASKS = "autoopt.latency.tasks:"
BLOCK_SECONDS, ROUNDS, LEAST = 0.25, 6, 20
"""Of a block of requests under the clients of the limit; six times twenty requests are enough for a P95."""
LOADED_SECONDS, LOADED_LEAST = 0.25, 16


@dataclass
class Asked:
    """Requests of one process under one number of clients: their latencies in seconds, and the seconds they took."""

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, answer: JsonDict) -> None:
        self.latencies += answer["latencies"]
        self.seconds += answer["seconds"]

    def p95(self) -> float:
        return quantile(self.latencies, 0.95)


class Server:
    """A live process that serves one variant."""

    def __init__(self, process: TrialProcess, variant: Variant, opened: JsonDict) -> None:
        self.process, self.variant, self.opened = process, variant, opened
        self.asked: dict[int, Asked] = {}
        self.peak_memory_bytes: int | None = None

    @property
    def cold_start(self) -> ColdStart:
        return ColdStart(load_seconds=self.opened["load_seconds"], first_seconds=self.opened["first_seconds"])

    def judge(self, seed: int, timeout: float) -> Judged:
        return Judged.model_validate(self.process.call(f"{TASKS}judge", timeout=timeout, seed=seed))

    def block(self, clients: int, seconds: float, least: int) -> None:
        """Requests for some seconds; the process is frozen again afterwards."""
        answer = self.process.call(f"{TASKS}block", timeout=600.0, clients=clients, seconds=seconds, least=least)
        self.process.freeze()
        self.asked.setdefault(clients, Asked()).add(answer)
        self.peak_memory_bytes = answer["peak_memory_bytes"]


class Servers:
    """Starts servers of one workload.

    Args:
        runner: starts processes.
        serve: what was asked for.
        folder: of the artefacts.
        clock: seconds.
    """

    def __init__(self, runner: TrialRunner, serve: Serve, folder: Path, clock: Callable[[], float]) -> None:
        self.runner, self.serve, self.folder, self.clock = runner, serve, folder, clock
        self.prepared: dict[str, float] = {}

    @property
    def shape(self) -> JsonDict:
        """The shape of requests, as arguments of tasks."""
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
        if not variant.artefact:
            return None
        return self.folder / variant.artefact

    def prepare(self, variant: Variant, timeout: float) -> float | None:
        """Makes the artefact: seconds that it took; None where there is none.

        Raises:
            TrialFailed: it cannot be made.
        """
        folder = self.artefact(variant)
        if folder is None:
            return None
        if variant.artefact not in self.prepared:
            with self.runner.trial(Plan(), f"make-{variant.artefact}") as process:
                made = process.call(
                    f"{TASKS}make", timeout=timeout, variant=variant.document(), weights=self.weights_of(variant),
                    folder=str(folder), seed=self.runner.base.seed,
                )  # fmt: skip
            self.prepared[variant.artefact] = made["seconds"]
        return self.prepared[variant.artefact]

    def weights_of(self, variant: Variant) -> str:
        return "" if variant.model else self.serve.weights  # a student has its own

    @contextmanager
    def server(self, variant: Variant, timeout: float) -> Iterator[Server]:
        """A process that has answered its first requests, frozen.

        Raises:
            TrialFailed: it does not answer.
        """
        folder = self.artefact(variant)
        with self.runner.trial(Plan(), "serve-" + variant.name.replace(" ", "-").replace("/", "_")) as process:
            opened = process.call(
                f"{TASKS}start", timeout=timeout, variant=variant.document(), weights=self.weights_of(variant),
                folder=str(folder) if folder else "", **self.shape,
            )  # fmt: skip
            process.freeze()
            yield Server(process, variant, opened)

    def take_turns(self, servers: Sequence[Server], loads: Sequence[int], rng: random.Random, rounds: int) -> None:
        """Blocks of all servers in random order, round after round, under each number of clients."""
        for clients in loads:
            least = LEAST if clients == self.serve.clients else LOADED_LEAST
            for _ in range(rounds):
                for server in rng.sample(list(servers), len(servers)):
                    server.block(clients, BLOCK_SECONDS if clients == self.serve.clients else LOADED_SECONDS, least)

    @contextmanager
    def together(self, variants: Sequence[Variant], timeout: float) -> Iterator[list[Server]]:
        """One fresh process of each variant; all are frozen but the one that answers."""
        with ExitStack() as stack:
            yield [stack.enter_context(self.server(variant, timeout)) for variant in variants]


def pooled(each: Sequence[Asked], clients: int) -> Load | None:
    """Requests of several processes as one load; None where there are none."""
    latencies = [value for asked in each for value in asked.latencies]
    if not latencies:
        return None
    return Load(
        clients=clients,
        requests=len(latencies),
        p50=quantile(latencies, 0.5),
        p95=quantile(latencies, 0.95),
        p99=quantile(latencies, 0.99),
        throughput=len(latencies) / sum(asked.seconds for asked in each),
    )


CONFIDENCE = 0.9
FEWEST = 3
"""Processes below which no interval is given."""


def over_processes(values: Sequence[float]) -> Estimate | None:
    """The geometric mean of a positive quantity over processes, with its interval; None for fewer than three.

    Args:
        values: one of each process, such as its P95 in seconds, or a ratio of two that took turns.
    """
    n = len(values)
    if n < FEWEST:
        return None
    logs = [math.log(value) for value in values]
    mean = sum(logs) / n
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / (n - 1))
    room = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / math.sqrt(n)
    low, value, high = (math.exp(each) for each in (mean - room, mean, mean + room))
    return Estimate(value=value, low=min(low, value), high=max(high, value), confidence=CONFIDENCE, n=n)
