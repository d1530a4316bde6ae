"""Confirmations: what did well in the screening, by the gain that a second of deciding it may bring.

To decide a change is to confirm that it is faster and that it trains as well: without the time for the second, the
first is not begun. The likeliest reason of a plan that trains otherwise is suspected, and left out until it is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import exp, expm1, inf, log, log1p

from autoopt.records import Change, Quality, Trial, Verdict
from autoopt.search.ablate import by_whole_runs
from autoopt.search.accept.evidence import FEWEST_SEEDS
from autoopt.search.accept.levels import BATCHES
from autoopt.search.candidate import (
    FEWEST_PAIRS,
    HOPE,
    Candidate,
    Screened,
    combined_of,
    pairs_to_confirm,
    without_rivals,
)
from autoopt.search.confirmation import confirm, drawn_otherwise
from autoopt.search.first_training import train_first
from autoopt.search.outcome import named
from autoopt.search.planner import Skipped, standing_plan
from autoopt.search.promised import Part, likely_parts, promised_of, with_parts
from autoopt.search.run_context import RunContext
from autoopt.search.screening import Screening
from autoopt.search.state import SearchState
from autoopt.search.verify import confirmation_of
from autoopt.strategy import Case, Risk


@dataclass(frozen=True)
class Costs:
    """Costs of deciding a candidate here, in seconds."""

    context: RunContext
    state: SearchState

    def pairs(self, *members: Screened) -> float:
        """Seconds of the pairs of processes that would confirm them together, if they are as good as they looked."""
        context, state = self.context, self.state
        gain = sum(member.gain + HOPE * member.error for member in members)
        starts = state.dearer_start(state.incumbent) + max(state.dearer_start(one.candidate.plan) for one in members)
        made = len(members[0].pairs(state.incumbent)) if len(members) == 1 else 0
        pairs = max(pairs_to_confirm(gain, state.noise, context.min_gain) - made, 1)
        return pairs * (context.allocation.pair + starts)

    def confirmation(self, *members: Screened) -> float:
        """The same with the probes that their quality takes; losses may stand in for those of exact changes."""
        incumbent, risk = self.state.incumbent, self.context.gate.risk_over
        plans = (m.candidate.plan for m in members)
        due = (self.context.probes_due(p, incumbent) for p in plans if risk(p, incumbent) is not Risk.EXACT)
        return self.pairs(*members) + max(due, default=0.0)

    def whole_runs(self) -> float:
        """Seconds of the least confirmation by whole runs, its probes and what then verifies it included; infinite
        where they show nothing of what is tried on the incumbent."""
        context, state = self.context, self.state
        untouched = context.run_seconds(state)
        if untouched is None or (state.found and not by_whole_runs(context, state)):
            return inf
        run = untouched / max(state.speedup_so_far, 1.0)
        probes = context.probes_due(None, state.incumbent)
        return 2 * run + probes + (FEWEST_SEEDS * (untouched + run) if state.found else 0.0)

    def deadline(self, gain: float = 1.0) -> float:
        """Until when may be searched, on the run's clock, if what is tried next brings so much and is kept."""
        state, allocation = self.state, self.context.allocation
        speedup = state.speedup_so_far * max(gain, 1.0)
        if by_whole_runs(self.context, state):  # what comes on top is run whole again, as often as verifies it
            return allocation.last_deadline(speedup)
        usual = allocation.search_deadline(len(state.found), speedup)
        confirmed = state.found and confirmation_of(self.context, state) is not None
        if confirmed and self.context.gate.trained_pairs(state.incumbent):
            return max(usual, allocation.last_deadline(speedup))  # only another plan needs more than its own trainings
        return usual

    def latest(self, found: Iterable[Screened], counts: bool = False) -> float:
        """Deadline of the screening on the run's clock: the best of the clear gains is still to be confirmed, the most
        that goes together. Where nothing stands out, what may yet do so has the time of a short comparison and its
        probes; ``counts``: the pair of the next screening is one of its confirmation."""
        plain = [screened for screened in found if screened.plain]
        stacks = sorted((s for s in plain if s.candidate.combined), key=lambda s: s.gain)
        members = stacks[-1:] or without_rivals(plain)
        if not members:
            probes = self.context.probes_due(None, self.state.incumbent)
            pairs = FEWEST_PAIRS - counts
            return self.deadline() - pairs * self.context.allocation.pair - probes
        return self.deadline(exp(sum(member.gain for member in members))) - self.confirmation(*members)

    def last_deadline(self) -> float:
        """Until when what was kept may be ablated: of the end, only what every result needs is kept back."""
        return max(self.context.allocation.last_deadline(self.state.speedup_so_far), self.deadline())


