"""Screening: seconds for every candidate, to find what is worth confirming, and what confirming it costs. No claim is
made here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, inf, log, log1p, sqrt
from statistics import fmean

from scipy.stats import norm

from autoopt.records import Change, Estimate, Plan, Trial, Verdict
from autoopt.search.accept.evidence import FEWEST_SEEDS, Evidence, Judgement
from autoopt.search.accept.gate import NOT_TESTED, judge
from autoopt.search.accept.time_to_target import same_steps_ratio
from autoopt.search.budget_allocation import PATIENCE, TimeLimits
from autoopt.search.candidate import (
    FEWEST_PAIRS,
    HOPE,
    PLAIN,
    Answer,
    Candidate,
    OpenTrial,
    Part,
    apply_to,
    candidate_of,
    combined_of,
    plan_of,
    promised_gain,
    settings_of,
    skip,
    standing_plan,
)
from autoopt.search.compare.comparison import Comparison, Decision, PairOfProcesses
from autoopt.search.compare.contest import INTERLEAVED, SWITCHED, within
from autoopt.search.compare.sequential_test import ALPHA, between_process_of, unseen_mode
from autoopt.search.compare.statistics import TwoLevel, known_radius
from autoopt.search.planner import PLUGIN_ERRORS, Proposal, best_of, by_promise, gain_where_it_is_one
from autoopt.search.race import ParallelRace, Race, SwitchedScreenings, open_race
from autoopt.search.run_context import MOST_PAIRS, RunContext, key_of
from autoopt.strategy import Case, Risk, Strategy

INPUT = frozenset({"storage", "preparation", "collate"})
"""Stages that deliver batches one after the other: ways to shorten them are rivals, of which the best is taken."""


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


def likely_parts(screened: Screened, found: Iterable[Screened], likely: float) -> list[Part]:
    """Screened changes that are confirmed together with a candidate: clear gains, those whose chance is ``likely``, and
    predicted gains that the screening does not contradict."""
    parts = list[Part]()
    for other in sorted(found, key=lambda one: -one.gain):
        candidate = other.candidate
        promised = other.gain > other.error and promised_gain(candidate.strategy, candidate.predicted) is not None
        chance = norm.cdf(other.gain / max(other.error, 1e-9))  # that it is a gain at all
        if not other.rivals(screened) and (promised or other.plain or chance > likely):
            parts.append((candidate.changes, candidate.parts))
    return parts


def combined(context: RunContext, members: Sequence[Screened]) -> Candidate | None:
    """The members' changes together, those of the better one where two set the same or exclude each other; None where
    they clash, or where nothing of the others is left."""
    changes: dict[str, Change] = {}
    for member in members:
        for change in member.candidate.changes:
            if not any(context.registry.exclude(change.strategy, taken) for taken in changes):
                changes.setdefault(change.strategy, change)
    parts = {name: part for member in reversed(members) for name, part in member.candidate.parts.items()}
    return combined_of(context, tuple(changes.values()), parts)


BLOCK_ERROR = 0.02
"""Standard error (log) of a pair of processes from its blocks, where it is not known."""


@dataclass(frozen=True)
class Costs:
    """Costs of deciding a candidate here, in seconds."""

    context: RunContext

    def pairs(self, *members: Screened) -> float:
        """Seconds of the pairs of processes that would confirm them together, if they are as good as they looked: by
        their interval, and by the chance of a slow mode unseen."""
        context, state = self.context, self.context.state
        gain = sum(member.gain + HOPE * member.error for member in members)
        starts = state.dearer_start(state.incumbent) + max(state.dearer_start(one.candidate.plan) for one in members)
        made = len(members[0].pairs(state.incumbent)) if len(members) == 1 else 0
        between, pairs = between_process_of(state.noise).sd, FEWEST_PAIRS
        while pairs < MOST_PAIRS:
            radius = known_radius(hypot(between, BLOCK_ERROR) / sqrt(pairs), ALPHA)
            if max(radius, unseen_mode(pairs, between, ALPHA)) < gain - log1p(context.min_gain):
                break
            pairs += 1
        return max(pairs - made, 1) * (context.allocation.pair + starts)

    def confirmation(self, *members: Screened) -> float:
        """The same with the probes that their quality takes; losses may stand in for those of exact changes."""
        incumbent, risk = self.context.state.incumbent, self.context.gate.risk_over
        plans = (m.candidate.plan for m in members)
        due = (self.context.probes_due(p, incumbent) for p in plans if risk(p, incumbent) is not Risk.EXACT)
        return self.pairs(*members) + max(due, default=0.0)

    def whole_runs(self) -> float:
        """Seconds of the least confirmation by whole runs, its probes and what then verifies it included; infinite
        where they show nothing of what is tried on the incumbent."""
        context, state = self.context, self.context.state
        untouched = context.run_seconds()
        if untouched is None or (state.found and not context.by_whole_runs):
            return inf
        run = untouched / max(state.speedup_so_far, 1.0)
        probes = context.probes_due(None, state.incumbent)
        return 2 * run + probes + (FEWEST_SEEDS * (untouched + run) if state.found else 0.0)

    def deadline(self, gain: float = 1.0) -> float:
        """Until when may be searched, on the run's clock, if what is tried next brings so much and is kept."""
        context, state, allocation = self.context, self.context.state, self.context.allocation
        speedup = state.speedup_so_far * max(gain, 1.0)
        if context.by_whole_runs:  # what comes on top is run whole again, as often as verifies it
            return allocation.last_deadline(speedup)
        usual = allocation.search_deadline(len(state.found), speedup)
        if state.found and context.confirmation(state.incumbent) and context.gate.trained_pairs(state.incumbent):
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
            probes = self.context.probes_due(None, self.context.state.incumbent)
            return self.deadline() - (FEWEST_PAIRS - counts) * self.context.allocation.pair - probes
        return self.deadline(exp(sum(member.gain for member in members))) - self.confirmation(*members)


