"""Candidates: a strategy's settings one by one, or changes that go together, each a plan on the incumbent; the trial of
one, and what a screening has shown of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import log, prod
from typing import Any

from scipy.stats import norm

from autoopt.errors import TrialFailed
from autoopt.events import TrialEnded, TrialStarted
from autoopt.records import Change, Estimate, EstimateKind, JsonDict, Plan, Trial, Verdict
from autoopt.search.accept.evidence import Judgement
from autoopt.search.accept.trainings import TURNS_SCATTER
from autoopt.search.compare.comparison import Comparison, Decision, Rule, Side
from autoopt.search.planner import (
    PLUGIN_ERRORS,
    Member,
    Proposal,
    candidate_plan,
    plugin_error,
    predict,
    predicted_gain,
)
from autoopt.search.run_context import RunContext
from autoopt.strategy import MOST_SETTINGS, Case, PipelineView, Risk, Strategy

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


def candidate_of(context: RunContext, strategy: Strategy, case: Case, setting: JsonDict) -> Candidate | None:
    """The candidate of a setting; None where there is nothing new to try, which is noted."""
    try:
        changes, plan = _planned(context, strategy, case, setting)
        if plan is None:
            skip(context, strategy, Verdict.NOT_TRIED, "the incumbent trains so already")
            return None
        predicted = predict(strategy, case, setting)
        once = strategy.once_seconds(case, setting)
    except PLUGIN_ERRORS as error:
        skip(context, strategy, Verdict.FAILED, plugin_error(error))
        return None
    if once is not None:
        context.runner.once[strategy.name] = once
    return Candidate(strategy, changes[0], changes[1:], plan, predicted) if context.state.first_time(changes) else None


def plan_of(context: RunContext, strategy: Strategy, case: Case, setting: JsonDict) -> Plan | None:
    """The plan of a setting, of which nothing is noted; None where the strategy fails or brings nothing new."""
    try:
        return _planned(context, strategy, case, setting)[1]
    except PLUGIN_ERRORS:
        return None


def _planned(
    context: RunContext, strategy: Strategy, case: Case, setting: JsonDict
) -> tuple[tuple[Change, ...], Plan | None]:
    """A setting's change with its companions, and their plan; None where the incumbent trains so already."""
    registry, change = context.registry, Change(strategy=strategy.name, setting=setting)
    changes = (change, *companions(context, strategy, case, setting))
    plan = candidate_plan(registry, context.state.incumbent, changes)
    return changes, plan if registry.fold(plan) != registry.fold(context.state.incumbent) else None


def standing_plan(context: RunContext, changes: Sequence[Change]) -> Plan | None:
    """The incumbent with these changes; None where they cannot stand together, or a strategy fails."""
    try:
        plan = candidate_plan(context.registry, context.state.incumbent, changes)
        context.registry.fold(plan)
    except PLUGIN_ERRORS:
        return None
    return plan


def makes_other_samples(context: RunContext, change: Change) -> bool:
    """Whether a numeric change makes samples in other numbers."""
    if context.registry[change.strategy].risk is not Risk.NUMERIC:
        return False
    fold, plan = context.registry.fold, standing_plan(context, (change,))
    return plan is not None and fold(plan).dataset != fold(context.state.incumbent).dataset


def joined_of(
    context: RunContext, changes: Sequence[Change], parts: Mapping[str, Member], predicted: Estimate | None
) -> Candidate | None:
    """Changes together on the incumbent; None where there are none, or they cannot stand together."""
    plan = standing_plan(context, changes)
    if plan is None or not changes:
        return None
    first, *others = changes
    strategy = context.registry[first.strategy]
    return Candidate(strategy, first, tuple(others), plan, predicted, combined=bool(others), joined=parts)


def combined_of(context: RunContext, changes: tuple[Change, ...], parts: Mapping[str, Member]) -> Candidate | None:
    """Changes together on the incumbent; None where they cannot stand together, or were tried so already."""
    found = joined_of(context, changes, parts, None)
    return found if found is not None and context.state.first_time(changes) else None


def without(context: RunContext, candidate: Candidate, names: AbstractSet[str]) -> Candidate | None:
    """A candidate less what is a part of these strategies' gains; None where nothing is left of it."""
    parts = {name: part for name, part in candidate.parts.items() if part[0] not in names}
    rest = tuple(change for change in candidate.changes if change.strategy in parts)
    return joined_of(context, rest, parts, candidate.predicted)


def settings_of(context: RunContext, strategy: Strategy, case: Case) -> Iterator[tuple[JsonDict, Answer]]:
    """The conversation with a strategy; its crash is noted as its failure."""
    return conversation(strategy, case, lambda error: skip(context, strategy, Verdict.FAILED, plugin_error(error)))


def skip(context: RunContext, strategy: Strategy, verdict: Verdict, reason: str) -> None:
    """Notes and announces why a strategy of which nothing was tried is not tried."""
    if strategy.name not in {trial.strategy for trial in context.state.trials}:
        trial = context.state.skip(strategy, verdict, reason)
        context.announce(TrialEnded(at=context.now(), trial=trial))


