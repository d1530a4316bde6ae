"""``autoopt latency``: screens each variant, confirms the best in fresh processes, exports the winner."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import autoopt
from autoopt.errors import TrialFailed, WorkloadError
from autoopt.latency.choice import Model, candidates, chosen, combinations, marked, within
from autoopt.latency.export import accept, export
from autoopt.latency.measuring import (
    BLOCK_SECONDS,
    FEWEST,
    LEAST,
    ROUNDS,
    Asked,
    Server,
    Servers,
    over_processes,
    pooled,
)
from autoopt.latency.options import Serve
from autoopt.latency.quality import drop
from autoopt.latency.serving.variants import Variant
from autoopt.options import Options
from autoopt.records import Environment, JsonDict
from autoopt.records.latency import Judged, Latency, Served
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.running.document import now
from autoopt.script.command import Build
from autoopt.search.trial_runner import TrialRunner
from autoopt.storage.run_directory import RunDirectory
from autoopt.trial.parent import Launcher

Say = Callable[[str], None]
BASELINE = Variant()
SCREENING, MOST_SETS, FINALISTS, LOOK_ROUNDS = 0.45, 6, 3, 2
LEAST_LOOK, LONGEST_START = 10.0, 120.0
"""Seconds that a variant may take until it answers."""
SLOWER = 1.5
"""A variant that took so many times as long as the baseline at its look is combined with nothing."""


@dataclass
class Looked:
    """A variant's screening: what its document will say, and what decides whether it is verified.

    ``start_seconds``: until its process answered.
    """

    variant: Variant
    served: Served
    judged: Judged | None = None
    sets: dict[int, list[Asked]] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)
    start_seconds: float = 0.0

    @property
    def open(self) -> bool:
        return self.served.status == "screened" and self.served.keeps != "no"

    @property
    def tail(self) -> float:
        return self.served.screened_p95 or float("inf")


def serve_within(
    spec: str,
    serve: Serve,
    options: Options,
    *,
    say: Say = lambda text: None,
) -> tuple[Latency, RunDirectory]:
    """Measures ways of serving a trained model and exports the one that is taken.

    Args:
        spec: import string of the workload.
        serve: limit, quality, requests.
        options: budget, device, seed, price, output directory.
        say: progress, a line at a time.

    Raises:
        WorkloadError: it cannot be built, or not be served as it is.
        UsageError: the output directory cannot be.
    """
    directory = RunDirectory.create(f"{spec.partition(':')[0]}-latency", options.out)
    registry = registry_of(options)
    with Launcher(compiler_cache=directory.compiler_cache) as launcher:
        runner = TrialRunner(launcher, baseline_spec(Build(spec), options, registry), registry, directory.logs)
        servers = Servers(runner, serve, directory.path / "artefacts", time.monotonic)
        search = Search(servers, serve, options, say, time.monotonic)
        found = search.run(spec)
        found = _exported(found, search, directory, say)
    directory.write(directory.path / "latency.json", found.model_dump_json(indent=2))
    return found, directory


def _exported(found: Latency, search: Search, directory: RunDirectory, say: Say) -> Latency:
    best = next((looked for looked in search.looks if looked.served.name == found.chosen), None)
    if best is None or best.judged is None:
        return found
    say(f"exporting {best.served.name} with its acceptance test")
    folder = directory.path / "serving"
    try:
        export(search.servers, best.variant, found, search.looks[0].judged, folder)
    except TrialFailed as failure:
        return found.model_copy(update={"warnings": (*found.warnings, f"it could not be exported: {failure.reason}")})
    tested = accept(folder)
    warnings = found.warnings
    if tested.exit_code != 0:
        warnings = (*warnings, "the acceptance test of the exported model does not pass in a process of its own")
    return found.model_copy(update={"exported": str(folder), "acceptance": tested, "warnings": warnings})


class Search:
    """Screens variants one after the other, and verifies the best in fresh processes.

    Attributes:
        looks: every variant so far, the baseline first.
    """

    def __init__(self, servers: Servers, serve: Serve, options: Options, say: Say, clock: Callable[[], float]) -> None:
        self.servers, self.serve, self.options, self.say, self.clock = servers, serve, options, say, clock
        self.began = clock()
        self.looks: list[Looked] = []
        self.rng = random.Random(options.seed)
        self.described: JsonDict = {}
        self.control: list[float] = []
        self.start_seconds = 0.0

    def run(self, spec: str) -> Latency:
        """The document, without what is exported.

        Raises:
            WorkloadError: the model cannot be served as it is.
        """
        self.say("building the model and its requests")
        try:
            self.described = self.servers.describe()
        except TrialFailed as failure:
            raise WorkloadError(f"it cannot be served: {failure.reason}", detail=failure.detail) from None
        self._screen()
        self._prove()
        return self._document(spec)

    @property
    def left(self) -> float:
        return self.began + self.options.budget_seconds - self.clock()

    def _screen(self) -> None:
        facts = self.described
        model = Model(
            device=facts["device"].partition(":")[0], linear=facts["linear"], convolutions=facts["convolutions"],
            threads=facts["threads"], clients=self.serve.clients, students=self.serve.students,
        )  # fmt: skip
        try:
            began = self.clock()
            with self.servers.server(BASELINE, LONGEST_START) as baseline:
                self.start_seconds = self.clock() - began
                self.baseline(baseline)
                for variant, why in candidates(model):
                    self._consider(variant, why, baseline)
                self._combine(baseline)
        except TrialFailed as failure:
            raise WorkloadError(
                f"the model as it is does not answer: {failure.reason}", detail=failure.detail
            ) from None

    def baseline(self, server: Server) -> None:
        """Judges the model as it is, which the others are held against."""
        self.say("measuring the model without changes")
        judged = server.judge(self.options.seed, 600.0)
        self.looks.append(self._looked(server, judged, None))

    def _combine(self, baseline: Server) -> None:
        """The best with each other that goes with it, and the best of that again, while there is time."""
        for _ in range(2):
            ranked = sorted((look for look in self.looks[1:] if look.open), key=lambda look: look.tail)
            ranked = [look for look in ranked if look.tail < SLOWER * self.looks[0].tail]
            if not ranked:
                return
            known = {look.variant for look in self.looks}
            fresh = [v for v in combinations(ranked[0].variant, [look.variant for look in ranked]) if v not in known]
            if not fresh:
                return
            for variant in fresh[:4]:
                self._consider(variant, "", baseline)

    def _consider(self, variant: Variant, why: str, baseline: Server) -> None:
        if why:
            self._note(variant, "not_applicable", why)
            return
        spent = self.options.budget_seconds - self.left
        spare = self.left - self.reserve  # a measurement whose winner nobody verifies is of no use
        if spent > SCREENING * self.options.budget_seconds or (spare < LEAST_LOOK and len(self.looks) > 1):
            self._note(variant, "not_tried", "the time for screening is up; a larger --budget tries it")
            return
        self.say(f"screening {variant.name}")
        timeout = max(LEAST_LOOK, min(LONGEST_START, self.left / 3, spare))
        try:
            prepared = self.servers.prepare(variant, timeout)
            began = self.clock()
            with self.servers.server(variant, timeout) as server:
                started = self.clock() - began
                judged = server.judge(self.options.seed, timeout)
                self.servers.take_turns([baseline, server], self.serve.loads, self.rng, LOOK_ROUNDS)
                self.looks.append(replace(self._looked(server, judged, prepared), start_seconds=started))
        except TrialFailed as failure:
            self._note(variant, "failed", failure.reason)
        finally:
            baseline.asked.clear()

    def _note(self, variant: Variant, status: str, reason: str) -> None:
        served = Served.model_validate(
            {"name": variant.name, "variant": variant.document(), "status": status, "reason": " ".join(reason.split())}
        )
        self.looks.append(Looked(variant, served))

    def _looked(self, server: Server, judged: Judged, prepared: float | None) -> Looked:
        if not server.asked:
            self.servers.take_turns([server], self.serve.loads, self.rng, LOOK_ROUNDS)
        first = self.looks[0].judged if self.looks else judged
        lost = drop(first, judged, self.described["mode"]) if first is not None else None
        served = Served(
            name=server.variant.name,
            variant=server.variant.document(),
            status="screened",
            reason=judged.note,
            screened_p95=server.asked[self.serve.clients].p95(),
            loads=_loads(self.serve.loads, {clients: [asked] for clients, asked in server.asked.items()}),
            metric=judged.metric,
            drop=lost,
            cold_start=server.cold_start.model_copy(update={"prepare_seconds": prepared}),
            model_bytes=server.opened["model_bytes"],
            peak_memory_bytes=server.peak_memory_bytes,
            keeps="yes" if not self.looks else within(lost, self.serve.max_drop),
        )
        server.asked = {}
        return Looked(server.variant, served, judged)

    def finalists(self) -> list[Looked]:
        """Looks that get fresh processes: those that hold the limit at the lowest cost, and the lowest P95."""
        limit = self.serve.limit_seconds
        ranked = sorted((look for look in self.looks[1:] if look.open), key=lambda look: look.tail)
        if limit is None:
            return ranked[:FINALISTS]
        fitting = [look for look in ranked if look.tail <= limit]
        cheapest = sorted(fitting, key=lambda look: -max((load.throughput for load in look.served.loads), default=0.0))
        wanted = [*(look for look in cheapest if look.served.keeps == "yes"), *ranked[:1], *cheapest, *ranked]
        return list({look.served.name: look for look in wanted}.values())[:FINALISTS]

    def set_seconds(self, finalists: Sequence[Looked]) -> float:
        """Seconds of a set of fresh processes, about: the model as it is twice, and each finalist."""
        tail = self.looks[0].tail
        least = max(BLOCK_SECONDS, LEAST * tail)
        blocks = len(self.serve.loads) * ROUNDS * least
        starts = [0.0, 0.0, *(look.start_seconds for look in finalists)]
        return sum(max(start, self.start_seconds) + blocks for start in starts)

    @property
    def reserve(self) -> float:
        """Seconds that the fewest sets of the best look take, about: looks do not spend them."""
        return FEWEST * self.set_seconds(self.finalists()[:1] or self.looks[:1])

    def _prove(self) -> None:
        """Sets of fresh processes, one of each finalist and two of the model as it is, as many as the time allows.

        Fewer finalists where the sets that an interval needs would not fit otherwise.
        """
        finalists = self.finalists()
        while len(finalists) > 1 and FEWEST * self.set_seconds(finalists) > self.left:
            dropped = finalists.pop()
            told = "not confirmed: the time went to better candidates; a larger --budget confirms it"
            dropped.served = dropped.served.model_copy(update={"reason": told})
        final = [self.looks[0], *finalists]
        sets, slowest = 0, 0.0
        while sets < MOST_SETS and self.left > slowest * 1.1:
            began = self.clock()
            self.say(f"confirming {len(final)} variants in fresh processes, set {sets + 1}")
            try:
                with self.servers.together([BASELINE, *(look.variant for look in final)], LONGEST_START) as servers:
                    self.servers.take_turns(servers, self.serve.loads, self.rng, ROUNDS)
                    self._add(final, servers)
            except TrialFailed as failure:
                self.say(f"a set of processes failed: {failure.reason}")
                if not sets:
                    self._blame(final, failure)
                    return
            sets, slowest = sets + 1, max(slowest, self.clock() - began)

    def _blame(self, final: list[Looked], failure: TrialFailed) -> None:
        for look in final[1:]:
            look.served = look.served.model_copy(update={"reason": f"not confirmed: {failure.reason}"})

    def _add(self, final: list[Looked], servers: list[Server]) -> None:
        clients = self.serve.clients
        twin, baseline = (server.asked[clients].p95() for server in servers[:2])
        self.control.append(baseline / twin)
        for look, server in zip(final, servers[1:], strict=True):
            for count, asked in server.asked.items():
                look.sets.setdefault(count, []).append(asked)
            look.ratios.append(baseline / server.asked[clients].p95())
            peak = max(filter(None, (look.served.peak_memory_bytes, server.peak_memory_bytes)), default=None)
            look.served = look.served.model_copy(update={"peak_memory_bytes": peak})

    def _document(self, spec: str) -> Latency:
        facts, serve = self.described, self.serve
        first = self.looks[0].judged
        assert first is not None
        environment = Environment.model_validate(facts["environment"])
        document = Latency(
            autoopt_version=autoopt.__version__,
            created=now(),
            seconds=self.clock() - self.began,
            budget_seconds=self.options.budget_seconds,
            workload=spec,
            weights=serve.weights or "as build() gives them",
            seed=self.options.seed,
            environment=environment,
            limit_seconds=serve.limit_seconds,
            max_drop=serve.max_drop,
            clients=serve.clients,
            batch=_shares(serve.sizes),
            lengths=_shares(length for length in serve.lengths if length is not None),
            requests=facts["requests"],
            metric=facts["metric"],
            mode=facts["mode"],
            validation_samples=first.samples,
            price_per_hour=self.options.price,
            variants=marked([self._proved(look) for look in self.looks]),
            control=over_processes(self.control),
            warnings=tuple(self._warnings()),
        )
        return chosen(document)

    def _proved(self, look: Looked) -> Served:
        """The screening's document with what its fresh processes gave."""
        clients, sets = self.serve.clients, look.sets
        if not sets:
            return look.served
        p95 = over_processes([asked.p95() for asked in sets[clients]])
        loads = _loads(self.serve.loads, sets)
        rate = max(load.throughput for load in loads)
        price, cost = self.options.price, 1000.0 / rate
        few = f"{len(sets[clients])} fresh processes, {FEWEST} are needed: a larger --budget" if p95 is None else ""
        return look.served.model_copy(
            update={
                "status": "measured" if p95 is not None else "screened",
                "reason": "; ".join(text for text in (look.served.reason, few) if text),
                "p95": p95,
                "ratio": over_processes(look.ratios),
                "loads": loads,
                "cost_seconds": cost,
                "cost": price * cost / 3600 if price is not None else None,
                "fits": within(p95, self.serve.limit_seconds),
            }
        )

    def _warnings(self) -> Iterable[str]:
        if not self.serve.weights:
            yield "the weights are those that build() gives: a checkpoint of a trained model is given with --checkpoint"
        control = over_processes(self.control)
        if control is not None and not control.low <= 1.0 <= control.high:
            yield (
                f"the model as it is, twice, differs from itself ({control.low:.3f} to {control.high:.3f}): "
                "the machine is not quiet enough for these figures"
            )


def _loads(counts: Iterable[int], asked: dict[int, list[Asked]]) -> tuple:  # type: ignore[type-arg]
    found = (pooled(asked.get(clients, []), clients) for clients in counts)
    return tuple(load for load in found if load is not None)


def _shares(values: Iterable[int]) -> JsonDict:
    listed = list(values)
    return {str(value): listed.count(value) / len(listed) for value in dict.fromkeys(listed)}
