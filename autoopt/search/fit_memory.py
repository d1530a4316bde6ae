"""A workload that does not fit: the least costly plan under which it trains with the same batch, its reference.

Strategies say which of their settings take less memory and what they cost (``Strategy.memory_savings``). One
strategy is tried before two, the cheap before the dear; those that save little (``Strategy.memory_saved``) only after
all sets of those that may save what is missing: each trial costs a start. Each set is tried with all it can save
first, since where that does not fit nothing of the set does. Once one fits, cheaper ones that were left out are tried
in the time there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations, islice

from autoopt.errors import Interrupted, TrialFailed, WorkloadError
from autoopt.events import TrialEnded, TrialStarted
from autoopt.records import Change, Plan, Record, Trial, Verdict
from autoopt.records.messages import Block
from autoopt.search.accept.evidence import near_limit
from autoopt.search.compare.comparison import most
from autoopt.search.planner import PLUGIN_ERRORS, candidate_plan, plugin_error, unwanted
from autoopt.search.run_context import RunContext
from autoopt.search.state import changes_text
from autoopt.search.trial_runner import BaselineFailed, TrialRunner
from autoopt.strategy import Strategy

FIT_SHARE = 0.25
"""Share of the budget after which no more sets of strategies are tried to make it fit."""
LITTLE = 0.1
"""Of the memory there is: a strategy that saves less at the very most hardly ever saves enough."""
LAST_RESORT = 1.0
"""Cost of training in another precision, to which the workload as it is cannot be compared."""
RELAXED_SHARE = 0.4
"""Share after which the plan that fits is taken as it is."""

PROBE_STEPS = 3
MOST_DRAWN = 64
"""Batches that are read for the largest, where shapes vary."""

ATTEMPT_SECONDS = 900.0
MOST_STEPS = 16
"""Settings of one strategy that are screened."""


class Attempt(Record):
    """A plan that trained: what it took at its largest batch, in bytes."""

    peak_memory_bytes: int | None = None
    allocated_memory_bytes: int | None = None
    limit_bytes: int | None = None
    allocation_retries: int = 0

    @property
    def near_limit(self) -> str:
        """Why the plan only just fits; empty where there is room."""
        return near_limit(
            self.peak_memory_bytes, self.limit_bytes, self.allocation_retries, self.allocated_memory_bytes
        )


def attempt(runner: TrialRunner, plan: Plan, *, draws: int) -> Attempt:
    """Trains a few steps under a plan, and some more on the largest batch of so many that are drawn.

    Raises:
        TrialFailed: it does not train.
    """
    tasks = "autoopt.benchmark.tasks"
    with runner.trial(plan, "fit") as process:
        process.call(f"{tasks}:ready", timeout=ATTEMPT_SECONDS)
        block = Block.model_validate(process.call(f"{tasks}:probe_losses", timeout=ATTEMPT_SECONDS, steps=PROBE_STEPS))
        worst = process.call(f"{tasks}:largest_batch", timeout=ATTEMPT_SECONDS, batches=draws)
    return Attempt(
        peak_memory_bytes=most([block.peak_memory_bytes, worst.get("peak_memory_bytes")]),
        allocated_memory_bytes=most([block.allocated_memory_bytes, worst.get("allocated_memory_bytes")]),
        limit_bytes=worst.get("limit_bytes"),
        allocation_retries=block.allocation_retries + worst.get("allocation_retries", 0),
    )


class Fitting:
    """Finds the reference of a workload that does not fit; finds the next where that one fails later after all.

    The state gets the reference as its baseline, and a trial for each plan that did not fit.
    """

    def __init__(self, context: RunContext) -> None:
        self.context, self.state = context, context.state
        self._outcomes: dict[str, tuple[Plan, str]] = {}  # why each does not fit; empty where it does
        self._tight: dict[str, str] = {}
        self._left_out: dict[str, str] = {}
        self._deadline = context.now() + FIT_SHARE * context.allocation.budget
        self._relaxed_by = context.now() + RELAXED_SHARE * context.allocation.budget

    def next(self, failure: BaselineFailed) -> str:
        """Makes the next plan that fits the baseline of the search, in place of one that ended so; returns the report's
        sentence.

        Raises:
            WorkloadError: it failed otherwise than for memory, or nothing fits.
        """
        plan = self.state.baseline
        if not plan.changes and failure.failure.kind != "out_of_memory":
            raise failure
        self._outcomes[plan.key] = plan, failure.failure.reason
        self._tight.pop(plan.key, None)
        found = self._find() or next((self._outcomes[key][0] for key in self._tight), None)
        if found is None and self.context.stopping():
            raise Interrupted("stopped before a plan was found under which the workload fits in memory")
        if found is None:
            lines = [
                f"{changes_text(each.changes) or 'as it is'}: {reason}" for each, reason in self._outcomes.values()
            ]
            lines += [f"{name}: not tried: {reason}" for name, reason in self._left_out.items()]
            more = "; a larger --budget leaves time to try more" if self.context.now() > self._deadline else ""
            hint = f"take a smaller batch or model, or a device with more memory{more}"
            what = "the baseline failed: it does not fit in memory, and nothing that was tried makes it fit"
            raise WorkloadError(what, hint=hint, detail="\n".join(lines)) from failure
        self.state.baseline = self.state.incumbent = found
        tight = f" (only just: {self._tight[found.key]})" if found.key in self._tight else ""
        return (
            f"the workload as it is does not fit in memory ({self._outcomes[Plan().key][1]}); the reference, here "
            f"called the baseline, is the same batch with {changes_text(found.changes)}{tight}: every speedup is over "
            "that, none over a training that cannot run"
        )

    def _find(self) -> Plan | None:
        """The least costly plan that fits with room to spare."""
        costs: dict[str, float] = {}
        for strategy in self.context.registry.values():
            reason = unwanted(strategy, self.context.choice)
            if reason and type(strategy).memory_savings is not Strategy.memory_savings:
                self._left_out[strategy.name] = reason
            elif not reason and (rungs := self._ladder(strategy.name, Plan())):
                costs[strategy.name] = rungs[0][0]

        def fit(*names: str, **levels: int) -> bool:
            plan = self._plan(names, levels)
            return plan is not None and self._fits(plan)

        names = next((each for each in self._groups(costs) if fit(*each)), None)
        if names is None:
            return None
        most = sum(costs[name] for name in names)
        cheaper = sorted((name for name in costs if costs[name] < most), key=lambda name: costs[name])
        found = next(filter(fit, cheaper), None)
        names = (found,) if found else names
        # each saves no more than it must next to the others: a reference that saves more is a slow one
        self._deadline = max(self._deadline, self._relaxed_by)
        levels: dict[str, int] = {}
        for name in reversed(names):
            low, high = 0, max(len(self._ladder(name, Plan())) - 1, 0)  # the last one fits
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if fit(*names, **{**levels, name: middle}) else (middle + 1, high)
            levels[name] = high
        return self._plan(names, levels)

    def _groups(self, costs: dict[str, float]) -> Iterator[tuple[str, ...]]:
        """Sets of strategies: few that save little before many, the last resort last, few before many, then by cost."""
        registry, limit = self.context.registry, self.state.environment.device_memory_bytes
        little = set[str]()
        for name in costs:
            with suppress(*PLUGIN_ERRORS):
                most = registry[name].memory_saved(self.state.case(registry, Plan(), fits=False))
                if most is not None and limit is not None and most < LITTLE * limit:
                    little.add(name)
        resorts = {name for name in costs if costs[name] >= LAST_RESORT}

        def order(names: tuple[str, ...]) -> tuple[float, ...]:
            chosen = set(names)
            return len(little & chosen), len(resorts & chosen), len(names), sum(costs[name] for name in names)

        every = (names for size in range(1, len(costs) + 1) for names in combinations(costs, size))
        yield from sorted(every, key=order)

    def _ladder(self, name: str, plan: Plan) -> list[tuple[float, Change]]:
        """The strategy's settings over a plan that take less memory, least first, each with its cost."""
        registry = self.context.registry
        strategy = registry[name]
        try:
            case = self.state.case(registry, plan, fits=False)
            savings = islice(strategy.memory_savings(case), MOST_STEPS)
            rungs = [(float(cost), Change(strategy=name, setting=dict(setting))) for cost, setting in savings]
            saves = rungs or type(strategy).memory_savings is not Strategy.memory_savings
            applies = strategy.applies(case) if saves else None
        except PLUGIN_ERRORS as error:  # a plugin's crash is a result, not the end
            self._left_out[name] = plugin_error(error)
            return []
        if applies is not None and not applies and not plan.changes:  # next to others it was tried alone
            self._left_out.setdefault(name, applies.reason)
        return rungs if applies else []

    def _plan(self, names: Sequence[str], levels: dict[str, int]) -> Plan | None:
        """The plan of these strategies, each at its level (else the last); None where they exclude one another."""
        plan = Plan()
        try:
            for name in names:
                ladder = self._ladder(name, plan)
                if not ladder:
                    return None
                change = ladder[min(levels.get(name, len(ladder)), len(ladder) - 1)][1]
                plan = candidate_plan(self.context.registry, plan, (change,))
            facts, batch = self.state.facts, self.context.registry.fold(plan).batch
            same = batch.size is None
            if facts.batch_size is not None:
                count = batch.accumulation or facts.accumulation
                same = (batch.size or facts.batch_size) * count == facts.batch_size * facts.accumulation
            return plan if same and self.context.runner.in_source(plan) else None
        except PLUGIN_ERRORS:  # it says so where it is asked alone
            return None

    def _fits(self, plan: Plan) -> bool:
        """Whether it trains with room to spare. When the time is up, single strategies are tried until one does. Each
        that does not fit is a trial of the result."""
        if plan.key in self._outcomes:
            return not self._outcomes[plan.key][1]
        context, began = self.context, self.context.now()
        found = any(not reason for _, reason in self._outcomes.values())
        if context.stopping() or (began > self._deadline and (len(plan.changes) > 1 or found)):
            return False
        number, (*others, last) = self.state.next_id(), plan.changes
        context.announce(TrialStarted(at=began, id=number, round=0, strategy=last.strategy, setting=last.setting))
        draws = 1 if self.state.facts.static_shapes else MOST_DRAWN
        key, peak = {"plan": plan.model_dump()}, None
        try:
            done = context.run.step("fit", key, lambda: attempt(context.runner, plan, draws=draws), Attempt)
            reason, peak = done.near_limit, done.peak_memory_bytes
            context.runner.memory.note_peak(plan, peak)
            if reason:
                self._tight[plan.key] = reason
        except TrialFailed as failure:
            reason = failure.reason
        trial = Trial(
            id=number,
            round=0,
            strategy=last.strategy,
            setting=last.setting,
            companions=tuple(others),
            verdict=Verdict.KEPT if not reason else Verdict.HARMFUL if plan.key in self._tight else Verdict.FAILED,
            reason=reason or "it fits",
            risk=context.registry[last.strategy].risk.value,
            peak_memory_bytes=peak,
            seconds=context.now() - began,
            log=context.runner.latest_log,
            finished_at=context.now(),
        )
        if reason:
            self.state.trials.append(trial)
        context.announce(TrialEnded(at=context.now(), trial=trial))
        self._outcomes[plan.key] = plan, reason
        return not reason