def companions(context: RunContext, strategy: Strategy, case: Case, setting: JsonDict) -> tuple[Change, ...]:
    """Those that the strategy names, the user allows, and this budget can judge."""
    registry, choice = context.registry, context.choice

    def wanted(name: str) -> bool:
        if name not in registry or name in choice.skip or registry[name].risk.value not in choice.allow:
            return False
        return not (context.state.untrainable and registry[name].risk.trains_otherwise)

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


class OpenTrial:
    """A trial that has begun, and was announced. ``step``: what is done with it, in words; ``number``: of the screening
    that it follows; ``remaining``: trials that are expected after it."""

    def __init__(
        self, context: RunContext, candidate: Candidate, step: str, number: int | None = None, remaining: int = 0
    ) -> None:
        state = context.state
        self.context, self.state, self.candidate = context, state, candidate
        self.number, self.began = number or state.next_id(), context.now()
        started = TrialStarted(
            at=self.began,
            id=self.number,
            round=len(state.rounds),
            strategy=candidate.change.strategy,
            setting=candidate.change.setting,
            companions=candidate.companions,
            step=step,
            predicted=predicted_gain(candidate.predicted),
            remaining=remaining,
        )
        context.announce(started)

    def ended(self, ruling: Judgement, comparison: Comparison | None = None) -> Trial:
        """Notes and announces its end, with blocks of steps if any; one that is kept makes the incumbent."""
        context, state, candidate = self.context, self.state, self.candidate
        comparison = comparison or Comparison(
            decision=Decision.INCONCLUSIVE,
            reason="no blocks of steps were compared",
            incumbent=Side(plan=state.incumbent),
            candidate=Side(plan=candidate.plan),
        )
        trial = Trial(
            id=self.number,
            round=len(state.rounds),
            strategy=candidate.change.strategy,
            setting=candidate.change.setting,
            companions=candidate.companions,
            base=state.base,
            verdict=ruling.verdict,
            reason=ruling.reason,
            risk=candidate.strategy.risk.value,
            predicted=candidate.predicted,
            throughput=comparison.estimate,
            time_to_target=ruling.time_to_target,
            planned_steps=ruling.planned_steps,
            quality=ruling.quality,
            peak_memory_bytes=comparison.candidate.peak_memory_bytes,
            trained_parameters=trained_parameters(context, candidate.plan),
            seconds=context.now() - self.began,
            log=context.runner.latest_log,
            ratios=comparison.ratios,
            samples_per_second=comparison.candidate.samples_per_second,
            finished_at=context.now(),
        )
        state.trials.append(trial)
        if trial.verdict is Verdict.KEPT:
            if candidate.companions:  # the ablation decides which of them it needs
                state.together |= candidate.parts
            state.comparisons[self.number] = comparison
            state.incumbent, state.base = context.registry.order(candidate.plan), str(self.number)
        context.announce(TrialEnded(at=context.now(), trial=trial, has_target=state.objective.has_target))
        return trial


def trained_parameters(context: RunContext, plan: Plan) -> int | None:
    """Parameters with a gradient in the plan's trainings; None where there was none."""
    return next((run.trained_parameters for run in context.gate.trainings.of(plan)), None)


PLAIN = 2.0
"""Standard errors by which a gain stands out: of many changes that bring nothing, hardly one does so by chance."""


FEWEST_PAIRS = Rule().min_pairs
HOPE = 1.5
"""A gain may well be so many standard errors larger than its looks showed."""


def together(
    context: RunContext,
    case: Case,
    proposals: Iterable[Proposal],
    fewest: int = 2,
    likely: float = 1.0,
    without: AbstractSet[str] = frozenset(),
) -> Candidate | None:
    """All that predictions promise, as one plan on the incumbent; None where that is fewer changes (companions count as
    one with theirs).

    The change that promises most goes first; each further one is predicted next to those, so that what one saves is not
    promised by another once more, and as far as comparisons have not denied it. Where most predictions hold, the plan
    has most of the gain after one screening. Of a script, only what its patch can say. ``likely``: the chance of a gain
    from which on it counts, where not the whole of its interval is one; ``without``: no companions of these strategies.
    """
    changes, parts, promises = list[Change](), dict[str, Member](), list[Estimate]()
    plan, now, left = context.state.incumbent, case, list(proposals)
    while left:
        asked = ((each, _promised_next_to(context, each, case, now, likely)) for each in left)
        found = [(each, *promise) for each, promise in asked if promise is not None]
        if not found:
            break
        each, promise, said, after = max(found, key=lambda one: one[1].value)
        left = [one for one in left if one is not each]
        try:
            come_with = companions(context, each.strategy, now, each.setting)
            added = (each.change, *(one for one in come_with if one.strategy not in without))
            once = each.strategy.once_seconds(case, each.setting)
        except PLUGIN_ERRORS:
            continue
        longer = together_with(context, changes, added)
        if longer is None or context.registry.fold(longer) == context.registry.fold(plan):
            continue
        plan, changes = longer, [*changes, *added]
        known = {"fits": case.fits, "pipeline": after, "seconds_left": case.seconds_left}
        now = context.state.case(context.registry, plan, **known)
        if once is not None:
            context.runner.once[each.strategy.name] = once
        promises.append(promise)
        parts |= {one.strategy: (each.strategy.name, said) for one in added}
    if len(promises) < fewest:
        return None
    ends = {end: prod(getattr(one, end) for one in promises) for end in ("value", "low", "high")}
    promise = Estimate(**ends, n=min(one.n for one in promises), kind=EstimateKind.SIMULATED)
    return joined_of(context, changes, parts, promise)


