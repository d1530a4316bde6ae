"""The combined candidate: changes that did well alone, together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import log1p

from autoopt.records import Change
from autoopt.registry import Registry
from autoopt.search.candidate import Candidate, Screened
from autoopt.search.planner import PLUGIN_ERRORS, candidate_plan
from autoopt.search.screening import Screening
from autoopt.search.state import SearchState
from autoopt.strategy import Case


def screen_combined(screening: Screening) -> None:
    """Screens what did well together, as far as that can still be confirmed.

    A rival of what is in it is screened on top of it, since some that shorten the same stages serve together.
    """
    threshold, registry = log1p(screening.context.min_gain), screening.context.runner.registry
    good = [s for s in screening.found if s.gain > threshold and s.plain and not s.candidate.combined]
    good.sort(key=lambda screened: -screened.gain)
    members = _without_rivals(good, screening.case, registry)
    taken = {member.candidate.strategy for member in members}
    rivals = [
        s
        for s in good
        if s.candidate.strategy not in taken
        and not any(_exclude(s, member, screening.case, registry) for member in members)
    ]
    for whole in (members, [*members, *rivals[:1]] if rivals else []):
        if len(whole) > 1 and not screening.over:
            candidate = combined(screening.state, registry, whole)
            if candidate is not None:
                screening.screen(candidate)


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
