"""Candidates: a strategy's settings one by one, each a plan on the incumbent with its companions; and what
a screening has shown of one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from math import hypot, log1p, sqrt

from scipy.stats import norm

from autoopt.errors import TrialFailed
from autoopt.events import TrialEnded
from autoopt.records import Change, Estimate, JsonDict, Noise, Plan, Trial, Verdict
from autoopt.registry import Registry
from autoopt.search.beliefs import Member, gain_where_it_is_one
from autoopt.search.compare.comparison import Comparison, PairOfProcesses
from autoopt.search.compare.sequential_test import ALPHA, between_process_of, unseen_mode
from autoopt.search.compare.statistics import known_radius
from autoopt.search.planner import PLUGIN_ERRORS, candidate_plan, plugin_error, predict, standing_plan
from autoopt.search.run_context import MOST_PAIRS, RunContext
from autoopt.search.state import SearchState
from autoopt.strategy import MOST_SETTINGS, Case, Strategy

Answer = Callable[[Trial | None], None]


@dataclass(frozen=True)
class Candidate:
    """A setting to try: its change, the companions that come with it, the plan of all, and what was predicted.

    ``combined``: the companions are changes of other strategies, whose members are :attr:`parts` in ``joined``.
    """

    strategy: Strategy
    change: Change
    companions: tuple[Change, ...]
    plan: Plan
    predicted: Estimate | None
    combined: bool = False
    joined: Mapping[str, Member] = field(default_factory=dict)

    @property
    def parts(self) -> Mapping[str, Member]:
        """Each change's strategy, with the member whose gain it is a part of: a companion's is the one it serves."""
        return self.joined or {change.strategy: (self.change.strategy, self.predicted) for change in self.changes}

    @property
    def members(self) -> tuple[Member, ...]:
        """The changes that bring its gain: its own, or those that did well alone; not their companions."""
        return tuple({member[0]: member for member in self.parts.values()}.values())

    @property
    def changes(self) -> tuple[Change, ...]:
        return (self.change, *self.companions)


def candidate_of(
    context: RunContext, state: SearchState, strategy: Strategy, case: Case, setting: JsonDict
) -> Candidate | None:
    """The candidate of a setting; None where there is nothing new to try, which is noted."""
    try:
        changes, plan = _planned(context, state, strategy, case, setting)
        if plan is None:
            skip(context, state, strategy, Verdict.NOT_TRIED, "the incumbent trains so already")
            return None
        predicted = predict(strategy, case, setting)
        once = strategy.once_seconds(case, setting)
    except PLUGIN_ERRORS as error:
        skip(context, state, strategy, Verdict.FAILED, plugin_error(error))
        return None
    if once is not None:
        context.runner.once[strategy.name] = once
    return Candidate(strategy, changes[0], changes[1:], plan, predicted) if state.first_time(changes) else None


def plan_of(context: RunContext, state: SearchState, strategy: Strategy, case: Case, setting: JsonDict) -> Plan | None:
    """The plan of a setting, of which nothing is noted; None where the strategy fails or brings nothing new."""
    try:
        return _planned(context, state, strategy, case, setting)[1]
    except PLUGIN_ERRORS:
        return None


def _planned(
    context: RunContext, state: SearchState, strategy: Strategy, case: Case, setting: JsonDict
) -> tuple[tuple[Change, ...], Plan | None]:
    """A setting's change with its companions, and their plan; None where the incumbent trains so already."""
    registry, change = context.runner.registry, Change(strategy=strategy.name, setting=setting)
    changes = (change, *companions(context, state, strategy, case, setting))
    plan = candidate_plan(registry, state.incumbent, changes)
    return changes, plan if registry.fold(plan) != registry.fold(state.incumbent) else None


def combined_of(
    registry: Registry, state: SearchState, changes: tuple[Change, ...], parts: Mapping[str, Member]
) -> Candidate | None:
    """Changes together on the incumbent; None where they cannot stand together, or were tried so already."""
    plan = standing_plan(registry, state.incumbent, changes)
    if plan is None or not state.first_time(changes):
        return None
    first, *others = changes
    strategy = registry[first.strategy]
    return Candidate(strategy, first, tuple(others), plan, None, combined=bool(others), joined=parts)


def without(registry: Registry, state: SearchState, candidate: Candidate, names: AbstractSet[str]) -> Candidate | None:
    """A candidate less what is a part of these strategies' gains; None where nothing is left of it."""
    parts = {name: part for name, part in candidate.parts.items() if part[0] not in names}
    rest = tuple(change for change in candidate.changes if change.strategy in parts)
    plan = standing_plan(registry, state.incumbent, rest) if rest else None
    if plan is None:
        return None
    strategy, others = registry[rest[0].strategy], rest[1:]
    return Candidate(strategy, rest[0], others, plan, candidate.predicted, combined=bool(others), joined=parts)


def settings_of(
    context: RunContext, state: SearchState, strategy: Strategy, case: Case
) -> Iterator[tuple[JsonDict, Answer]]:
    """The conversation with a strategy; its crash is noted as its failure."""
    note = partial(skip, context, state, strategy, Verdict.FAILED)
    return conversation(strategy, case, lambda error: note(plugin_error(error)))