def _promised_next_to(
    context: RunContext, proposal: Proposal, case: Case, now: Case, likely: float
) -> tuple[Estimate, Estimate | None, PipelineView | None] | None:
    """The promise of a proposal next to others, with its prediction there and the pipeline after it; None without.

    That is its strategy's prediction there, as far off as a screening has shown the one on the incumbent to be.

    Args:
        case: of the incumbent; ``now``: with the changes that are chosen so far.
    """
    state = context.state
    strategy, said, after = proposal.strategy, proposal.predicted, now.pipeline
    asked, alone, next_to = _Asked(after) if after is not None else None, None, None
    try:
        if now is not case and not strategy.applies(now):
            return None
        if said is not None and case.pipeline is not None and asked is not None:
            next_to = strategy.predict(replace(now, pipeline=asked), proposal.setting)
            alone = next_to if now is case else strategy.predict(case, proposal.setting)
    except PLUGIN_ERRORS:
        return None
    if asked is not None and said is not None and alone is not None and next_to is not None:
        if asked.gains:  # the what-if that the prediction rests on: of several, the one that is nearest to it
            most, nearest = next_to.value, asked.gains
            _, seconds, options = min(nearest, key=lambda one: abs(log(one[0].value / most)))
            after = asked.pipeline.after(seconds, **options)
        if now is not case:
            corrected, bounds = said.value / alone.value, next_to.kind is EstimateKind.BOUND
            ends = {end: getattr(next_to, end) * corrected for end in ("value", "low", "high")}
            said = said.model_copy(update={**ends, "kind": next_to.kind if bounds else said.kind})
    promise = promised_gain(strategy, state.beliefs.believed(strategy.name, said), likely)
    if promise is None:
        return None
    # a gain that nobody could see is no reason to train in other numbers; before the A/A control whole runs show it
    noise = TURNS_SCATTER if state.noise.floor is None else state.noise.floor
    if promise.value < 1.0 + max(context.min_gain, noise):
        plan = standing_plan(context, (proposal.change,))
        if plan is None or context.gate.rounding(plan) > context.gate.rounding(state.incumbent):
            return None
        if makes_other_samples(context, proposal.change):
            return None
    return promise, said, after


class _Asked:
    """A pipeline that notes what a strategy asks it."""

    def __init__(self, pipeline: PipelineView) -> None:
        self.pipeline = pipeline
        self.gains: list[tuple[Estimate, Mapping[str, float] | None, dict[str, int | None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pipeline, name)

    def gain(self, seconds: Mapping[str, float] | None = None, **options: int | None) -> Estimate:
        found = self.pipeline.gain(seconds, **options)
        self.gains.append((found, seconds, options))
        return found


Part = tuple[tuple[Change, ...], Mapping[str, Member]]
"""Changes that come together, and the members whose gains they are parts of."""


def together_with(context: RunContext, changes: Sequence[Change], added: Sequence[Change]) -> Plan | None:
    """The incumbent with these changes and the added ones; None where they exclude each other, or no patch has them."""
    pairs = [(one.strategy, other.strategy) for one in added for other in changes]
    if any(one == other or context.registry.exclude(one, other) for one, other in pairs):
        return None
    plan = standing_plan(context, (*changes, *added))
    return plan if context.runner.in_source(Plan(changes=tuple(added))) else None


def promised_gain(strategy: Strategy, speedup: Estimate | None, likely: float = 1.0) -> Estimate | None:
    """What is predicted or believed of a change, where it is likely a gain that no training has to judge; else None."""
    if speedup is None or speedup.kind is EstimateKind.BOUND or strategy.risk.trains_otherwise:
        return None
    if speedup.low > 1.0:
        return speedup
    return speedup if speedup.value > 1.0 and norm.cdf(log(speedup.value) / speedup.log_sd) > likely else None


def apply_to(context: RunContext, case: Case, changes: Iterable[Change], plan: Plan) -> bool:
    """Whether the strategies of changes would be tried on a plan."""
    try:
        there = replace(case, plan=plan, setup=context.registry.fold(plan))
        return all(context.registry[change.strategy].applies(there) for change in changes)
    except PLUGIN_ERRORS:  # a plugin's crash is a result, not the end
        return False
