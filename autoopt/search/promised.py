"""Which changes go together: what predictions promise, before it is seen, and what did well alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import log, prod
from typing import Any

from scipy.stats import norm

from autoopt.records import Change, Estimate, EstimateKind, Plan
from autoopt.registry import Registry
from autoopt.search.accept.trainings import TURNS_SCATTER
from autoopt.search.beliefs import Member
from autoopt.search.candidate import Candidate, Screened, combined_of, companions, without_rivals
from autoopt.search.planner import PLUGIN_ERRORS, Proposal, Skipped, makes_other_samples, standing_plan
from autoopt.search.run_context import RunContext
from autoopt.search.screening import Screening
from autoopt.search.state import SearchState
from autoopt.strategy import Case, PipelineView, Strategy


def together(
    context: RunContext,
    state: SearchState,
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
    registry = context.runner.registry
    changes, parts, promises = list[Change](), dict[str, Member](), list[Estimate]()
    plan, now, left = state.incumbent, case, list(proposals)
    while left:
        asked = ((each, _promised_next_to(context, state, each, case, now, likely)) for each in left)
        found = [(each, *promise) for each, promise in asked if promise is not None]
        if not found:
            break
        each, promise, said, after = max(found, key=lambda one: one[1].value)
        left = [one for one in left if one is not each]
        try:
            come_with = companions(context, state, each.strategy, now, each.setting)
            added = (each.change, *(one for one in come_with if one.strategy not in without))
            once = each.strategy.once_seconds(case, each.setting)
        except PLUGIN_ERRORS:
            continue
        longer = _joined(context, state, changes, added)
        if longer is None or registry.fold(longer) == registry.fold(plan):
            continue
        plan, changes = longer, [*changes, *added]
        now = replace(state.case_of(plan, registry, fits=case.fits), pipeline=after, seconds_left=case.seconds_left)
        if once is not None:
            context.runner.once[each.strategy.name] = once
        promises.append(promise)
        parts |= {one.strategy: (each.strategy.name, said) for one in added}
    if len(promises) < fewest:
        return None
    ends = {end: prod(getattr(one, end) for one in promises) for end in ("value", "low", "high")}
    promise = Estimate(**ends, n=min(one.n for one in promises), kind=EstimateKind.SIMULATED)
    first, *others = changes
    return Candidate(registry[first.strategy], first, tuple(others), plan, promise, combined=True, joined=parts)


def _promised_next_to(
    context: RunContext, state: SearchState, proposal: Proposal, case: Case, now: Case, likely: float
) -> tuple[Estimate, Estimate | None, PipelineView | None] | None:
    """The promise of a proposal next to others, with its prediction there and the pipeline after it; None without.

    That is its strategy's prediction there, as far off as a screening has shown the one on the incumbent to be.

    Args:
        case: of the incumbent; ``now``: with the changes that are chosen so far.
    """
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
        after = asked.after_what_if(next_to)
        if now is not case:
            corrected = said.value / alone.value
            said = said.model_copy(update={end: getattr(next_to, end) * corrected for end in ("value", "low", "high")})
    promise = _promised(strategy, state.beliefs.believed(strategy.name, said), likely)
    if promise is None:
        return None
    # a gain that nobody could see is no reason to train in other numbers; before the A/A control whole runs show it
    noise = TURNS_SCATTER if state.noise.floor is None else state.noise.floor
    if promise.value < 1.0 + max(context.min_gain, noise):
        registry = context.runner.registry
        plan = standing_plan(registry, state.incumbent, (proposal.change,))
        if plan is None or context.gate.rounding(plan) > context.gate.rounding(state.incumbent):
            return None
        if makes_other_samples(registry, state.incumbent, proposal.change):
            return None
    return promise, said, after


class _Asked:
    """A pipeline that notes what a strategy asks it."""

    def __init__(self, pipeline: PipelineView) -> None:
        self._pipeline = pipeline
        self._asked: list[tuple[Estimate, Mapping[str, float] | None, dict[str, int | None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def gain(self, seconds: Mapping[str, float] | None = None, **options: int | None) -> Estimate:
        found = self._pipeline.gain(seconds, **options)
        self._asked.append((found, seconds, options))
        return found

    def after_what_if(self, predicted: Estimate) -> PipelineView:
        """The pipeline after the what-if that a prediction rests on: of several, the one that is nearest to it."""
        if not self._asked:
            return self._pipeline
        _, seconds, options = min(self._asked, key=lambda one: abs(log(one[0].value / predicted.value)))
        return self._pipeline.after(seconds, **options)


Part = tuple[tuple[Change, ...], Mapping[str, Member]]
"""Changes that come together, and the members whose gains they are parts of."""


def with_parts(
    context: RunContext, state: SearchState, case: Case, whole: Candidate, parts: Iterable[Part]
) -> Candidate:
    """A candidate with what else is likely to bring something, the likeliest first: the whole is confirmed."""
    registry = context.runner.registry
    for changes, members in parts:
        plan = _joined(context, state, whole.changes, changes)
        if plan is None or plan == whole.plan or not _apply_to(registry, case, changes, whole.plan):
            continue
        joined = {**whole.parts, **members}
        whole = replace(whole, companions=(*whole.companions, *changes), plan=plan, combined=True, joined=joined)
    return whole


def _joined(context: RunContext, state: SearchState, changes: Sequence[Change], added: Sequence[Change]) -> Plan | None:
    """The incumbent with these changes and the added ones; None where they exclude each other, or no patch has them."""
    registry = context.runner.registry
    pairs = [(one.strategy, other.strategy) for one in added for other in changes]
    if any(one == other or registry.exclude(one, other) for one, other in pairs):
        return None
    plan = standing_plan(registry, state.incumbent, (*changes, *added))
    return plan if context.runner.in_source(Plan(changes=tuple(added))) else None


def likely_parts(screened: Screened, found: Iterable[Screened], likely: float) -> list[Part]:
    """Screened changes that are confirmed together with a candidate: clear gains, those whose chance is ``likely``, and
    predicted gains that the screening does not contradict."""
    parts = list[Part]()
    for other in sorted(found, key=lambda one: -one.gain):
        candidate = other.candidate
        promised = other.gain > other.error and _promised(candidate.strategy, candidate.predicted) is not None
        if not other.rivals(screened) and (promised or other.plain or other.chance > likely):
            parts.append((candidate.changes, candidate.parts))
    return parts


def promised_of(skipped: Iterable[Skipped]) -> list[Part]:
    """Those of what is not tried alone of which a prediction promises a gain."""
    promising = (each for each in skipped if _promised(each.strategy, each.predicted) is not None)
    return [((each.change,), {each.strategy.name: (each.strategy.name, each.predicted)}) for each in promising]


def _promised(strategy: Strategy, speedup: Estimate | None, likely: float = 1.0) -> Estimate | None:
    """What is predicted or believed of a change, where it is likely a gain that no training has to judge; else None."""
    if speedup is None or speedup.kind is EstimateKind.BOUND or strategy.risk.trains_otherwise:
        return None
    if speedup.low > 1.0:
        return speedup
    return speedup if speedup.value > 1.0 and norm.cdf(log(speedup.value) / speedup.log_sd) > likely else None


def screen_rival(screening: Screening) -> None:
    """Screens what did well with the best rival of it on top, since some that shorten the same stages serve together.
    What is no rival needs no screening for that."""
    case, registry = screening.case, screening.context.runner.registry
    good = [s for s in screening.found if s.plain and not s.candidate.combined]

    def apart(one: Screened, other: Screened) -> bool:
        pairs = ((one.candidate, other.candidate), (other.candidate, one.candidate))
        plans = ((this.changes, standing_plan(registry, case.plan, that.changes)) for this, that in pairs)
        return not all(plan is not None and _apply_to(registry, case, changes, plan) for changes, plan in plans)

    members = without_rivals(good, lambda one, other: one.rivals(other) or apart(one, other))
    taken = {member.candidate.strategy for member in members}
    others = sorted((s for s in good if s.candidate.strategy not in taken), key=lambda one: -one.gain)
    rival = next((s for s in others if not any(apart(s, member) for member in members)), None)
    if rival is None or screening.over:
        return
    candidate = combined(screening.state, registry, [*members, rival])
    if candidate is not None:
        screening.screen(candidate)


def combined(state: SearchState, registry: Registry, members: Sequence[Screened]) -> Candidate | None:
    """The members' changes together, those of the better one where two set the same or exclude each other; None where
    they clash, or where nothing of the others is left."""
    changes: dict[str, Change] = {}
    for member in members:
        for change in member.candidate.changes:
            if not any(registry.exclude(change.strategy, taken) for taken in changes):
                changes.setdefault(change.strategy, change)
    parts = {name: part for member in reversed(members) for name, part in member.candidate.parts.items()}
    return combined_of(registry, state, tuple(changes.values()), parts)


def _apply_to(registry: Registry, case: Case, changes: Iterable[Change], plan: Plan) -> bool:
    """Whether the strategies of changes would be tried on a plan."""
    try:
        there = replace(case, plan=plan, setup=registry.fold(plan))
        return all(registry[change.strategy].applies(there) for change in changes)
    except PLUGIN_ERRORS:  # a plugin's crash is a result, not the end
        return False
