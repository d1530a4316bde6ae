"""Tries one strategy: its settings in turn, each with its companions, each judged against the incumbent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from autoopt.errors import TrialFailed
from autoopt.events import TrialEnded, TrialStarted
from autoopt.records import Change, Estimate, JsonDict, Plan, Trial, Verdict
from autoopt.search.accept.evidence import Judgement
from autoopt.search.compare.comparison import Comparison, Decision
from autoopt.search.compare.noise import learned
from autoopt.search.planner import PLUGIN_ERRORS, Proposal, candidate_plan, plugin_error, predict
from autoopt.search.run_context import Earlier, RunContext
from autoopt.search.state import SearchState, changes_text
from autoopt.strategy import MOST_SETTINGS, Case, Strategy


@dataclass(frozen=True)
class Candidate:
    """A setting to try: its change, the companions that come with it, the plan of all, and what was predicted."""

    change: Change
    companions: tuple[Change, ...]
    plan: Plan
    predicted: Estimate | None


class StrategySearch:
    """The search over one strategy's settings in one round. ``remaining``: strategies that follow in this round."""

    def __init__(
        self,
        context: RunContext,
        state: SearchState,
        proposal: Proposal,
        case: Case,
        deadline: float,
        remaining: int = 0,
    ) -> None:
        self.context, self.state, self.case, self.remaining = context, state, case, remaining
        self.strategy = proposal.strategy
        self.deadline = deadline

    def run(self) -> bool:
        """Tries settings until the strategy has no more, or time is up. True where something was kept."""
        kept = False
        for setting, answer in _conversation(self.strategy, self.case):
            if isinstance(setting, BaseException):
                self._skip(Verdict.FAILED, plugin_error(setting))
                break
            if self.context.stopping() or self.context.now() + self.context.allocation.comparison > self.deadline:
                self._skip(Verdict.NOT_TRIED, "the time for the search is up")
                break
            trial = self._try(setting)
            kept = kept or (trial is not None and trial.verdict is Verdict.KEPT)
            answer(trial)
        return kept

    def go_on(self, earlier: Earlier) -> bool:
        """Goes on with a trial that was left undecided. True where it is kept now."""
        old = earlier.trial
        change = Change(strategy=old.strategy, setting=old.setting)
        plan = earlier.comparison.candidate.plan
        trial = self._measure(Candidate(change, old.companions, plan, old.predicted), earlier)
        return trial.verdict is Verdict.KEPT

    def _skip(self, verdict: Verdict, reason: str) -> None:
        if self.strategy.name not in {trial.strategy for trial in self.state.trials}:
            trial = self.state.skip(self.strategy, verdict, reason)
            self.context.announce(TrialEnded(at=self.context.now(), trial=trial))

    def _try(self, setting: JsonDict) -> Trial | None:
        """One setting with its companions. None where there was nothing new to try."""
        change = Change(strategy=self.strategy.name, setting=setting)
        try:
            companions = self._companions(setting)
            plan = candidate_plan(self.context.runner.registry, self.state.incumbent, (change, *companions))
            fold = self.context.runner.registry.fold
            if fold(plan) == fold(self.state.incumbent):
                self._skip(Verdict.NOT_TRIED, "the incumbent trains so already")
                return None
            predicted = predict(self.strategy, self.case, setting)
        except PLUGIN_ERRORS as error:
            self._skip(Verdict.FAILED, plugin_error(error))
            return None
        if not self.state.first_time((change, *companions)):
            return None
        return self._measure(Candidate(change, companions, plan, predicted))

    def _companions(self, setting: JsonDict) -> tuple[Change, ...]:
        registry, choice = self.context.runner.registry, self.context.choice
        wanted = []
        for companion in self.strategy.companions(self.case, setting):
            known = companion.strategy in registry and companion.strategy not in choice.skip
            if known and registry[companion.strategy].risk.value in choice.allow:
                wanted.append(companion)
        return tuple(wanted)

    def _measure(self, candidate: Candidate, earlier: Earlier | None = None) -> Trial:
        context, state = self.context, self.state
        number, began = state.next_id(), context.now()
        self._announce_start(number, began, candidate)
        comparison = context.compare(
            "trial",
            state.incumbent,
            candidate.plan,
            state,
            seconds=self.deadline - began if earlier else context.allocation.trial,
            more_seconds=context.allocation.trial,
            deadline=self.deadline,
            purpose=f"trial {number}",
            progress_id=number,
            earlier=earlier,
        )
        state.comparisons[number] = comparison
        state.noise_before[number] = earlier.noise if earlier else state.noise
        ruling = context.gate.decide(
            candidate.plan,
            comparison,
            state.facts,
            state.objective,
            state.noise,
            deadline=self.deadline,
            number=number,
        )
        state.noise = learned(state.noise, comparison, since=len(earlier.comparison.pairs) if earlier else 0)
        trial = self._trial(number, began, candidate, comparison, ruling)
        if earlier:
            trial = trial.model_copy(update={"reason": f"{trial.reason}; goes on from trial {earlier.trial.id}"})
        state.trials.append(trial)
        if trial.verdict is Verdict.KEPT:
            self._keep(trial, candidate)
        context.announce(TrialEnded(at=context.now(), trial=trial))
        return trial

    def _announce_start(self, number: int, began: float, candidate: Candidate) -> None:
        self.context.announce(
            TrialStarted(
                at=began,
                id=number,
                round=len(self.state.rounds),
                strategy=candidate.change.strategy,
                setting=candidate.change.setting,
                predicted=candidate.predicted.value if candidate.predicted else None,
                remaining=self.remaining,
            )
        )

    def _trial(
        self, number: int, began: float, candidate: Candidate, comparison: Comparison, ruling: Judgement
    ) -> Trial:
        """The document of a trial that has just ended."""
        context, state = self.context, self.state
        return Trial(
            id=number,
            round=len(state.rounds),
            strategy=candidate.change.strategy,
            setting=candidate.change.setting,
            companions=candidate.companions,
            base=state.base,
            verdict=ruling.verdict,
            reason=ruling.reason,
            risk=self.strategy.risk.value,
            predicted=candidate.predicted,
            throughput=comparison.estimate,
            time_to_target=ruling.time_to_target,
            quality=ruling.quality,
            peak_memory_bytes=comparison.candidate.peak_memory_bytes,
            seconds=context.now() - began,
            log=context.runner.latest_log,
            ratios=comparison.ratios,
            samples_per_second=comparison.candidate.samples_per_second,
            finished_at=context.now(),
        )

    def _keep(self, trial: Trial, candidate: Candidate) -> None:
        """Makes the plan the incumbent, without those halves that do not carry their weight."""
        before, plan = self.state.incumbent, candidate.plan
        changes = (candidate.change, *candidate.companions)
        for companion in self._redundant(before, changes, plan, trial.id):
            old = before.setting(companion.strategy)
            plan = plan.without(companion.strategy)
            if old is not None:
                plan = plan.with_change(Change(strategy=companion.strategy, setting=old))
        self.state.incumbent = self.context.runner.registry.order(plan)
        self.state.base = str(trial.id)

    def _redundant(self, before: Plan, changes: tuple[Change, ...], plan: Plan, number: int) -> Iterator[Change]:
        """Of changes that won together, those without which it is as fast."""
        if len(changes) < 2:
            return
        for change in reversed(changes):
            halves = tuple(other for other in changes if other is not change)
            without = candidate_plan(self.context.runner.registry, before, halves)
            if self.context.now() + self.context.allocation.comparison > self.deadline:
                return
            comparison = self.context.compare(
                "comparison",
                without,
                plan,
                self.state,
                seconds=self.context.allocation.trial,
                deadline=self.deadline,
                purpose=f"trial {number}: without {changes_text((change,))}",
            )
            self.state.ablations.append(comparison)
            if comparison.decision in (Decision.REJECT, Decision.HARMFUL) or _no_better(
                comparison, self.context.min_gain
            ):
                yield change
                return


def _no_better(comparison: Comparison, min_gain: float) -> bool:
    """Undecided, and not even the estimate says that it is worth it: the simpler plan stands."""
    if comparison.decision is not Decision.INCONCLUSIVE or comparison.estimate is None:
        return False
    return comparison.estimate.value < 1 + min_gain


Answer = Callable[[Trial | None], None]


def _conversation(strategy: Strategy, case: Case) -> Iterator[tuple[JsonDict | BaseException, Answer]]:
    """Settings one by one; what ``answer`` is called with is sent back into a generator.

    An exception of the strategy comes out as a value, since its crash is a result.
    """
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
        yield error, replies.append
