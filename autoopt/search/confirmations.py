"""Confirmations: what did well in the screening, by the gain that a second of deciding it may bring.

To decide a change is to confirm, by fresh pairs of processes, that it is faster, and that it trains as well: without
the time for the second, the first is not begun. The likeliest reason of a plan that trains otherwise is suspected, and
left out until it is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import exp, expm1, log, log1p
from statistics import median

from autoopt.records import Change, Quality, Trial, Verdict
from autoopt.search.accept.levels import BATCHES
from autoopt.search.candidate import (
    FEWEST_PAIRS,
    Candidate,
    OpenTrial,
    Part,
    apply_to,
    combined_of,
    makes_other_samples,
    promised_gain,
    standing_plan,
    together_with,
    trained_parameters,
)
from autoopt.search.compare.comparison import Decision, PairOfProcesses
from autoopt.search.compare.noise import compiled_again, learned
from autoopt.search.compare.sequential_test import alpha_of
from autoopt.search.first_training import expected, train_first, train_with
from autoopt.search.outcome import named
from autoopt.search.planner import Skipped
from autoopt.search.run_context import RunContext
from autoopt.search.screening import Costs, Screened, Screening, likely_parts
from autoopt.search.state import SearchState
from autoopt.strategy import Case, Risk

ONCE_AT_MOST = 0.05
"""Of the planned steps: more seconds at a start than that are weighed against the steps to the target."""


def confirm(
    context: RunContext,
    candidate: Candidate,
    *,
    deadline: float,
    seconds: float,
    number: int | None = None,
    note: str = "",
    remaining: int = 0,
    earlier: Sequence[PairOfProcesses] = (),
) -> Trial:
    """The trial of a candidate on the incumbent, which it is thereafter where it is kept.

    Args:
        seconds: for its comparison; one that looks worth keeping may take half as much again.
        number: of the screening that it follows, whose trial it replaces; a new one where None.
        note: where the candidate comes from, for the reason that the report shows.
        earlier: pairs of processes from which its comparison goes on; beliefs know them.
    """
    state = context.state
    opened = OpenTrial(context, candidate, "confirming", number, remaining)
    number, alpha = opened.number, alpha_of(len(state.comparisons), len(state.kept()))
    comparison = context.compare(
        "trial",
        state.incumbent,
        candidate.plan,
        seconds=seconds,
        more_seconds=seconds / 2,
        deadline=deadline,
        purpose=f"trial {number}",
        progress_id=number,
        earlier=earlier,
        price=context.gate.price(candidate.plan, state.incumbent),
        alpha_accept=alpha,
    )
    comparison = state.with_fixed_costs(comparison)
    before, after = comparison.incumbent.fixed_seconds, comparison.candidate.fixed_seconds
    once = median(after) - median(before) if before and after else 0.0
    dear = once > ONCE_AT_MOST * (state.planned_seconds or expected(context))
    reported = _shown_by_probes(context, candidate) and not dear
    # whole runs are of the patch, which is known once what was confirmed together was ablated
    whole = context.shown_by_whole_runs(candidate.plan)
    if not reported and comparison.decision is Decision.ACCEPT and whole is None:
        train_with(context, candidate.plan, comparison)
    state.comparisons[number] = comparison
    state.learn(candidate.members, comparison, known=len(earlier))
    ruling = context.gate.decide(candidate.plan, comparison, deadline=deadline, number=number, alpha_accept=alpha)
    state.noise = learned(state.noise, comparison)
    again = "" if comparison.incumbent.recompilations else compiled_again(comparison.candidate)
    if again:
        context.warn(f"trial {number}: {again}")
    trained, parameters = trained_parameters(context, candidate.plan), ""
    if candidate.strategy.risk is Risk.MODEL and trained is not None:
        parameters = f"trains {trained:,} parameters of {state.facts.model.trainable_parameters:,}"
    notes = (ruling.reason, parameters, again, note)
    ruling = ruling.model_copy(update={"reason": "; ".join(text for text in notes if text)})
    return opened.ended(ruling, comparison)


def _shown_by_probes(context: RunContext, candidate: Candidate) -> bool:
    """Whether no training is needed to tell its quality: it is exact, or was probed and passed."""
    state, gate = context.state, context.gate
    risk = gate.risk_over(candidate.plan, state.incumbent)
    if risk is not Risk.NUMERIC or not gate.probes.has(candidate.plan):
        return risk is Risk.EXACT
    level = gate.quality(candidate.plan, state.incumbent)
    return level is not None and level.passed is True


def drawn_otherwise(context: RunContext, changes: Sequence[Change]) -> list[Change]:
    """Those of changes that make other samples of data that draw at random; none where one trains otherwise."""
    if context.state.facts.dataset.deterministic is not False:
        return []
    if any(context.registry[change.strategy].risk.trains_otherwise for change in changes):
        return []
    return [change for change in changes if makes_other_samples(context, change)]


LIKELY = 0.95
"""The chance of a gain that is worth a part in what is confirmed together: an ablation drops what brings none."""


def quality_first(context: RunContext, screened: Screened) -> Quality | None:
    """The quality level of a candidate that may change what is learnt, before it is confirmed faster.

    Where the baseline's first training is due, it takes turns with the candidate's now. None where quality is asked
    afterwards: of a change that leaves the training as it is, or one that may well be no gain.
    """
    state, candidate = context.state, screened.candidate
    if context.gate.risk_over(candidate.plan, state.incumbent) is not Risk.NUMERIC or not screened.plain:
        return None
    if state.trained is None:  # by probes at weights of the first steps; the end trains what is kept by it
        early = context.gate.quality(candidate.plan, state.incumbent)
        if early is not None and early.passed is not None:
            return early
    reserve = Costs(context).pairs(screened)
    train_first(context, candidate.plan, exp(screened.gain - screened.error), reserve)
    failure = context.gate.trainings.failure(candidate.plan)
    if failure is not None:
        return Quality(method="not_tested", passed=False, detail=failure.reason)
    return context.gate.quality(candidate.plan, state.incumbent)


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

    def __init__(self, context: RunContext) -> None:
        self.context, self.state = context, context.state
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
        level = self.context.gate.quality(candidate.plan, self.state.incumbent)
        if level is None or level.passed or (level.passed is None and self.context.gate.accept_undecided):
            return None
        return self.likeliest(candidate.changes, by_data=level.rests_on == BATCHES), level

    def likeliest(self, changes: Sequence[Change], by_data: bool = False) -> Change:
        """Of changes that together do not train as well, the likeliest reason.

        Args:
            by_data: batches differ, or probes saw them train alike and a whole run ends with another metric: what
                makes other batches, or other draws of augmentation, comes before what rounds.
        """
        registry, gate = self.context.registry, self.context.gate

        def key(change: Change) -> tuple[bool, int, float, bool]:
            """By whether it makes other batches, its risk, and its rounding."""
            risk, plan = registry[change.strategy].risk.rank, standing_plan(self.context, (change,))
            if plan is None:
                return by_data, risk, 1.0, True
            other = not gate.same_data(plan, self.state.incumbent)
            return by_data and other, risk, gate.rounding(plan), other

        return max(drawn_otherwise(self.context, changes) or changes, key=key)

    def without_likeliest(self, candidate: Candidate) -> Candidate | None:
        """A combined candidate less the likeliest reason of another training, and what only serves that; None where
        nothing new is left."""
        if not candidate.combined:
            return None
        out = self.likeliest(candidate.changes)
        parts = {name: part for name, part in candidate.parts.items() if out.strategy not in (name, part[0])}
        rest = tuple(change for change in candidate.changes if change.strategy in parts)
        return combined_of(self.context, rest, parts)


class Confirmations:
    """Confirms what did well in the screening.

    ``seen_bottleneck``: under which each strategy was tried, by its name; ``skipped``: what is not tried alone in this
    round; ``undecided``: changes of which probes do not report whether they train as well.
    """

    def __init__(self, context: RunContext) -> None:
        self.context, self.state, self._costs = context, context.state, Costs(context)
        self.seen_bottleneck: dict[str, str | None] = {}
        self.skipped: Sequence[Skipped] = ()
        self.undecided = list[Change]()
        self._found: list[Screened] = []
        self.suspects = Suspects(context)

    def tried(self, strategy: str) -> None:
        """A strategy was tried, and comes back under another bottleneck only."""
        self.seen_bottleneck[strategy] = self.state.rounds[-1].bottleneck

    def whole_of(self, candidate: Candidate, case: Case, likely: Iterable[Part] = ()) -> Candidate:
        """A candidate with ``likely`` parts, the likeliest first, and with what predictions promise besides, too little
        alone: the whole is confirmed."""
        context = self.context
        small = (each for each in self.skipped if promised_gain(each.strategy, each.predicted) is not None)
        promised = (((each.change,), {each.strategy.name: (each.strategy.name, each.predicted)}) for each in small)
        for changes, members in (*likely, *promised):
            plan = None if any(map(self.suspects.of, changes)) else together_with(context, candidate.changes, changes)
            if plan in (None, candidate.plan) or not apply_to(context, case, changes, candidate.plan):
                continue
            companions, joined = (*candidate.companions, *changes), {**candidate.parts, **members}
            candidate = replace(candidate, companions=companions, plan=plan, combined=True, joined=joined)
        return candidate

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
            if in_time and self._allowed(quality_first(self.context, joined)):
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
        quality = quality_first(context, screened)
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
            candidate,
            deadline=context.now() + left,
            number=screened.trial.id,
            seconds=left,
            note=f"seen as {exp(screened.gain):.2f}x in the screening",
            remaining=remaining,
            earlier=screened.pairs(state.incumbent),
        )
