"""Screening: seconds for every candidate, to find what is worth confirming. No claim is made here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf, log, log1p
from statistics import fmean

from autoopt.records import Estimate, Plan, Verdict
from autoopt.search.accept.evidence import Judgement
from autoopt.search.accept.gate import NOT_TESTED, judge
from autoopt.search.accept.time_to_target import same_steps_ratio
from autoopt.search.budget_allocation import PATIENCE, TimeLimits
from autoopt.search.candidate import (
    Answer,
    Candidate,
    Screened,
    candidate_of,
    plan_of,
    rival_strategies,
    settings_of,
    skip,
)
from autoopt.search.compare.comparison import Comparison, Decision
from autoopt.search.compare.contest import INTERLEAVED, SWITCHED, within
from autoopt.search.compare.sequential_test import between_process_of
from autoopt.search.compare.statistics import TwoLevel
from autoopt.search.confirmation import OpenTrial
from autoopt.search.parallel import ParallelRace, open_race
from autoopt.search.planner import PLUGIN_ERRORS, Proposal, best_of, by_promise
from autoopt.search.race import Race, SwitchedScreenings
from autoopt.search.run_context import RunContext, key_of
from autoopt.search.state import SearchState
from autoopt.strategy import Case, Risk, Strategy


class Screening:
    """Screens candidates on the present incumbent; ``found`` is what did well.

    Args:
        latest: until when may be screened more, on the run's clock, by what was found and whether the next
            screening's pair counts.
        confirming: seconds that the confirmation of what was found takes.
    """

    def __init__(
        self,
        context: RunContext,
        state: SearchState,
        case: Case,
        latest: Callable[[Sequence[Screened], bool], float],
        confirming: Callable[[Screened], float],
    ) -> None:
        self.context, self.state, self.case = context, state, case
        self._latest, self._confirming = latest, confirming
        self._began = context.now()
        self.found: list[Screened] = []
        self._spent: list[float] = []
        self._latest_error = 0.0
        self._unselected = True  # predictions chose what is screened first, and no figure
        self._fresh()

    def _fresh(self, screenings: int = 1) -> None:
        """From now on looks are at new processes."""
        race = self._race = open_race(self.context, self.state, screenings, self.deadline)
        live = race.hand_over if isinstance(race, Race) else lambda: None
        self._switched = SwitchedScreenings(self.context, self.state, self.case, live)

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
        return self._latest(self.found, self._unselected)

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
        context, state, waiting = self.context, self.state, by_promise(proposals)
        if context.runner.parallel > 1:
            self.close()
            self._fresh(len(waiting))
        talks, visited = list[Talk](), False
        while waiting and not self.over and self.first(waiting) is None:
            if not visited and (self._switched.able(waiting[0]) or self._all_fit(waiting)):
                visited = True  # where not all can be seen, not before what promises more
                talks += self._switch(waiting)
                continue
            plans = ((plan_of(context, state, each.strategy, self.case, each.setting), each) for each in waiting)
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
        rate = best.worth / (self.context.now() - self._began + self._confirming(best))
        better = (each for each in waiting if self._worth(each, best) / self._seconds(each) >= rate)
        in_source = self.context.runner.in_source  # what no patch of a script says is not in its headline
        return None if any(in_source(Plan(changes=(each.change,))) for each in better) else best

    def _worth(self, proposal: Proposal, best: Screened) -> float:
        """The log gain to be expected of a screening, next to the best; of a rival, beyond what it would replace."""
        beliefs, registry = self.state.beliefs, self.context.runner.registry
        rivals = [m for m in best.candidate.members if rival_strategies(registry[m[0]], proposal.strategy)]
        over = max((beliefs.of([member])[0] for member in rivals), default=0.0)
        return beliefs.worth_of_seeing((proposal.strategy.name, proposal.predicted), self._latest_error, over)

    def _seconds(self, proposal: Proposal) -> float:
        try:
            once = proposal.strategy.once_seconds(self.case, proposal.setting) or 0.0
        except PLUGIN_ERRORS:
            once = 0.0
        return once + (self._switched.each if self._switched.able(proposal) else self.each)

    def _switch(self, waiting: list[Proposal]) -> list[Talk]:
        """Screens what a running process can take on, all in one, and takes it from those that wait."""
        chosen = [] if self.over else self._switched.among(waiting, self.deadline - self.context.now())
        talks = {proposal.strategy.name: Talk(self, proposal.strategy) for proposal in chosen}
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
        opened = OpenTrial(context, state, candidate, "screening", remaining=remaining)
        self._switched.visit([candidate.plan], self.deadline)
        seen = self._measured(candidate, opened.number)
        if seen.mode == SWITCHED:
            opened.began = min(opened.began, context.now() - seen.seconds)  # it may have been seen with others, before
        else:
            self._spent.append(context.now() - opened.began)
        gain = self._gain(candidate, seen)
        trial = opened.ended(self._ruling(candidate, seen), seen)
        if gain is None:
            return None
        self._latest_error = self._error(seen)
        state.beliefs.saw(candidate.members, gain, self._latest_error)
        mean, error = state.beliefs.of(candidate.members)
        counts, self._unselected = self._unselected and seen.mode == INTERLEAVED, False
        if not counts:  # where others were seen, figures select
            self.found = [replace(one, unselected=None) for one in self.found]
        screened = Screened(candidate, trial, mean, error, unselected=seen if counts else None)
        if trial.verdict is Verdict.INCONCLUSIVE:
            self.found.append(screened)
        return screened

    def limits(self, predicted: Estimate | None) -> TimeLimits:
        """Limits of the start that a screening makes, by what it may save at best and the time that is left."""
        saved, left = self.state.most_saved(predicted), self.deadline - self.context.now()
        return self.context.runner.limits.for_screening(saved, left)

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

    def _gain(self, candidate: Candidate, seen: Comparison) -> float | None:
        """Log speedup of the time to target, else of throughput; None where nothing was measured."""
        if seen.estimate is None or seen.failure is not None:
            return None
        gate, state = self.context.gate, self.state
        evidence = gate.evidence(candidate.plan, state.incumbent, state.facts)
        ratio = same_steps_ratio(seen, evidence, state.objective)
        return log(ratio.value if ratio else seen.estimate.value)

    def _ruling(self, candidate: Candidate, seen: Comparison) -> Judgement:
        """The verdict of a screening where it is plain after seconds, or something else refuses; else none."""
        context, state = self.context, self.state
        open_ = seen.decision in (Decision.INCONCLUSIVE, Decision.ACCEPT)
        # blocks of a process that is switched have no losses to judge, and what has no figure was not seen faster
        asked = Decision.INCONCLUSIVE if seen.mode == SWITCHED or seen.estimate is None else Decision.ACCEPT
        known = context.gate.evidence(candidate.plan, state.incumbent, state.facts)
        found = seen.model_copy(update={"decision": asked}) if open_ else seen
        ruling = judge(found, known, state.objective, state.noise)  # nothing is probed or trained for a screening
        if not open_ or seen.estimate is None:
            return ruling
        if ruling.verdict not in (Verdict.KEPT, Verdict.INCONCLUSIVE, Verdict.NO_GAIN):
            return ruling
        gain, least = self._gain(candidate, seen), log1p(context.min_gain)
        refused = ruling.verdict is Verdict.NO_GAIN and log(seen.estimate.value) >= least
        if refused and gain is not None and gain + self._error(seen) < least:
            return ruling  # what it costs once outweighs faster steps by more than a screening may err
        where = ", in one process with the incumbent" if seen.mode == SWITCHED else ""
        text = f"screened at {seen.estimate.value:.2f}x in {seen.seconds:.0f} s{where}; no claim is made"
        return ruling.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": text, "quality": NOT_TESTED})

    def _error(self, seen: Comparison) -> float:
        """Standard error of the log speedup of a screening, how processes differ included; 0 where it showed none."""
        if not seen.pairs:
            return 0.0
        noise = self.state.noise
        between = between_process_of(within(noise) if seen.mode == SWITCHED else noise)
        return TwoLevel(*seen.logs, between).error


class Talk:
    """A conversation with a strategy. ``best``: the largest log gain so far; ``goes_on``: it may have more settings."""

    def __init__(self, screening: Screening, strategy: Strategy) -> None:
        self._screening, self.strategy = screening, strategy
        self._context, self._state, self._case = screening.context, screening.state, screening.case
        self._settings = settings_of(self._context, self._state, strategy, screening.case)
        self.best = 0.0
        self.goes_on = True
        self._upcoming: Candidate | None = None
        self._answer: Answer = lambda trial: None

    def upcoming(self) -> Candidate | None:
        """The candidate that is screened next; None where there is none, or nothing new to try in it."""
        if self._upcoming is None and self.goes_on:
            self._upcoming = self._next()
        return self._upcoming

    def _next(self) -> Candidate | None:
        found = next(self._settings, None)
        if found is None:
            self.goes_on = False
            return None
        setting, self._answer = found
        candidate = candidate_of(self._context, self._state, self.strategy, self._case, setting)
        # a prediction must allow a gain worth having, as the planner asks of a strategy's first setting
        least, predicted = 1.0 + self._context.min_gain, candidate.predicted if candidate is not None else None
        if candidate is None or (predicted is not None and best_of(self.strategy, predicted, self._case) < least):
            self._answer(None)
            return None
        return candidate

    def ask(self, remaining: int) -> None:
        """Screens the next setting, and answers: kept where it is the best of this strategy so far."""
        candidate, self._upcoming = self.upcoming(), None
        if candidate is None:
            return
        context, state = self._context, self._state
        limits, once = self._screening.limits(candidate.predicted), context.runner.once.get(self.strategy.name, 0.0)
        room = min(limits.share, limits.warm_up or inf)
        if once > PATIENCE * room:
            state.unseen[self.strategy.name] = once
            text = f"no time to screen it: its start takes about {once:.0f} s once, and may take {room:.0f} s here"
            skip(context, state, self.strategy, Verdict.NOT_TRIED, text)
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