def skip(context: RunContext, state: SearchState, strategy: Strategy, verdict: Verdict, reason: str) -> None:
    """Notes and announces why a strategy of which nothing was tried is not tried."""
    if strategy.name not in {trial.strategy for trial in state.trials}:
        trial = state.skip(strategy, verdict, reason)
        context.announce(TrialEnded(at=context.now(), trial=trial))


def companions(
    context: RunContext, state: SearchState, strategy: Strategy, case: Case, setting: JsonDict
) -> tuple[Change, ...]:
    """Those that the strategy names, the user allows, and this budget can judge."""
    registry, choice = context.runner.registry, context.choice

    def wanted(name: str) -> bool:
        if name not in registry or name in choice.skip or registry[name].risk.value not in choice.allow:
            return False
        return not (state.untrainable and registry[name].risk.trains_otherwise)

    return tuple(each for each in strategy.companions(case, setting) if wanted(each.strategy))


def conversation(
    strategy: Strategy, case: Case, crashed: Callable[[BaseException], object] = lambda error: None
) -> Iterator[tuple[JsonDict, Answer]]:
    """Settings one by one; what ``answer`` is called with is sent back into a generator. ``crashed`` is called with an
    exception of the strategy, since its crash is a result."""
    replies: list[Trial | None] = []
    try:
        settings = strategy.settings(case)
        talking = settings if isinstance(settings, Generator) else None
        iterator = iter(settings)
        setting = next(iterator, None)
        for _ in range(MOST_SETTINGS):
            if setting is None:
                return
            replies.clear()
            yield dict(setting), replies.append
            if talking is None:
                setting = next(iterator, None)
                continue
            try:
                setting = talking.send(replies[-1] if replies else None)
            except StopIteration:
                return
    except (GeneratorExit, TrialFailed):
        raise
    except PLUGIN_ERRORS as error:
        crashed(error)


INPUT = frozenset({"storage", "preparation", "collate"})
"""Stages that deliver batches one after the other: ways to shorten them are rivals, of which the best is taken."""
PLAIN = 2.0
"""Standard errors by which a gain stands out: of many changes that bring nothing, hardly one does so by chance."""


@dataclass(frozen=True)
class Screened:
    """A candidate with the log gain and its standard error (processes included) that beliefs have after its screening.

    ``unselected``: the comparison that screened it, where predictions chose it and no figure: its confirmation goes on
    from there.
    """

    candidate: Candidate
    trial: Trial
    gain: float
    error: float = 0.0
    unselected: Comparison | None = None

    def pairs(self, incumbent: Plan) -> tuple[PairOfProcesses, ...]:
        """Pairs of processes that count for its confirmation on an incumbent."""
        seen = self.unselected
        return seen.pairs if seen is not None and seen.compares(incumbent, self.candidate.plan) else ()

    @property
    def plain(self) -> bool:
        """Whether the gain stands out of its own noise."""
        return self.gain > PLAIN * self.error

    @property
    def chance(self) -> float:
        """That it is a gain at all."""
        return float(norm.cdf(self.gain / max(self.error, 1e-9)))

    @property
    def worth(self) -> float:
        """The log gain to be expected of its confirmation, which leaves the plan as it is where it is none."""
        return gain_where_it_is_one(self.gain, self.error)

    def rivals(self, other: Screened) -> bool:
        """Whether only one of both is of use: settings of one strategy, or ways to deliver batches faster."""
        return rival_strategies(self.candidate.strategy, other.candidate.strategy)


def without_rivals(
    found: Iterable[Screened], rivals: Callable[[Screened, Screened], bool] = Screened.rivals
) -> list[Screened]:
    """The largest gains of which no two are rivals, the best first."""
    taken: list[Screened] = []
    for one in sorted(found, key=lambda screened: -screened.gain):
        if not any(rivals(one, other) for other in taken):
            taken.append(one)
    return taken


def rival_strategies(one: Strategy, other: Strategy) -> bool:
    """Whether they are one, or both are ways to deliver batches faster."""
    return one is other or bool(INPUT & frozenset(one.stages) and INPUT & frozenset(other.stages))


FEWEST_PAIRS = 2
BLOCK_ERROR = 0.02
"""Standard error (log) of a pair of processes from its blocks, where it is not known."""
HOPE = 1.5
"""A gain may well be so many standard errors larger than its looks showed."""


def pairs_to_confirm(gain: float, noise: Noise, min_gain: float) -> int:
    """Pairs of processes that confirm a log gain: by their interval, and by the chance of a slow mode unseen."""
    between = between_process_of(noise).sd
    for pairs in range(FEWEST_PAIRS, MOST_PAIRS):
        radius = known_radius(hypot(between, BLOCK_ERROR) / sqrt(pairs), ALPHA)
        if max(radius, unseen_mode(pairs, between, ALPHA)) < gain - log1p(min_gain):
            return pairs
    return MOST_PAIRS
