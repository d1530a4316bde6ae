"""``autoopt latency``: screens each variant, confirms the best in fresh processes, exports the winner.

Variants are compared with the model as it is by the arena that compares plans of a training: a request is a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

import autoopt
from autoopt.errors import TrialFailed, WorkloadError
from autoopt.latency.choice import candidates, chosen, marked, merged, within
from autoopt.latency.export import accept, export
from autoopt.latency.measuring import FEWEST, Servers, ServingArm, against, over_processes, plan_of, pooled
from autoopt.latency.options import Serve
from autoopt.latency.quality import drop
from autoopt.latency.serving.variants import Variant
from autoopt.options import Options
from autoopt.records import Environment, JsonDict, Plan
from autoopt.records.latency import Latency, Load, Served
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.script.command import Build
from autoopt.search.compare.arena import LiveArm, Source
from autoopt.search.compare.comparison import Comparison, Rule, most
from autoopt.search.compare.contest import Contest
from autoopt.search.compare.statistics import MIN_BLOCKS
from autoopt.search.trial_runner import TrialRunner
from autoopt.storage.journal import Entry, now, table
from autoopt.storage.run_directory import RunDirectory
from autoopt.trial.parent import Launcher

Say = Callable[[str], None]
BASELINE = Variant()

SCREENED = Rule(max_pairs=1, block_seconds=0.1, min_steps=7, until_error=0.0)
"""Six blocks of at least seven requests of each: enough to rank by P95."""
CONFIRMED = Rule(min_pairs=FEWEST, min_steps=20, until_error=0.0)
"""Six blocks of at least twenty requests in each process: six of them lie above the P95. As many processes as the time
allows."""
SCREENING, FINALISTS = 0.45, 3
"""Share of the budget in which is screened: the larger part confirms; and how many it confirms at the most."""
LEAST_SCREENING, LONGEST_START = 10.0, 120.0
"""Seconds that a variant gets, at least and at most, until it answers: a compilation takes one or two minutes."""


@dataclass
class Screened:
    """A variant so far. ``start_seconds``: until its process answered."""

    variant: Variant
    served: Served
    start_seconds: float = 0.0

    @property
    def open(self) -> bool:
        return self.served.status == "screened" and self.served.keeps != "no"

    @property
    def tail(self) -> float:
        return self.served.screened_p95 or inf

    def note(self, reason: str) -> None:
        words = (self.served.reason, " ".join(reason.split()))
        self.served = self.served.model_copy(update={"reason": "; ".join(filter(None, words))})


def serve_within(
    spec: str,
    serve: Serve,
    options: Options,
    *,
    say: Say = lambda text: None,
) -> tuple[Latency, RunDirectory]:
    """Measures ways of serving a trained model and exports the one that is taken.

    Raises:
        WorkloadError: it cannot be built, or not be served as it is.
        UsageError: the output directory cannot be.
    """
    directory = RunDirectory.create(f"{spec.partition(':')[0]}-latency", options.out)
    registry = registry_of(options)
    with Launcher(compiler_cache=directory.compiler_cache) as launcher:
        runner = TrialRunner(launcher, baseline_spec(Build(spec), options, registry), registry, directory.logs)
        servers = Servers(runner, serve, directory.path / "artefacts", time.monotonic)
        search = Search(servers, options, say)
        found = search.run(spec)
        directory.write(directory.account, table(search.account))
        best = next((one for one in search.screenings if one.served.name == found.chosen), None)
        if best is not None:
            say(f"exporting {best.served.name} with its acceptance test")
            folder, warnings = directory.path / "serving", [*found.warnings]
            try:
                export(servers, best.variant, found, servers.judged[Plan().key], folder)
            except TrialFailed as failure:
                warnings.append(f"it could not be exported: {failure.reason}")
            else:
                tested = accept(folder)
                if tested.exit_code != 0:
                    warnings.append("the acceptance test of the exported model does not pass in a process of its own")
                found = found.model_copy(update={"exported": str(folder), "acceptance": tested})
            found = found.model_copy(update={"warnings": tuple(warnings)})
    directory.write(directory.path / "latency.json", found.model_dump_json(indent=2))
    return found, directory


class Search:
    """Screens variants one after the other, and confirms the best in fresh processes.

    Attributes:
        screenings: every variant so far, the model as it is first.
        account: rows of all blocks, with what they were measured for.
    """

    def __init__(self, servers: Servers, options: Options, say: Say) -> None:
        self.servers, self.serve, self.options, self.say = servers, servers.serve, options, say
        self.clock = servers.clock
        self.began = self.clock()
        self.screenings: list[Screened] = []
        self.account: list[Entry] = []
        self._described: JsonDict = {}
        self._rng = np.random.default_rng(options.seed)
        self._live: LiveArm | None = None
        self._sets: list[dict[tuple[str, str], ServingArm]] = []
        self._comparisons = 0

    def run(self, spec: str) -> Latency:
        """The document, without what is exported.

        Raises:
            WorkloadError: the model cannot be served as it is.
        """
        self.say("building the model and its requests")
        try:
            self._described = self.servers.describe()
        except TrialFailed as failure:
            raise WorkloadError(f"it cannot be served: {failure.reason}", detail=failure.detail) from None
        try:
            self.say("measuring the model without changes")
            self._screen(BASELINE, max(self.left, LONGEST_START))
            if self.screenings[0].served.status == "failed":
                raise WorkloadError(f"the model as it is does not answer: {self.screenings[0].served.reason}")
            for variant, why in candidates(self._described, self.serve):
                self._consider(variant, why)
            for _ in range(2):  # the best with each other that goes with it, and the best of that again
                ranked = sorted((one for one in self.screenings[1:] if one.open), key=lambda one: one.tail)
                ranked = [one for one in ranked if one.tail < self.screenings[0].tail]
                known = {one.variant for one in self.screenings}
                together = dict.fromkeys(filter(None, (merged(ranked[0].variant, one.variant) for one in ranked)))
                for variant in [each for each in together if each not in known][:4]:
                    self._consider(variant, "")
        finally:
            if self._live is not None:
                self._live.close()
            self._live = None
        self._confirm()
        return self._document(spec)

    @property
    def left(self) -> float:
        return self.began + self.options.budget_seconds - self.clock()

    def _contest(
        self, variants: Sequence[Variant], evidence: str, rule: Rule, seconds: float, start_seconds: float
    ) -> list[Comparison | None]:
        """The model as it is against some variants; a screening takes it over alive from the one before it."""
        plans = {plan_of(variant).key: variant for variant in (BASELINE, *variants)}
        screening = rule.max_pairs == 1

        def start(plan: Plan, label: str) -> ServingArm:
            arm = self.servers.start(plans[plan.key], start_seconds)
            self._sets[-1][label, plan.key] = arm
            return arm

        def generation(waiting: int) -> None:
            self._sets.append({})
            if not screening:
                self.say(f"confirming {waiting} variants in fresh processes, set {len(self._sets)}")

        contest = Contest(
            Source(start, self._live), Plan(), [plan_of(variant) for variant in variants], "incumbent",
            rule.model_copy(update={"max_seconds": seconds}), clock=self.clock, deadline=self.clock() + seconds,
            rng=self._rng, most_rounds=MIN_BLOCKS if screening else None, on_generation=generation, keep_live=screening,
        )  # fmt: skip
        self._sets = []
        self._live = None  # the contest's from now on
        found = contest.run()
        self._live = contest.live
        for comparison in filter(None, found):
            self._comparisons += 1
            self.account += [Entry(evidence, self._comparisons, row) for row in comparison.rows]
        return found

    def _consider(self, variant: Variant, why: str) -> None:
        """Screens a variant where it is applicable and there is time; a measurement that none confirms is of no use."""
        spent, spare = self.options.budget_seconds - self.left, self.left - self.reserve
        if why:
            self._note(variant, "not_applicable", why)
        elif spent > SCREENING * self.options.budget_seconds or (spare < LEAST_SCREENING and len(self.screenings) > 1):
            self._note(variant, "not_tried", "the time for screening is up; a larger --budget tries it")
        else:
            self.say(f"screening {variant.name}")
            self._screen(variant, max(LEAST_SCREENING, min(LONGEST_START, self.left / 3, spare)))

    def _note(self, variant: Variant, status: str, reason: str) -> None:
        served = {"name": variant.name, "variant": variant.document(), "status": status}
        self.screenings.append(Screened(variant, Served.model_validate({**served, "reason": " ".join(reason.split())})))

    def _screen(self, variant: Variant, seconds: float) -> None:
        try:
            prepared = self.servers.prepare(variant, seconds)
        except TrialFailed as failure:
            return self._note(variant, "failed", failure.reason)
        (found,) = self._contest([variant], f"screening {variant.name}", SCREENED, seconds, seconds)
        assert found is not None, "one comparison is always answered"
        if found.failure is not None and found.failure.side == "incumbent":
            reason, detail = found.failure.reason, found.failure.detail
            raise WorkloadError(f"the model as it is does not answer: {reason}", detail=detail)
        # the process of the model as it is lives on; its own screening is that against itself
        arm = self._sets[-1].get(("candidate", plan_of(variant).key))
        if found.failure is not None or arm is None or not arm.blocks:
            reason = found.failure.reason if found.failure else "timeout: it was not measured in its time"
            return self._note(variant, "failed", reason)
        judged = self.servers.judged[plan_of(variant).key]
        lost = drop(self.servers.judged[Plan().key], judged, self._described["mode"])
        served = Served(
            name=variant.name,
            variant=variant.document(),
            status="screened",
            reason=judged.note,
            screened_p95=float(np.exp(arm.tail.value)),
            loads=self._loads([arm]),
            metric=judged.metric,
            drop=lost,
            cold_start=arm.cold_start.model_copy(update={"prepare_seconds": prepared}),
            model_bytes=arm.opened["model_bytes"],
            peak_memory_bytes=arm.peak_memory_bytes,
            keeps="yes" if variant == BASELINE else within(lost, self.serve.max_drop),
        )
        self.screenings.append(Screened(variant, served, arm.start_seconds))
        return None

    def _loads(self, arms: Sequence[ServingArm]) -> tuple[Load, ...]:
        return tuple(filter(None, (pooled(arms, clients) for clients in self.serve.loads)))

    def finalists(self) -> list[Screened]:
        """Variants that get fresh processes: those that hold the limit at the lowest cost, and the lowest P95."""
        limit = self.serve.limit_seconds
        ranked = sorted((one for one in self.screenings[1:] if one.open), key=lambda one: one.tail)
        if limit is None:
            return ranked[:FINALISTS]
        fitting = [one for one in ranked if one.tail <= limit]
        cheapest = sorted(fitting, key=lambda one: -max((load.throughput for load in one.served.loads), default=0.0))
        wanted = [*(one for one in cheapest if one.served.keeps == "yes"), *ranked[:1], *cheapest, *ranked]
        return list({one.served.name: one for one in wanted}.values())[:FINALISTS]

    @property
    def _rule(self) -> Rule:
        """Of what is confirmed: a block has room for its requests."""
        longest = max(CONFIRMED.block_seconds, CONFIRMED.min_steps * self.screenings[0].tail)
        return CONFIRMED.model_copy(update={"block_seconds": longest})

    def set_seconds(self, finalists: Sequence[Screened]) -> float:
        """Seconds of a set of fresh processes, about: the model as it is twice, and each finalist."""
        blocks = MIN_BLOCKS * len(self.serve.loads) * (self._rule.block_seconds + self._rule.ramp_seconds)
        starts = [0.0, 0.0, *(one.start_seconds for one in finalists)]
        return sum(max(start, self.screenings[0].start_seconds) + blocks for start in starts)

    @property
    def reserve(self) -> float:
        """Seconds that the fewest sets of the best variant take, about: screening does not spend them."""
        return FEWEST * self.set_seconds(self.finalists()[:1] or self.screenings[:1])

    def _confirm(self) -> None:
        """Sets of fresh processes, one of each finalist and two of the model as it is, as many as the time allows.

        Fewer finalists where the sets that an interval needs would not fit otherwise.
        """
        finalists = self.finalists()
        while len(finalists) > 1 and FEWEST * self.set_seconds(finalists) > self.left:
            finalists.pop().note("not confirmed: the time went to better candidates; a larger --budget confirms it")
        together = [self.screenings[0], *finalists]
        found = self._contest(
            [one.variant for one in together], "confirmation", self._rule, self.left, LONGEST_START
        )  # fmt: skip
        sets = self._sets
        for place, one in enumerate(together):
            failed = found[place]
            if failed is None:  # they do not fit into memory together: each alone
                (failed,) = self._contest(
                    [one.variant], "confirmation", self._rule, self.left / (len(together) - place), LONGEST_START
                )  # fmt: skip
                sets += self._sets
            if failed is not None and failed.failure is not None:
                one.note(f"not confirmed: {failed.failure.reason}")
        self._sets = sets

    def _pairs(self, variant: Variant) -> list[tuple[ServingArm, ServingArm]]:
        """Processes that were measured alternately: of the model as it is, and of a variant."""
        keys = ("incumbent", Plan().key), ("candidate", plan_of(variant).key)
        both = [(each.get(keys[0]), each.get(keys[1])) for each in self._sets]
        return [(one, other) for one, other in both if one and other and one.complete and other.complete]

    def _document(self, spec: str) -> Latency:
        facts, serve = self._described, self.serve
        control = over_processes([against(one.tail, twin.tail) for one, twin in self._pairs(BASELINE)])
        warnings = []
        if not serve.weights:
            warnings.append(
                "the weights are those that build() gives: a checkpoint of a trained model is given with --checkpoint"
            )
        if control is not None and not control.low <= 1.0 <= control.high:
            warnings.append(
                f"the model as it is, twice, differs from itself ({control.low:.3f} to {control.high:.3f}): "
                "the machine is not quiet enough for these figures"
            )
        document = Latency(
            autoopt_version=autoopt.__version__,
            created=now(),
            seconds=self.clock() - self.began,
            budget_seconds=self.options.budget_seconds,
            workload=spec,
            weights=serve.weights or "as build() gives them",
            seed=self.options.seed,
            environment=Environment.model_validate(facts["environment"]),
            limit_seconds=serve.limit_seconds,
            max_drop=serve.max_drop,
            clients=serve.clients,
            batch=_shares(serve.sizes),
            lengths=_shares(length for length in serve.lengths if length is not None),
            requests=facts["requests"],
            metric=facts["metric"],
            mode=facts["mode"],
            validation_samples=self.servers.judged[Plan().key].samples,
            price_per_hour=self.options.price,
            variants=marked([self._confirmed(one) for one in self.screenings]),
            control=control,
            warnings=tuple(warnings),
        )
        return chosen(document)

    def _confirmed(self, one: Screened) -> Served:
        """The screening's document with what its fresh processes gave."""
        pairs = self._pairs(one.variant)
        if not pairs:
            return one.served
        arms = [first if one.variant == BASELINE else second for first, second in pairs]
        p95 = over_processes([arm.tail for arm in arms])
        if p95 is None:
            one.note(f"{len(arms)} fresh processes, {FEWEST} are needed: a larger --budget")
        loads = self._loads(arms)
        price, cost = self.options.price, 1000.0 / max(load.throughput for load in loads)
        return one.served.model_copy(
            update={
                "status": "measured" if p95 is not None else "screened",
                "p95": p95,
                "ratio": over_processes([against(one.tail, arm.tail) for one, arm in pairs]),
                "loads": loads,
                "peak_memory_bytes": most([one.served.peak_memory_bytes, *(arm.peak_memory_bytes for arm in arms)]),
                "cost_seconds": cost,
                "cost": price * cost / 3600 if price is not None else None,
                "fits": within(p95, self.serve.limit_seconds),
            }
        )


def _shares(values: Iterable[int]) -> JsonDict:
    listed = list(values)
    return {str(value): listed.count(value) / len(listed) for value in dict.fromkeys(listed)}