class Screening:
    """Screens candidates on the present incumbent; ``found`` is what did well."""

    def __init__(self, context: RunContext, case: Case) -> None:
        self.context, self.state, self.case, self._costs = context, context.state, case, Costs(context)
        self._began = context.now()
        self.found: list[Screened] = []
        self._spent: list[float] = []
        self._latest_error = 0.0
        self._unselected = True  # predictions chose what is screened first, and no figure
        self._fresh()

    def _fresh(self, screenings: int = 1) -> None:
        """From now on looks are at new processes."""
        race = self._race = open_race(self.context, screenings, self.deadline)
        live = race.hand_over if isinstance(race, Race) else lambda: None
        self._switched = SwitchedScreenings(self.context, self.case, live)

    def _expect(self, candidates: Iterable[tuple[Plan, Estimate | None]]) -> None:
        """Notifies the race what will be screened next, so that looks on other places begin already."""
        if isinstance(self._race, ParallelRace):
            screenings = ((plan, self.limits(predicted)) for plan, predicted in candidates)
            self._race.expect(screenings, self.state.noise)

    def close(self) -> None:
        self._race.close()
        self._switched.close()

    @property
    def deadline(self) -> float:
        """Of the next look, on the run's clock."""
        return self._costs.latest(self.found, self._unselected)

    @property
    def each(self) -> float:
        """Seconds that a screening takes, as thought beforehand and as seen so far."""
        return fmean([self.context.allocation.screening, *self._spent])

    @property
    def over(self) -> bool:
        late = self.context.now() + self.each > self.deadline
        return late or self.state.ends_too_early or self.context.stopping()

    def run(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Screens the first setting of each, then at what the good ones ask for; gives back those without a screening.

        It ends early with a gain that is better confirmed first, and asks for further settings of that.
        """
        context, waiting = self.context, by_promise(proposals)
        if context.runner.parallel > 1:
            self.close()
            self._fresh(len(waiting))
        talks, visited = list[Talk](), False
        while waiting and not self.over and self.first(waiting) is None:
            if not visited and (self._switched.able(waiting[0]) or self._all_fit(waiting)):
                visited = True  # where not all can be seen, not before what promises more
                talks += self._switch(waiting)
                continue
            plans = ((plan_of(context, each.strategy, self.case, each.setting), each) for each in waiting)
            self._expect((plan, each.predicted) for plan, each in plans if plan is not None)
            talk = Talk(self, waiting.pop(0).strategy)
            talk.ask(len(waiting))
            talks.append(talk)
        best = self.first(waiting)
        talks = [talk for talk in talks if best is None or talk.strategy is best.candidate.strategy]
        talks.sort(key=lambda talk: -talk.best)
        while (asking := [talk for talk in talks if talk.goes_on][: self._race.places]) and not self.over:
            upcoming = (talk.upcoming() for talk in asking)
            self._expect((candidate.plan, candidate.predicted) for candidate in upcoming if candidate is not None)
            for talk in asking:
                if not self.over:
                    talk.ask(0)
        return waiting

    def _all_fit(self, waiting: Sequence[Proposal]) -> bool:
        """Whether there is time to screen all of them, those that a running process can take on in one."""
        needed = sum(self._switched.each if self._switched.able(each) else self.each for each in waiting)
        return self.context.now() + self.context.allocation.start_seconds + needed <= self.deadline

    def first(self, waiting: Sequence[Proposal]) -> Screened | None:
        """What is confirmed before anything else is screened; None where a screening is the better use of time.

        A screening has to promise more a second than the best so far is worth over all seconds until it is confirmed
        (Charnov, "Optimal foraging, the marginal value theorem", 1976). What follows is screened on the plan that it is
        for.
        """
        best = max(self.found, key=lambda screened: screened.worth, default=None)
        if best is None:
            return None
        rate = best.worth / (self.context.now() - self._began + self._costs.confirmation(best))
        better = (each for each in waiting if self._worth(each, best) / self._seconds(each) >= rate)
        in_source = self.context.runner.in_source  # what no patch of a script says is not in its headline
        return None if any(in_source(Plan(changes=(each.change,))) for each in better) else best

    def _worth(self, proposal: Proposal, best: Screened) -> float:
        """The log gain to be expected of a screening, next to the best; of a rival, beyond what it would replace: the
        change is taken only where the measurement, with its error, speaks for it (after the knowledge gradient:
        Frazier, Powell and Dayanik, SIAM J. Control Optim. 2008)."""
        beliefs, registry = self.state.beliefs, self.context.registry
        rivals = [m for m in best.candidate.members if rival_strategies(registry[m[0]], proposal.strategy)]
        over = max((beliefs.of([member])[0] for member in rivals), default=0.0)
        mean, spread = beliefs.of([(proposal.strategy.name, proposal.predicted)])
        return gain_where_it_is_one(mean - over, spread**2 / max(hypot(spread, self._latest_error), 1e-9))

    def _seconds(self, proposal: Proposal) -> float:
        try:
            once = proposal.strategy.once_seconds(self.case, proposal.setting) or 0.0
        except PLUGIN_ERRORS:
            once = 0.0
        return once + (self._switched.each if self._switched.able(proposal) else self.each)

    def _switch(self, waiting: list[Proposal]) -> list[Talk]:
        """Screens what a running process can take on, all in one, and takes it from those that wait."""
        able = [] if self.over else [proposal for proposal in waiting if self._switched.able(proposal)]
        left = self.deadline - self.context.now() - self.context.allocation.start_seconds
        in_time = able[: max(int(left / self._switched.each), 0)]
        talks = {proposal.strategy.name: Talk(self, proposal.strategy) for proposal in in_time}
        open_ = list(talks.values())
        while open_ and not self.over:
            upcoming = [talk.upcoming() for talk in open_]
            self._switched.visit([candidate.plan for candidate in upcoming if candidate is not None], self.deadline)
            for talk, candidate in zip(open_, upcoming, strict=True):
                if candidate is None or self._switched.knows(candidate.plan) or not self.over:
                    talk.ask(len(waiting))
                else:  # the time was up before it could be seen
                    self.state.forget(candidate.changes)
                    talks.pop(talk.strategy.name)
            open_ = [talk for talk in talks.values() if talk.goes_on and talk.best > 0]
        waiting[:] = [proposal for proposal in waiting if proposal.strategy.name not in talks]
        return list(talks.values())

    def screen(self, candidate: Candidate, remaining: int = 0) -> Screened | None:
        """One screening. None where the candidate failed or is plainly no gain, which its trial says."""
        context, state = self.context, self.state
        opened = OpenTrial(context, candidate, "screening", remaining=remaining)
        self._switched.visit([candidate.plan], self.deadline)
        seen = self._measured(candidate, opened.number)
        if seen.mode == SWITCHED:
            opened.began = min(opened.began, context.now() - seen.seconds)  # it may have been seen with others, before
        else:
            self._spent.append(context.now() - opened.began)
        gain: float | None = None
        known, error = context.gate.evidence(candidate.plan, state.incumbent), 0.0
        if seen.estimate is not None and seen.failure is None:  # of the time to target, else of throughput
            ratio = same_steps_ratio(seen, known)
            gain = log(ratio.value if ratio else seen.estimate.value)
        if seen.pairs:  # how processes differ included
            between = between_process_of(within(state.noise) if seen.mode == SWITCHED else state.noise)
            error = TwoLevel(*seen.logs, between).error
        trial = opened.ended(self._ruling(seen, known, gain, error), seen)
        if gain is None:
            return None
        self._latest_error = error
        state.beliefs.saw(candidate.members, gain, error)
        mean, error = state.beliefs.of(candidate.members)
        counts, self._unselected = self._unselected and seen.mode == INTERLEAVED, False
        if not counts:  # where others were seen, figures select
            self.found = [replace(one, unselected=None) for one in self.found]
        screened = Screened(candidate, trial, mean, error, unselected=seen if counts else None)
        if trial.verdict is Verdict.INCONCLUSIVE:
            self.found.append(screened)
        return screened

    def screen_rival(self) -> None:
        """Screens what did well with the best rival of it on top, since some that shorten the same stages serve
        together. What is no rival needs no screening for that."""
        good = [s for s in self.found if s.plain and not s.candidate.combined]

        def apart(one: Screened, other: Screened) -> bool:
            pairs = ((one.candidate, other.candidate), (other.candidate, one.candidate))
            plans = ((this.changes, standing_plan(self.context, that.changes)) for this, that in pairs)
            return not all(plan and apply_to(self.context, self.case, changes, plan) for changes, plan in plans)

        members = without_rivals(good, lambda one, other: one.rivals(other) or apart(one, other))
        taken = {member.candidate.strategy for member in members}
        others = sorted((s for s in good if s.candidate.strategy not in taken), key=lambda one: -one.gain)
        rival = next((s for s in others if not any(apart(s, member) for member in members)), None)
        candidate = None if rival is None or self.over else combined(self.context, [*members, rival])
        if candidate is not None:
            self.screen(candidate)

    def limits(self, predicted: Estimate | None) -> TimeLimits:
        """Limits of the start that a screening makes, by what it may save at best and the time that is left."""
        state = self.state
        saved: float | None = None
        step, steps = state.control.side.step_seconds if state.control else None, state.planned_steps
        if predicted is not None and step is not None and steps is not None:  # in a planned run
            if state.objective.users_target is not None and state.trained is not None:
                steps = min(steps, state.trained.steps)
            saved = steps * step.p50 * (1 - 1 / max(predicted.high, 1.0))
        return self.context.runner.limits.for_screening(saved, self.deadline - self.context.now())

    def _measured(self, candidate: Candidate, number: int) -> Comparison:
        context, state = self.context, self.state

        def measure() -> Comparison:
            usual = context.runner.limits
            context.runner.limits = self.limits(candidate.predicted)
            try:
                return self._race.screen(candidate.plan, state.noise, context.progress(number))
            finally:
                context.runner.limits = usual

        seen = self._switched.take(candidate.plan)
        if seen is None:
            self._switched.close()
            key = key_of(f"look {number}", state.incumbent, candidate.plan)
            seen = context.run.step("look", key, measure, Comparison)
        state.screenings.append(seen)
        return state.with_fixed_costs(seen)

    def _ruling(self, seen: Comparison, known: Evidence, gain: float | None, error: float) -> Judgement:
        """The verdict of a screening where it is plain after seconds, or something else refuses; else none."""
        open_ = seen.decision in (Decision.INCONCLUSIVE, Decision.ACCEPT)
        # blocks of a process that is switched have no losses to judge, and what has no figure was not seen faster
        asked = Decision.INCONCLUSIVE if seen.mode == SWITCHED or seen.estimate is None else Decision.ACCEPT
        found = seen.model_copy(update={"decision": asked}) if open_ else seen
        ruling = judge(found, known)  # nothing is probed or trained for a screening
        if not open_ or seen.estimate is None:
            return ruling
        if ruling.verdict not in (Verdict.KEPT, Verdict.INCONCLUSIVE, Verdict.NO_GAIN):
            return ruling
        least = log1p(self.context.min_gain)
        refused = ruling.verdict is Verdict.NO_GAIN and log(seen.estimate.value) >= least
        if refused and gain is not None and gain + error < least:
            return ruling  # what it costs once outweighs faster steps by more than a screening may err
        where = ", in one process with the incumbent" if seen.mode == SWITCHED else ""
        text = f"screened at {seen.estimate.value:.2f}x in {seen.seconds:.0f} s{where}; no claim is made"
        return ruling.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": text, "quality": NOT_TESTED})


class Talk:
    """A conversation with a strategy. ``best``: the largest log gain so far; ``goes_on``: it may have more settings."""

    def __init__(self, screening: Screening, strategy: Strategy) -> None:
        self._screening, self.strategy = screening, strategy
        self._settings = settings_of(screening.context, strategy, screening.case)
        self.best = 0.0
        self.goes_on = True
        self._upcoming: Candidate | None = None
        self._answer: Answer = lambda trial: None

    def upcoming(self) -> Candidate | None:
        """The candidate that is screened next; None where there is none, or nothing new to try in it."""
        if self._upcoming is not None or not self.goes_on:
            return self._upcoming
        found, context, case = next(self._settings, None), self._screening.context, self._screening.case
        if found is None:
            self.goes_on = False
            return None
        setting, self._answer = found
        candidate = candidate_of(context, self.strategy, case, setting)
        # a prediction must allow a gain worth having, as the planner asks of a strategy's first setting
        least, predicted = 1.0 + context.min_gain, candidate.predicted if candidate is not None else None
        if candidate is None or (predicted is not None and best_of(self.strategy, predicted, case) < least):
            self._answer(None)
            return None
        self._upcoming = candidate
        return candidate

    def ask(self, remaining: int) -> None:
        """Screens the next setting, and answers: kept where it is the best of this strategy so far."""
        candidate, self._upcoming = self.upcoming(), None
        if candidate is None:
            return
        context, state = self._screening.context, self._screening.state
        limits, once = self._screening.limits(candidate.predicted), context.runner.once.get(self.strategy.name, 0.0)
        room = min(limits.share, limits.warm_up or inf)
        if once > PATIENCE * room:
            state.unseen[self.strategy.name] = once
            text = f"no time to screen it: its start takes about {once:.0f} s once, and may take {room:.0f} s here"
            skip(context, self.strategy, Verdict.NOT_TRIED, text)
            self.goes_on = False
            return
        trials = len(state.trials)
        screened = self._screening.screen(candidate, remaining)
        trial = state.trials[trials]
        lost = trial.verdict is Verdict.QUALITY_LOST
        if screened is not None and not lost and screened.gain > self.best + log1p(context.min_gain):
            self.best = screened.gain
            self._answer(trial.model_copy(update={"verdict": Verdict.KEPT}))
        else:
            self._answer(trial)
        failure = state.screenings[-1].failure
        late = failure is not None and failure.kind == "timeout"  # another setting would take as long, of less time
        if late or (lost and self.strategy.risk is Risk.EXACT):  # that it changes what is learnt is no setting's matter
            self.goes_on = False
