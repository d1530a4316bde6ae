"""Rounds of trials: screened, then confirmed, until nothing that promises is left or the time is up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from math import inf, log

from autoopt.events import Predicted, TrialEnded
from autoopt.records import Change, Estimate, JsonDict, Plan, Quality, Speedup, Stop, StopReason, Trial, Verdict
from autoopt.search.ablate import ablate
from autoopt.search.accept.evidence import FEWEST_SEEDS
from autoopt.search.accept.gathering import UNPROBED
from autoopt.search.baseline import compare_with_itself
from autoopt.search.candidate import (
    HOPE,
    Candidate,
    candidate_of,
    conversation,
    settings_of,
    skip,
    standing_plan,
    together,
    without,
)
from autoopt.search.compare.sequential_test import between_process_of
from autoopt.search.compare.statistics import TwoLevel
from autoopt.search.confirmations import Confirmations, confirm, drawn_otherwise
from autoopt.search.evaluations import MOST_PAIRS, pair_seconds, try_evaluations
from autoopt.search.first_training import PROFILE_SECONDS, train_first, train_with
from autoopt.search.outcome import announce_kept, named, unscreened
from autoopt.search.planner import (
    PLUGIN_ERRORS,
    Proposal,
    Queue,
    at_the_ceiling,
    build_queue,
    by_promise,
    nothing_left,
    predict,
    predicted_gain,
)
from autoopt.search.run_context import RunContext
from autoopt.search.screening import Costs, Screened, Screening
from autoopt.search.trial_runner import BaselineFailed
from autoopt.search.whole_run_confirmation import WholeRunConfirmation
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Case, Strategy

LIKELY, LIKELIER = 0.9, 0.5
"""The chance of a gain that is worth a part in a pair of whole runs, before and after the screening: what fails costs
the whole little."""
BEFORE_ROUNDS = 1.25
"""Seconds before the first round on a somewhat larger budget, over those that they were."""


class Rounds:
    """The search between two profiles."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.state = context, context.state
        self._run_whole, self._probed = set[str](), set[str]()
        self._costs = Costs(context)
        self._confirmations = Confirmations(context)
        self._suspects = self._confirmations.suspects
        self._pipeline: Pipeline | None = None

    def optimize(self, pipeline: Pipeline | None) -> Stop | None:
        """Screens what is worth a screening on the incumbent, and confirms what did well; the combined candidate first.

        Returns:
            None where something was kept: the bottleneck has moved, profile again. Else why the search ends.
        """
        self._pipeline = pipeline
        queue = self.queue()
        self._confirmations.skipped = [each for each in queue.skipped if not self._takes_trainings(each)]
        predictions = Queue(tuple(self._coming_back(queue))).predictions
        self.context.announce(Predicted(at=self.context.now(), predictions=predictions))
        if (
            self._by_whole_runs(queue)
            # a pair of short runs shows more than steps do, before whose comparison they may be over
            or (self.context.by_whole_runs and self._by_whole_runs(queue, LIKELIER, HOPE))
            or self._by_blocks(queue)
        ):
            trial = next(t for t in reversed(self.state.trials) if str(t.id) == self.state.base)
            side = self.state.comparisons[trial.id].candidate
            announce_kept(self.context, side, Speedup(throughput=trial.throughput))
            if len(self.state.together) < 2:  # a combination may change yet
                self.train_kept()
            return None
        return self.stop(queue)

    def _by_blocks(self, queue: Queue) -> bool:
        """Screens proposals by blocks of steps and confirms what did well; then tries what trains otherwise."""
        proposals = self._coming_back(queue)
        evaluating = [proposal for proposal in proposals if proposal.strategy.between_steps]
        proposals = [proposal for proposal in proposals if proposal not in evaluating]
        most = max((predicted_gain(each.predicted) or 1.0 for each in proposals), default=1.0)
        at_once = [each for each in evaluating if (predicted_gain(each.predicted) or 1.0) >= most]
        self._evaluate(at_once, other=most)
        slow = [each for each in proposals if self._takes_trainings(each)]
        quick = [each for each in proposals if each not in slow]
        if self._screen_and_confirm(quick, queue):
            self._no_time(slow)  # unless a further round has it
            return True
        self._evaluate(evaluating)
        return self._train(proposals)  # with what its probes left undecided

    def queue(self) -> Queue:
        """Candidates worth trying on the incumbent; notes and announces the rest."""
        context, state, pipeline = self.context, self.state, self._pipeline
        # of a disturbed profile only what it expects to be slower is believed
        threshold = 1.0 if pipeline is not None and pipeline.doubtful else self.threshold
        plan = build_queue(context.registry, self._case(), context.choice, threshold, state.untrainable)
        in_source, beyond = list[Proposal](), list[Proposal]()
        for each in plan.proposals:
            if unsaid := context.runner.not_in_lines(each.change):
                reason = f"the script's own lines would have to say it, and no edit of them does: {unsaid}"
                state.skip(each.strategy, Verdict.NOT_APPLICABLE, reason, setting=each.setting)
            else:  # what no line of a script's patch could say goes last of what promises as much
                (in_source if context.runner.in_source(Plan(changes=(each.change,))) else beyond).append(each)
        plan = replace(plan, proposals=(*in_source, *beyond))
        for skipped in plan.skipped:
            known = state.skipped.get(skipped.strategy.name)
            seen = {"setting": skipped.setting, "predicted": skipped.predicted}
            trial = state.skip(skipped.strategy, skipped.verdict, skipped.reason, **seen)
            if known is None and context.choice.names(skipped.strategy.name):
                context.announce(TrialEnded(at=context.now(), trial=trial))
        return plan

    def _screen_and_confirm(self, proposals: Sequence[Proposal], queue: Queue) -> bool:
        """Screens, confirms clear gains, and then what may be one; a pair of short whole runs shows more."""
        context, state = self.context, self.state
        short = not state.found and context.run_seconds() is not None
        case = self._case()
        unseen = list(proposals)
        if not self._may_compare(unseen):
            self._no_time(unseen)
            return False
        with closing(Screening(context, case)) as screening:
            known = self._promised(screening, proposals)
            while not context.stopping():
                before = len(unseen)
                if not known:
                    aside = [each for each in unseen if self._suspects.of(each.change)]
                    unseen = self._screen(screening, [each for each in unseen if each not in aside]) + aside
                screening.close()
                kept = short and self._by_whole_runs(_as_seen(queue, screening), LIKELIER, HOPE)
                kept = kept or self._confirmations.in_order(self._taken(screening, plain=True), screening)
                more = 0 < len(unseen) < before
                if not kept:
                    if known or (more and (screening.over or screening.first(unseen) is None)):
                        known = False
                        continue
                    kept = self._confirmations.in_order(self._open(screening), screening)
                if kept or not more or state.incumbent != case.plan:
                    self._no_time(unseen)
                    return kept
            return False

    def _open(self, screening: Screening) -> list[Screened]:
        """What may be a gain, on an incumbent without what it does not need: that makes every comparison longer."""
        context, state = self.context, self.state
        found = self._taken(screening, plain=False)
        if not found or len(state.together) < 2 or context.by_whole_runs:
            return found
        # of the end, only what every result needs is kept back
        until = max(context.allocation.last_deadline(state.speedup_so_far), self._costs.deadline())
        context.note(*ablate(context, until)[1])
        plans = ((one, standing_plan(context, one.candidate.changes)) for one in found)
        return self._confirmations.in_order_of_gain(
            replace(one, candidate=replace(one.candidate, plan=plan)) for one, plan in plans if plan is not None
        )

    def _may_compare(self, unseen: Sequence[Proposal]) -> bool:
        """Whether blocks of steps can be compared: the A/A control comes before the first of them."""
        context, state = self.context, self.state
        if state.aa.made or not unseen:
            return True
        if context.now() + context.allocation.comparison + context.allocation.screening > self._costs.deadline():
            return False
        try:
            compare_with_itself(context)
        except BaselineFailed as failure:  # whole runs of it train: they may be over before steps can be compared
            context.note(f"changes were compared by whole runs alone: {failure.message}")
            return False
        return True

    def _promised(self, screening: Screening, proposals: Sequence[Proposal]) -> bool:
        """Screens all that predictions promise, at once. True where that is confirmed before any other is screened."""
        if screening.over:
            return False
        candidate = together(self.context, screening.case, proposals)
        if candidate is None:
            return False
        candidate = self._confirmations.whole_of(candidate, screening.case)
        if not self.state.first_time(candidate.changes):
            return False
        screened = screening.screen(candidate)
        if screened is not None and screened.trial.verdict is Verdict.QUALITY_LOST:
            self._confirmations.less_doubtful(screened, screening, [], screened.trial.quality)
        names = {change.strategy for change in candidate.changes}
        return screening.first([each for each in proposals if each.strategy.name not in names]) is not None

    def _taken(self, screening: Screening, plain: bool) -> list[Screened]:
        """Takes from the screening what is to be confirmed: the clear gains, or in the end all that showed a gain."""
        found = [s for s in screening.found if s.plain or (not plain and s.gain > 0)]
        screening.found = [s for s in screening.found if s not in found]
        return self._confirmations.in_order_of_gain(found)

    def _screen(self, screening: Screening, unseen: list[Proposal]) -> list[Proposal]:
        """Screens proposals, alone and together, while its time lasts; gives back those that had no screening."""
        left = screening.run(unseen)
        screening.screen_rival()
        open_ = {screened.candidate.strategy.name for screened in screening.found}
        for proposal in unseen:
            if proposal not in left and proposal.strategy.name not in open_:
                self._confirmations.tried(proposal.strategy.name)
        return left

    def _evaluate(
        self, proposals: Sequence[Proposal], most: int = MOST_PAIRS, by: float = inf, other: float = 1.0
    ) -> None:
        """Tries changes of evaluation alone; what is kept of them moves no bottleneck of the step."""
        try_evaluations(self.context, proposals, self._case(), min(self._costs.deadline(), by), most, other)
        for proposal in proposals:
            self._confirmations.tried(proposal.strategy.name)

    def _by_whole_runs(self, queue: Queue, likely: float = LIKELY, hope: float = 0.0) -> bool:
        """Confirms by whole runs all that predictions promise and nothing has refused, without what makes it train
        otherwise.

        Such runs show what no block of steps does, and what is too small for blocks. On an incumbent that they have
        shown, they go on: its runs may end before steps could be compared. ``likely``: see :func:`together`; ``hope``:
        see :class:`WholeRunConfirmation`.
        """
        context, state, case = self.context, self.state, self._case()
        refused = {trial.strategy for trial in state.trials if not trial.companions and _refuses(trial)}
        every: list[Proposal] = [*queue.proposals, *(each for each in queue.skipped if each.predicted)]
        timed = set[str]()
        aside = set[str]()  # what a smaller plan goes without, to find what it is of the whole that does not run
        rest: Candidate | None = None
        while (not state.found or context.by_whole_runs) and not context.stopping():
            open_ = [each for each in every if each.strategy.name not in refused | aside]
            candidate = rest or together(context, case, open_, 1, likely, without=refused | aside)
            rest = None
            if candidate is None:
                return False
            confirmation = WholeRunConfirmation(context, candidate, hope)
            if not confirmation.fits:
                return False
            failure = context.gate.trainings.failure(candidate.plan)
            doubtful: tuple[Change, Quality] | None
            if failure is not None:
                doubtful = candidate.change, Quality(method="not_tested", detail=f"it fails: {failure.reason}")
            else:
                doubtful = self._suspects.most_doubtful(candidate)
                if doubtful is not None and context.gate.same_metric(candidate.plan, state.incumbent) is False:
                    evaluates = (each for each in candidate.changes if context.evaluates_in_other_batches(each))
                    doubtful = next(evaluates, doubtful[0]), doubtful[1]
            fails = failure is not None or (doubtful is not None and doubtful[1].detail.startswith(UNPROBED))
            if fails and len(candidate.members) > 1:
                names = [name for name, _ in candidate.members]
                aside.update(names[len(names) // 2 :])
                continue
            if doubtful is None:
                if self._refuted_by_probes(candidate):  # probed as it is, it comes before a plan that is not yet
                    confirmation = WholeRunConfirmation(context, candidate, hope)
                    if not confirmation.fits:
                        continue  # with corrected predictions
                unconfirmed = self._unconfirmed(candidate, every, timed)
                # timing them waits where it brings less a second than the whole runs that it would delay
                needed = confirmation.needed or inf
                rate = confirmation.gain / needed
                gone = later = {each.strategy.name for each in unconfirmed if self._rate(each) < rate}
                aside |= later
                if unconfirmed and not later:
                    by = context.allocation.budget - needed - confirmation.pair_seconds  # which verify it
                    self._evaluate([one for one in unconfirmed if self._comes_back(one.strategy)], most=1, by=by)
                    gains = {each.strategy.name: self._evaluates_faster(each) for each in unconfirmed}
                    for each in unconfirmed:
                        if gains[each.strategy.name] is None:
                            every = _less(every, each.change, case)
                    timed |= gains.keys()
                    gone = {name for name, gain in gains.items() if gain is None}
                    every = [replace(each, predicted=gains.get(each.strategy.name) or each.predicted) for each in every]
                if unconfirmed:  # what else is in a plan that was probed stays together
                    rest = without(context, candidate, gone) if gone else candidate
                    continue
                if candidate.plan.key in self._run_whole:
                    return False
                self._run_whole.add(candidate.plan.key)
                state.first_time(candidate.changes)  # screened or not, it is known now
                trial = confirmation.run()
                if context.gate.trainings.failure(candidate.plan):
                    continue
                if trial.verdict is not Verdict.QUALITY_LOST or not candidate.companions or trial.quality is None:
                    return trial.verdict is Verdict.KEPT
                doubtful = self._suspects.likeliest(candidate.changes, by_data=True), trial.quality
            elif fails:
                doubtful = candidate.change, doubtful[1]
            change, strategy = doubtful[0], context.registry[doubtful[0].strategy]
            self._confirmations.tried(change.strategy)
            left_out = self._suspects.add(candidate, doubtful[1], change)
            state.skip(strategy, left_out.verdict, left_out.reason, setting=change.setting)
            every = _less(every, change, case)
            refused |= {change.strategy} - {each.strategy.name for each in every}
            aside.clear()
        return False

    def _refuted_by_probes(self, candidate: Candidate) -> bool:
        """Whether the timed steps of probes refute what is predicted for a plan, which corrects the predictions."""
        context, state, plan = self.context, self.state, candidate.plan
        best = context.gate.step_at_best(plan, state.incumbent)
        if plan.key in self._probed or best is None:
            return False
        self._probed.add(plan.key)
        members = [one for one in candidate.members if not context.between_steps(one[0])]
        error = TwoLevel([best], [0.0], between_process_of(state.noise)).error
        if best + error >= state.beliefs.of(members)[0]:
            return False
        state.beliefs.saw(members, best, error)
        return True

    def _unconfirmed(self, candidate: Candidate, every: Sequence[Proposal], timed: set[str]) -> list[Proposal]:
        """A candidate's changes of evaluation whose metric no probe has seen to be the same, but for timed ones."""
        if self.context.gate.same_metric(candidate.plan, self.state.incumbent):
            return []
        found = {change.strategy for change in candidate.changes if self.context.evaluates_in_other_batches(change)}
        return [each for each in every if each.strategy.name in found - timed]

    def _rate(self, evaluating: Proposal) -> float:
        """The predicted log gain that a second of timing a change of evaluations brings."""
        (stage,) = evaluating.strategy.stages
        return log(predicted_gain(evaluating.predicted) or 1.0) / pair_seconds(self.context, stage)

    def _evaluates_faster(self, proposal: Proposal) -> Estimate | None:
        """The gain of a whole run by evaluations timed once, off by a half; None for another metric."""
        mine = (trial for trial in reversed(self.state.trials) if trial.strategy == proposal.strategy.name)
        known = ((t.time_to_target, t.quality) for t in mine if t.time_to_target is not None and t.quality is not None)
        gain, quality = next(known, (None, None))
        if gain is None or quality is None or not quality.passed or gain.value < 1.0 + self.context.min_gain:
            return None
        return gain.model_copy(update={"low": gain.value**0.5, "high": gain.value**1.5})

    def _train(self, proposals: Sequence[Proposal]) -> bool:
        """Tries what trains otherwise, where there is time for the runs to the target that it takes."""
        context, state = self.context, self.state
        waiting = by_promise([proposal for proposal in proposals if self._takes_trainings(proposal)])
        by_runs = self._ends_at_the_target()
        for n, proposal in enumerate(waiting):
            speedup = max(predicted_gain(proposal.predicted) or 1.0, 1.0)
            needed = 0.0 if by_runs else self._seconds_of_trainings(speedup)
            left = self._left()
            if needed > left or context.stopping():
                self._no_time_to_train(proposal, needed, left)
                continue
            train_first(context)
            unjudged = state.untrainable
            if not unjudged and state.objective.metric is None:
                unjudged = "no metric is known by which to judge its training"
            elif not unjudged and not state.objective.has_target:
                unjudged = "its training is judged by when it reaches a value of the metric: name one with --target"
            elif not unjudged and state.trained is None:
                unjudged = "there was no time to train the baseline"
            if unjudged:
                self._not_tried(proposal, unjudged)
                continue
            self._confirmations.tried(proposal.strategy.name)
            if self._search_settings(proposal, self._case(), len(waiting) - n - 1):
                return True
        return False

    def _takes_trainings(self, proposal: Proposal) -> bool:
        """Whether only trainings report its quality: it trains otherwise, or makes other samples of data that draw at
        random. Gradients need the same batches, which such data never give twice; a script's do in its probes."""
        if proposal.change in self._confirmations.undecided or proposal.strategy.risk.trains_otherwise:
            return True
        return self.state.sites is None and bool(drawn_otherwise(self.context, (proposal.change,)))

    def _seconds_of_trainings(self, speedup: float) -> float:
        """Seconds to compare one setting and to train it and the baseline to the target from two seeds.

        Before the baseline was trained this is a guess by its share of the budget, and a target may be reached in a
        tenth of that: where the guess alone forbids a trial and somebody named a target, the baseline is trained first.
        ``speedup``: that it is predicted to be; a training that takes longer is given up.
        """
        context, left, allocation = self.context, self._left(), self.context.allocation
        if self.state.trained is None and self.state.objective.target is not None and not context.stopping():
            starts = 2 * FEWEST_SEEDS * allocation.start_seconds  # of baseline and plan
            least = allocation.baseline(target_given=True) + allocation.comparison + starts
            if allocation.comparison + allocation.verification(2, speedup) > left >= least:
                train_first(context)
        return context.allocation.comparison + context.allocation.verification(2, speedup)

    def _ends_at_the_target(self) -> bool:
        """Whether whole runs, which end at the user's target, show what trains otherwise on the incumbent."""
        context, state = self.context, self.state
        if state.objective.users_target is None or context.run_seconds() is None:
            return False
        return not state.found or context.by_whole_runs

    def _search_settings(self, proposal: Proposal, case: Case, remaining: int) -> bool:
        """Tries settings of what trains otherwise until there are no more, or time is up. True where one was kept."""
        context, strategy, kept = self.context, proposal.strategy, False
        for setting, answer in settings_of(context, strategy, case):
            deadline, by_runs = self._costs.deadline(), self._ends_at_the_target()
            if context.stopping() or (not by_runs and context.now() + context.allocation.comparison > deadline):
                skip(context, strategy, Verdict.NOT_TRIED, "the time for the search is up")
                break
            candidate = candidate_of(context, strategy, case, setting)
            if candidate is None:
                answer(None)
                continue
            if by_runs and context.shown_by_whole_runs(candidate.plan) is not None:
                confirmation = WholeRunConfirmation(context, candidate, HOPE)
                needed, left = confirmation.needed, context.left()
                if needed is None or needed > left:
                    self._no_time_to_train(proposal, needed, left)
                    break
                trial = confirmation.run()
            else:
                seconds = context.allocation.trial
                trial = confirm(context, candidate, deadline=deadline, seconds=seconds, remaining=remaining)
            kept = kept or trial.verdict is Verdict.KEPT
            answer(trial)
        return kept

    def _no_time_to_train(self, proposal: Proposal, needed: float | None, left: float) -> None:
        """Notes that the runs which would judge a change of the training do not fit; None: that no few would."""
        takes = "take more pairs than a confirmation has" if needed is None else f"take about {needed:.0f} s"
        self._not_tried(proposal, f"no time for it: its trainings {takes}, and {max(left, 0):.0f} s were left")
        self.state.unseen[proposal.strategy.name] = needed or left

    def over(self) -> Stop | None:
        """Why nothing more may be started: the user, or the budget. None while there is time."""
        if self.context.stopping():
            return Stop(reason=StopReason.INTERRUPTED, detail="stopped by the user; what was kept so far was checked")
        now, deadline, allocation = self.context.now(), self._costs.deadline(), self.context.allocation
        begun, kept_back = bool(self.state.rounds), allocation.budget - deadline
        profile = PROFILE_SECONDS if begun else 0.0  # a further round takes it before it screens anything
        needed = allocation.comparison + (profile + allocation.screening if begun else 0.0)
        # whole runs are their own verification, for which blocks of steps keep time back
        if now + needed <= deadline or now + profile + self._costs.whole_runs() <= allocation.budget:
            return None
        needed += 0.0 if begun else allocation.screening + self.context.probes_due(None, self.state.incumbent)
        text = f"{max(deadline - now, 0):.0f} s of the search were left, and the next step takes {needed:.0f} s"
        if kept_back > 0:
            text += f"; {kept_back:.0f} s are reserved for ablation and verification"
        if not begun:
            wanted = BEFORE_ROUNDS * (now + needed + kept_back)
            text += f"; a budget of about {max(wanted / 60, 0.5):.1f} min would try changes"
        return Stop(reason=StopReason.BUDGET, detail=text)

    def stop(self, plan: Queue) -> Stop:
        """Why a round in which nothing was kept ends the search; no stage holding the step back comes before lack of
        time."""
        over = self.over()
        if over and over.reason is StopReason.INTERRUPTED:
            return over
        waiting = unscreened(self.state)
        if waiting and not over:
            over = Stop(reason=StopReason.BUDGET, detail=f"there was no time left for {named(waiting)}")
        return at_the_ceiling(self.state.rounds[-1]) or over or nothing_left(plan, self.threshold)

    @property
    def threshold(self) -> float:
        """The speedup that a prediction must allow: worth having, and distinguishable from noise."""
        return 1 + max(self.context.min_gain, self.state.noise.floor or 0.0)

    def _left(self) -> float:
        return self._costs.deadline() - self.context.now()

    def _case(self) -> Case:
        return self.state.case(self.context.registry, pipeline=self._pipeline, seconds_left=self._left())

    def _comes_back(self, strategy: Strategy) -> bool:
        """A strategy that was tried comes back only under another bottleneck."""
        seen, bottleneck = self._confirmations.seen_bottleneck, self.state.rounds[-1].bottleneck
        return strategy.name not in seen or seen[strategy.name] != bottleneck

    def _coming_back(self, queue: Queue) -> list[Proposal]:
        return [proposal for proposal in queue.proposals if self._comes_back(proposal.strategy)]

    def _no_time(self, waiting: Sequence[Proposal]) -> None:
        """Notes those that were left when the time was up, or where a run is over before its steps can be compared."""
        short = self.state.ends_too_early
        for proposal in waiting:
            if suspect := self._suspects.of(proposal.change):
                self.state.skip(proposal.strategy, suspect.verdict, suspect.reason, setting=proposal.setting)
                continue
            if not short:  # what is screened first is confirmed, too
                allocation = self.context.allocation
                more = 0.0 if self.state.unseen else allocation.comparison
                self.state.unseen[proposal.strategy.name] = allocation.screening + more
            time = "no time in this budget to screen and confirm it"
            self._not_tried(proposal, "a run of the plan is over before blocks of its steps count" if short else time)

    def _not_tried(self, proposal: Proposal, reason: str) -> None:
        if proposal.strategy.name not in {trial.strategy for trial in self.state.trials}:
            self.state.skip(proposal.strategy, Verdict.NOT_TRIED, reason, predicted=proposal.predicted)

    def train_kept(self) -> None:
        """Trains what was kept next to the baseline, if that still waits for its first training.

        Whole runs of a combination come after its ablation, where the budget holds both: what they hold stays.
        """
        context, state = self.context, self.state
        if context.stopping() or state.made_by is None:
            return
        whole, parts = context.shown_by_whole_runs(state.incumbent), len(state.together)
        if whole is not None and parts > 1:
            runs = FEWEST_SEEDS * whole * (1 + 1 / max(state.speedup_so_far, 1.0))
            if context.now() + parts * context.allocation.comparison + runs <= context.allocation.budget:
                return
        train_with(context, state.incumbent, state.made_by)


def _as_seen(queue: Queue, screening: Screening) -> Queue:
    """The queue with the setting of each that its screening has shown to be the best."""
    singles = (one.candidate for one in screening.found if not one.candidate.combined)
    seen = {one.strategy.name: Proposal(one.strategy, one.predicted, one.change.setting) for one in singles}
    return replace(queue, proposals=tuple(seen.get(each.strategy.name, each) for each in queue.proposals))


def _less(every: Sequence[Proposal], refused: Change, case: Case) -> list[Proposal]:
    """The same but for a refused one, in whose place comes its strategy's next setting, first of all one that is a part
    of it: an evaluation without its larger batches, images decoded at twice the size."""
    found = list[Proposal]()
    for each in every:
        if each.strategy.name != refused.strategy:
            found.append(each)
        elif each.setting == refused.setting and (milder := _next_setting(each.strategy, refused.setting, case)):
            with suppress(*PLUGIN_ERRORS):
                found.append(Proposal(each.strategy, predict(each.strategy, case, milder), milder))
    return found


def _next_setting(strategy: Strategy, refused: JsonDict, case: Case) -> JsonDict:
    """A strategy's setting after a refused one: one that is a part of that, else the next; empty without one."""
    settings = list[JsonDict]()
    for setting, answer in conversation(strategy, case):
        settings.append(setting)
        answer(None)
    later = settings[settings.index(refused) + 1 :] if refused in settings else []
    return next((one for one in later if one.items() < refused.items()), later[0] if later else {})


def _refuses(trial: Trial) -> bool:
    """Whether a trial speaks against its change: it was no gain, or it was not and its look showed none."""
    figure = trial.time_to_target or trial.throughput
    open_ = trial.verdict in (Verdict.NOT_TRIED, Verdict.INCONCLUSIVE)
    return not open_ or (figure is not None and figure.value <= 1.0)
