"""The combined candidate: changes that did well alone, together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, log1p

from autoopt.records import Change
from autoopt.registry import Registry
from autoopt.search.candidate import INPUT, Candidate, Screened
from autoopt.search.confirmations import Costs
from autoopt.search.planner import PLUGIN_ERRORS, candidate_plan
from autoopt.search.screening import Screening
from autoopt.search.state import SearchState
from autoopt.strategy import Case

ON_TOP, MOST = 1.15, 4.0
"""Least and largest gain of a change of other stages with which it is added to a combined candidate."""


def screen_combined(screening: Screening, costs: Costs) -> None:
    """Screens what did well together, as far as that can still be confirmed.

    A rival of what is in it, or what pays more once it has shortened the rest, is screened on top of it.
    """
    threshold, registry = log1p(screening.context.min_gain), screening.context.runner.registry
    single = [s for s in screening.found if s.gain > 0 and not s.candidate.combined]
    good = sorted((s for s in single if s.gain > threshold), key=lambda screened: -screened.gain)
    members = _without_rivals([s for s in good if s.plain], screening.case, registry)
    extra = _further(screening, good, members) if members else []
    for whole in (members, [*members, *extra[:1]] if extra else []):
        if len(whole) > 1 and not _late(screening, costs, whole):
            candidate = combined(screening.state, registry, whole)
            if candidate is not None:
                screening.screen(candidate)


def _late(screening: Screening, costs: Costs, members: Sequence[Screened]) -> bool:
    """Whether screening several together would leave no time to confirm them; until something is kept, to the very end.

    What is larger takes fewer pairs of processes, so that it may be confirmed where its best part could not be.
    """
    context, hoped = screening.context, exp(sum(member.gain for member in members))
    needed = screening.each + costs.pairs(*members) + costs.probes()
    end = costs.deadline(hoped) if screening.state.found else context.allocation.budget
    return context.stopping() or context.now() + needed > end


def _further(screening: Screening, good: Sequence[Screened], members: Sequence[Screened]) -> list[Screened]:
    """What may serve on top of a combined candidate.

    These are its rivals, since some that shorten the same stages serve together, and what pays more once the combined
    candidate has shortened the rest.
    """
    registry = screening.context.runner.registry
    others = [s for s in good if s.plain and not any(s.candidate.strategy is m.candidate.strategy for m in members)]
    others += _complements(screening, members)
    return [s for s in others if not any(_exclude(s, member, screening.case, registry) for member in members)]


def _complements(screening: Screening, members: Sequence[Screened]) -> list[Screened]:
    """What shortens the stages that a combined candidate leaves as they are, and may pay more there than alone; the
    best first.

    Input or compute alone may show little while the other holds the step back, and much once that is shorter.
    """
    if not members or len({_feeds(member) for member in members}) > 1:
        return []
    shorter = exp(sum(member.gain for member in members))
    taken = {member.candidate.strategy.name for member in members}
    open_ = [
        s
        for s in screening.found
        if s.gain > 0 and not s.candidate.combined and s.candidate.strategy.name not in taken
        if _feeds(s) != _feeds(members[0]) and _on_top(s, shorter) > ON_TOP
    ]
    return sorted(open_, key=lambda s: -_on_top(s, shorter))


def _feeds(screened: Screened) -> bool:
    """Whether it is a way to deliver batches faster."""
    return bool(INPUT & frozenset(screened.candidate.strategy.stages))


def _on_top(screened: Screened, shorter: float) -> float:
    """The speedup that it may bring, by its prediction or its look, once the step is so many times shorter."""
    predicted = screened.candidate.predicted
    alone = max(exp(screened.gain), predicted.value if predicted is not None else 1.0)
    return 1.0 / max(1.0 - (1.0 - 1.0 / alone) * shorter, 1.0 / MOST)


def _without_rivals(screened: Iterable[Screened], case: Case, registry: Registry) -> list[Screened]:
    """The best of those that shorten the same input stages or exclude one another, and all others; one a strategy."""
    taken: list[Screened] = []
    for one in screened:
        if not any(one.rivals(other) or _exclude(one, other, case, registry) for other in taken):
            taken.append(one)
    return taken


def _exclude(one: Screened, other: Screened, case: Case, registry: Registry) -> bool:
    """Whether one of two would not be tried once the other was kept, as its strategy says."""
    for this, that in ((one.candidate, other.candidate), (other.candidate, one.candidate)):
        try:
            plan = candidate_plan(registry, case.plan, that.changes)
            if not this.strategy.applies(replace(case, plan=plan, setup=registry.fold(plan))):
                return True
        except PLUGIN_ERRORS:  # a plugin's crash is a result, not the end
            return True
    return False


def combined(state: SearchState, registry: Registry, members: Sequence[Screened]) -> Candidate | None:
    """The members' changes together, those of the better one where two set the same or exclude each other.

    None where they clash, or where nothing of the others is left.
    """
    changes: dict[str, Change] = {}
    for member in members:
        for change in member.candidate.changes:
            if not any(registry.exclude(change.strategy, taken) for taken in changes):
                changes.setdefault(change.strategy, change)
    first, *others = changes.values()
    try:
        plan = candidate_plan(registry, state.incumbent, (first, *others))
        registry.fold(plan)
    except PLUGIN_ERRORS:
        return None
    if not state.first_time((first, *others)):
        return None
    return Candidate(
        members[0].candidate.strategy,
        first,
        tuple(others),
        plan,
        None,
        combined=True,
        joined={name: part for member in reversed(members) for name, part in member.candidate.parts.items()},
    )
