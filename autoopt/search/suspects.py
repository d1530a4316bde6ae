"""Suspects: which change of a plan that trains otherwise is the likeliest reason, left out until that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoopt.records import Change, Quality, Verdict
from autoopt.search.accept.levels import BATCHES
from autoopt.search.candidate import Candidate, Screened, combined_of
from autoopt.search.confirmation import drawn_otherwise
from autoopt.search.outcome import named
from autoopt.search.planner import standing_plan
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState


@dataclass(frozen=True)
class Suspect:
    """A change that is left out of a plan that trains otherwise.

    Args:
        rest: of that plan.
        reason, verdict: why it is left out.
        aside: screenings of candidates that have it.
    """

    change: Change
    rest: tuple[Change, ...]
    reason: str
    verdict: Verdict
    aside: list[Screened] = field(default_factory=list)


class Suspects:
    """Changes that are left out of all that is confirmed, by blocks of steps or by whole runs.

    Args:
        context, state: of the run.
    """

    def __init__(self, context: RunContext, state: SearchState) -> None:
        self.context, self.state = context, state
        self.all = list[Suspect]()

    def of(self, change: Change) -> Suspect | None:
        """Why a change is left out of all that is confirmed; None where it is not."""
        return next((each for each in self.all if each.change == change), None)

    def in_candidate(self, candidate: Candidate) -> bool:
        return any(self.of(change) for change in candidate.changes)

    def add(self, whole: Candidate, quality: Quality, change: Change | None = None) -> Suspect:
        """Leaves a change out of all that is confirmed for the quality of a whole; of one alone for good.

        Args:
            change: the likeliest reason, where it is known; :meth:`likeliest` where it is None.
        """
        if change is None:
            change = self.likeliest(whole.changes) if whole.combined else whole.change
        rest = tuple(other for other in whole.changes if other != change) if whole.combined else ()
        lost = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        suspect = Suspect(change, rest, f"{quality.detail} (tried with {named(whole.plan.names())})", lost)
        self.all.append(suspect)
        return suspect

    def cleared_by(self, lost: Candidate) -> list[Suspect]:
        """Clears of suspicion what a plan that trains otherwise does without: it was not, or not alone, the reason."""
        cleared = [one for one in self.all if all(change in one.rest for change in lost.changes)]
        self.all = [one for one in self.all if one not in cleared]
        return cleared

    def most_doubtful(self, candidate: Candidate) -> tuple[Change, Quality] | None:
        """What goes first from a candidate that is not shown to train as well, with what is known of the whole.

        None where it is shown, or nobody asks.
        """
        context, state = self.context, self.state
        level = context.gate.quality(candidate.plan, state.incumbent, state.facts, state.objective)
        if level is None or level.passed or (level.passed is None and context.gate.accept_undecided):
            return None
        return self.likeliest(candidate.changes, by_data=level.rests_on == BATCHES), level

    def likeliest(self, changes: Sequence[Change], by_data: bool = False) -> Change:
        """Of changes that together do not train as well, the likeliest reason.

        Args:
            by_data: batches differ, or probes saw them train alike and a whole run ends with another metric: what makes
                other batches, or other draws of augmentation, comes before what rounds.
        """

        def key(change: Change) -> tuple[bool, int, float, bool]:
            risk, rounding, other = self._suspicion(change)
            return by_data and other, risk, rounding, other

        return max(drawn_otherwise(self.context, self.state, changes) or changes, key=key)

    def without_likeliest(self, candidate: Candidate) -> Candidate | None:
        """A combined candidate less the likeliest reason of another training; None where nothing new is left."""
        if not candidate.combined:
            return None
        out = self.likeliest(candidate.changes)
        rest = tuple(change for change in candidate.changes if change != out)
        parts = {name: part for name, part in candidate.parts.items() if out.strategy not in (name, part[0])}
        return combined_of(self.context.runner.registry, self.state, rest, parts)

    def _suspicion(self, change: Change) -> tuple[int, float, bool]:
        """How likely a change trains otherwise: by its risk, its rounding, and whether it makes other batches."""
        registry, state = self.context.runner.registry, self.state
        before = registry.fold(state.incumbent)
        risk = registry[change.strategy].risk.rank
        plan = standing_plan(registry, state.incumbent, (change,))
        if plan is None:
            return risk, 1.0, True
        after = registry.fold(plan)
        other = (after.loader, after.dataset, after.sampler) != (before.loader, before.dataset, before.sampler)
        return risk, self.context.gate.rounding(plan), other