LIKELY = 0.95
"""The chance of a gain that is worth a part in what is confirmed together: an ablation drops what brings none."""


def quality_first(context: RunContext, state: SearchState, screened: Screened) -> Quality | None:
    """The quality level of a candidate that may change what is learnt, before it is confirmed faster.

    Where the baseline's first training is due, it takes turns with the candidate's now. None where quality is asked
    afterwards: of a change that leaves the training as it is, or one that may well be no gain.
    """
    candidate = screened.candidate
    if context.gate.risk_over(candidate.plan, state.incumbent) is not Risk.NUMERIC or not screened.plain:
        return None
    if state.trained is None:  # by probes at weights of the first steps; the end trains what is kept by it
        early = context.gate.quality(candidate.plan, state.incumbent, state.facts, state.objective)
        if early is not None and early.passed is not None:
            return early
    reserve = Costs(context, state).pairs(screened)
    train_first(context, state, candidate.plan, exp(screened.gain - screened.error), reserve)
    failure = context.gate.trainings.failure(candidate.plan)
    if failure is not None:
        return Quality(method="not_tested", passed=False, detail=failure.reason)
    return context.gate.quality(candidate.plan, state.incumbent, state.facts, state.objective)


def refused(state: SearchState, screened: Screened, quality: Quality, more: str = "") -> None:
    """Writes the quality into the trial of a screening; another training, or too high a price, ends it."""
    verdict = {True: Verdict.NO_GAIN, False: Verdict.QUALITY_LOST, None: Verdict.INCONCLUSIVE}[quality.passed]
    reason = "; ".join(text for text in (quality.detail, more) if text)
    state.amend(screened.trial.id, reason, verdict=verdict, quality=quality)


@dataclass(frozen=True)
class Suspect:
    """A change that is left out of a plan that trains otherwise, with the rest of that plan, why, and the screenings of
    candidates that have it, which are put aside."""

    change: Change
    rest: tuple[Change, ...]
    reason: str
    verdict: Verdict
    aside: list[Screened] = field(default_factory=list)


class Suspects:
    """Changes that are left out of all that is confirmed, by blocks of steps or by whole runs."""

    def __init__(self, context: RunContext, state: SearchState) -> None:
        self.context, self.state = context, state
        self.all = list[Suspect]()

    def of(self, change: Change) -> Suspect | None:
        """Why a change is left out of all that is confirmed; None where it is not."""
        return next((each for each in self.all if each.change == change), None)

    def in_candidate(self, candidate: Candidate) -> bool:
        return any(self.of(change) for change in candidate.changes)

    def add(self, whole: Candidate, quality: Quality, change: Change | None = None) -> Suspect:
        """Leaves a change out of what is confirmed for a whole's quality, the likeliest reason where None."""
        if change is None:
            change = self.likeliest(whole.changes) if whole.combined else whole.change
        rest = tuple(other for other in whole.changes if other != change) if whole.combined else ()
        lost = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        suspect = Suspect(change, rest, f"{quality.detail} (tried with {named(whole.plan.names())})", lost)
        self.all.append(suspect)
        return suspect

    def most_doubtful(self, candidate: Candidate) -> tuple[Change, Quality] | None:
        """What goes first from a candidate that is not shown to train as well, with its quality; else None."""
        context, state = self.context, self.state
        level = context.gate.quality(candidate.plan, state.incumbent, state.facts, state.objective)
        if level is None or level.passed or (level.passed is None and context.gate.accept_undecided):
            return None
        return self.likeliest(candidate.changes, by_data=level.rests_on == BATCHES), level

    def likeliest(self, changes: Sequence[Change], by_data: bool = False) -> Change:
        """Of changes that together do not train as well, the likeliest reason.

        Args:
            by_data: batches differ, or probes saw them train alike and a whole run ends with another metric: what
                makes other batches, or other draws of augmentation, comes before what rounds.
        """
        registry, incumbent = self.context.runner.registry, self.state.incumbent
        before = registry.fold(incumbent)

        def key(change: Change) -> tuple[bool, int, float, bool]:
            """By whether it makes other batches, its risk, and its rounding."""
            risk, plan = registry[change.strategy].risk.rank, standing_plan(registry, incumbent, (change,))
            if plan is None:
                return by_data, risk, 1.0, True
            after = registry.fold(plan)
            other = (after.loader, after.dataset, after.sampler) != (before.loader, before.dataset, before.sampler)
            return by_data and other, risk, self.context.gate.rounding(plan), other

        return max(drawn_otherwise(self.context, self.state, changes) or changes, key=key)

    def without_likeliest(self, candidate: Candidate) -> Candidate | None:
        """A combined candidate less the likeliest reason of another training; None where nothing new is left."""
        if not candidate.combined:
            return None
        out = self.likeliest(candidate.changes)
        rest = tuple(change for change in candidate.changes if change != out)
        parts = {name: part for name, part in candidate.parts.items() if out.strategy not in (name, part[0])}
        return combined_of(self.context.runner.registry, self.state, rest, parts)


class Confirmations:
    """Confirms what did well in the screening.

    ``seen_bottleneck``: under which each strategy was tried, by its name; ``skipped``: what is not tried alone in this
    round; ``undecided``: changes of which probes do not report whether they train as well.
    """

    def __init__(self, context: RunContext, state: SearchState) -> None:
        self.context, self.state, self._costs = context, state, Costs(context, state)
        self.seen_bottleneck: dict[str, str | None] = {}
        self.skipped: Sequence[Skipped] = ()
        self.undecided = list[Change]()
        self._found: list[Screened] = []
        self.suspects = Suspects(context, state)

    def tried(self, strategy: str) -> None:
        """A strategy was tried, and comes back under another bottleneck only."""
        self.seen_bottleneck[strategy] = self.state.rounds[-1].bottleneck

    def whole_of(self, candidate: Candidate, case: Case, likely: Iterable[Part] = ()) -> Candidate:
        """A candidate with ``likely`` parts, and with what predictions promise besides, too little alone."""
        parts = [one for one in (*likely, *promised_of(self.skipped)) if not any(map(self.suspects.of, one[0]))]
        return with_parts(self.context, self.state, case, candidate, parts)

    def _joined(self, screened: Screened, case: Case) -> Screened:
        """The same with what else is likely to be a gain, as good as beliefs make them together. What may as well be
        none comes along where the time holds the ablation that would find that out."""
        state, joined = self.state, screened
        for likely in (LIKELY, 1.0):
            candidate = self.whole_of(screened.candidate, case, likely_parts(screened, self._found, likely))
            if candidate is screened.candidate:
                return screened
            gain, error = state.beliefs.of(candidate.members)
            joined = replace(screened, candidate=candidate, gain=gain, error=error)
            changes = len(state.found) + len(candidate.changes)
            end = self.context.allocation.end(changes, state.speedup_so_far * exp(gain))
            if self.context.now() + self._costs.confirmation(joined) + end <= self.context.allocation.budget:
                return joined
        return joined

    def in_order(self, waiting: list[Screened], screening: Screening) -> bool:
        """Confirms one after the other until one is kept; what the time does not hold waits for the others."""
        later = list[Screened]()
        self._found = [*waiting, *screening.found]
        for each in self.suspects.all:
            self._put_aside(each, waiting, screening)
        while waiting and not self.context.stopping():
            screened = waiting.pop(0)
            left = self._left_for(screened)
            joined = self._joined(screened, screening.case)
            in_time = self._costs.confirmation(joined) <= left
            if in_time and self._allowed(quality_first(self.context, self.state, joined)):
                screened = joined
            if self._costs.pairs(screened) > left:
                later.append(screened)
                continue
            if not self._learns_as_well(screened, screening, waiting):
                continue
            trial = self._confirm(screened, len(waiting))
            if trial is not None and trial.verdict is Verdict.KEPT:
                return True
            if trial is not None and trial.verdict is Verdict.QUALITY_LOST:
                with closing(screening):
                    self.less_doubtful(screened, screening, waiting, trial.quality)
        open_ = (each for each in later if not self.suspects.in_candidate(each.candidate))
        trials = (self._confirm(screened, 0) for screened in open_)
        return any(trial is not None and trial.verdict is Verdict.KEPT for trial in trials)

    def on_incumbent(self, found: Iterable[Screened]) -> list[Screened]:
        """The same on the incumbent as it is now, by their gain."""
        registry, incumbent = self.context.runner.registry, self.state.incumbent
        plans = ((one, standing_plan(registry, incumbent, one.candidate.changes)) for one in found)
        return self.in_order_of_gain(
            replace(one, candidate=replace(one.candidate, plan=plan)) for one, plan in plans if plan is not None
        )

    def _left_for(self, screened: Screened) -> float:
        """Seconds for its confirmation."""
        return self._costs.deadline(exp(screened.gain)) - self.context.now()

    def _allowed(self, quality: Quality | None) -> bool:
        """Whether what is known of its quality does not speak against confirming it."""
        return quality is None or quality.passed is True or self.context.gate.accept_undecided

    def _learns_as_well(self, screened: Screened, screening: Screening, waiting: list[Screened]) -> bool:
        """Whether nothing speaks against confirming it now: what is known of its quality, or may be asked afterwards. A
        combined candidate that is not shown to train as well comes back without its doubtful part."""
        context, state = self.context, self.state
        quality = quality_first(context, state, screened)
        if quality is None or self._allowed(quality):
            price = log(context.gate.price(screened.candidate.plan, state.incumbent))
            if quality is not None and screened.gain + screened.error - price < log1p(context.min_gain) < price:
                refused(state, screened, quality, f"{expm1(price):.1%} more steps are more than a step saves")
                return False
            first, *others = self.in_order_of_gain([screened, *waiting])
            if first is not screened:  # with its price it is worth less than what comes next
                waiting[:] = [first, *others]
            return first is screened
        refused(state, screened, quality)
        if quality.passed is None and not screened.candidate.combined:
            self.undecided.append(screened.candidate.change)
            state.forget(screened.candidate.changes)
        with closing(screening):
            self.less_doubtful(screened, screening, waiting, quality if quality.passed is False else None)
        return False

    def in_order_of_gain(self, found: Iterable[Screened]) -> list[Screened]:
        """Candidates by their gain, the largest first, less the steps that their rounding costs as far as is known."""
        gate, incumbent = self.context.gate, self.state.incumbent
        return sorted(found, key=lambda one: log(gate.price(one.candidate.plan, incumbent)) - one.gain)

    def less_doubtful(
        self, screened: Screened, screening: Screening, waiting: list[Screened], quality: Quality | None = None
    ) -> None:
        """Screens a combined candidate without the likeliest reasons of another training, which are suspected of the
        quality of the whole where that is given; the rest waits then."""
        context, candidate = self.context, screened.candidate
        while not context.stopping():
            if quality is not None:
                self._clear(candidate, waiting)
                self._put_aside(self.suspects.add(candidate, quality), waiting, screening)
            rest = self.suspects.without_likeliest(candidate)
            again = screening.screen(rest) if rest is not None else None
            if rest is None or again is None:
                return
            if again.trial.verdict is Verdict.INCONCLUSIVE:
                waiting[:] = self.in_order_of_gain([*waiting, again])
            quality = again.trial.quality
            if again.trial.verdict is not Verdict.QUALITY_LOST or screening.each > self._left_for(again):
                return
            candidate = rest

    def _put_aside(self, suspected: Suspect, waiting: list[Screened], screening: Screening) -> None:
        for found in (waiting, screening.found):
            for each in [one for one in found if suspected.change in one.candidate.changes]:
                found.remove(each)
                suspected.aside.append(each)
                self.state.amend(each.trial.id, suspected.reason, verdict=suspected.verdict)

    def _clear(self, lost: Candidate, waiting: list[Screened]) -> None:
        """Confirms again what was suspected and is not in a plan that trains otherwise all the same."""
        cleared = [one for one in self.suspects.all if all(change in one.rest for change in lost.changes)]
        self.suspects.all = [one for one in self.suspects.all if one not in cleared]
        for each in cleared:
            for one in each.aside:
                known = self.suspects.in_candidate(one.candidate)
                if not known and not all(change in one.candidate.changes for change in lost.changes):
                    self.state.amend(one.trial.id, "cleared: the rest trains otherwise too", verdict=one.trial.verdict)
                    waiting.append(one)
        waiting[:] = self.in_order_of_gain(waiting)

    def _confirm(self, screened: Screened, remaining: int) -> Trial | None:
        """Confirms the best of the screening; None without the time for two pairs of processes."""
        context, state = self.context, self.state
        candidate = screened.candidate
        left, needed = self._left_for(screened), self._costs.pairs(screened)
        late = needed > left and not screened.plain
        least = min(needed, FEWEST_PAIRS * context.allocation.pair)
        if context.stopping() or late or left < least:
            state.unconfirmed[screened.trial.id] = needed - max(left, 0)
            text = f"to confirm it takes about {needed:.0f} s; {max(left, 0):.0f} s were left"
            state.amend(screened.trial.id, text)
            return None
        # its confirmation takes its place
        state.trials = [trial for trial in state.trials if trial.id != screened.trial.id]
        self.tried(candidate.strategy.name)
        return confirm(
            context,
            state,
            candidate,
            deadline=context.now() + left,
            number=screened.trial.id,
            seconds=left,
            note=f"seen as {exp(screened.gain):.2f}x in the screening",
            remaining=remaining,
            earlier=screened.pairs(state.incumbent),
        )
