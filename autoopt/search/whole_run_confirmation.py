"""The confirmation of a script's plan by interleaved whole runs: of the untouched and the patched script, and of two
patches where the incumbent was confirmed so.

A run that is short for the budget shows more in one such pair than many blocks of steps do: both sides see the same
machine, and evaluations, starts of epochs and the end of a run, which no block holds, are what the user pays, too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import exp, expm1, isfinite, log, log1p
from statistics import fmean

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, Plan, Quality, Trial, Verdict
from autoopt.records.base import Z
from autoopt.records.whole_run import WholeRun
from autoopt.script.whole_run import turn_of
from autoopt.search.accept.evidence import FEWEST_SEEDS, Judgement, TrainedPair, length_scatter
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.time_to_target import Trained
from autoopt.search.accept.trainings import ratio_of_pairs
from autoopt.search.candidate import Candidate, OpenTrial
from autoopt.search.first_training import train_first
from autoopt.search.planner import prior
from autoopt.search.run_context import RunContext
from autoopt.search.verify import FRESH_SEEDS, evidence_of

MOST_PAIRS = 8
"""Of whole runs for one confirmation: a plan that takes more of them is better confirmed by a larger budget."""


@dataclass(frozen=True)
class InWholeRun:
    """What predictions bring of a whole run of the incumbent, by seconds of the run, of all its steps, and of what
    comes between: evaluations, checkpoints and later epochs' starts."""

    run: float
    steps: float
    between: float

    def gain(self, of_steps: float, of_both: float) -> float:
        """Log speedup of the run, where its steps, and steps with what comes between, have these."""
        saved = self.steps * -expm1(-of_steps) + (self.steps + self.between) * -expm1(-of_both)
        return -log(max(1.0 - saved / self.run, 1 / _FASTEST))

    def shares(self, of_steps: float, of_both: float) -> tuple[float, float]:
        """How much more of the run's log speedup each of the two brings, for a little more of it."""
        left = self.run / exp(self.gain(of_steps, of_both))
        return self.steps * exp(-of_steps) / left, (self.steps + self.between) * exp(-of_both) / left

    @staticmethod
    def of(seconds: float | None, steps: float | None, whole: WholeRun | None) -> InWholeRun | None:
        """Of a run of so many seconds, those of its steps, and its parts; None where either is not known."""
        if seconds is None or steps is None:
            return None
        names = ("later epochs' starts", "evaluations", "checkpoints")
        parts = [] if whole is None else [whole.part(name) for name in names]
        between = sum(part.seconds for part in parts if part is not None)
        return InWholeRun(max(seconds, steps + between), steps, between)


_FASTEST = 20.0
"""A whole run is predicted to be no more than so many times faster."""


class WholeRunConfirmation:
    """Confirms a plan on the incumbent by whole runs of both, where nothing was kept so far, or what they have
    confirmed.

    Args:
        candidate: whose predictions are of steps, and of steps with the evaluations between them.
        hope: standard errors by which it may well be faster than predicted.
    """

    def __init__(self, context: RunContext, candidate: Candidate, hope: float = 0.0) -> None:
        state = context.state
        self.context, self.state, self.candidate = context, state, candidate
        predicted, beliefs = candidate.predicted, state.beliefs
        self._otherwise = context.gate.risk_over(candidate.plan, state.incumbent).trains_otherwise
        self._fewest = FEWEST_SEEDS if self._otherwise else 1  # pairs: it may be at the target early by chance
        self._before, whole = state.incumbent, state.rounds[-1].whole_run if state.found and state.rounds else None
        untouched = context.shown_by_whole_runs(candidate.plan)
        if state.found:
            runs = [pair.best.seconds for pair in context.gate.whole_pairs(state.incumbent)]
            stepping = whole.part("steps") if whole is not None else None
            self.seconds = fmean(runs) if runs and untouched is not None else None
            self._run = InWholeRun.of(self.seconds, stepping.seconds if stepping is not None else None, whole)
        else:
            self.seconds = untouched
            self._run = InWholeRun.of(context.run_seconds(), state.planned_seconds, state.untouched_run)
        # what is kept is verified on the untouched script, by other runs than those that it was selected by
        verified = state.found or self._otherwise
        self._reserve = FEWEST_SEEDS * ((untouched or 0.0) + (self.seconds or 0.0)) if verified else 0.0
        believed = self._divided(tuple(beliefs.of([member])[0] for member in candidate.members))
        self.gain = self._run.gain(*believed) if self._run is not None else sum(believed)
        error = predicted.log_sd if predicted is not None else 0.0
        self._hoped = self.gain + hope * error * (max(self._run.shares(*believed)) if self._run is not None else 1.0)
        self._found: list[TrainedPair] = []

    @property
    def needed(self) -> float | None:
        """Seconds of the confirmation, probes included, if it is as fast as hoped; None where no pair shows that."""
        pairs = self._pairs_for(self._hoped)
        if pairs is None or self.seconds is None:
            return None
        probes = self.context.probes_due(self.candidate.plan, self.state.incumbent)
        return pairs * self.pair_seconds + probes + self._reserve

    @property
    def fits(self) -> bool:
        """Whether there is the time for it."""
        return self.needed is not None and self.context.now() + self.needed <= self.context.allocation.budget

    def run(self) -> Trial:
        """The trial; pairs with the untouched script of a plan that was kept are the verification's."""
        context, state, predicted = self.context, self.state, self.candidate.predicted
        if predicted is not None and self._run is not None:  # of the whole run, with what predictions usually err
            predicted = predicted.model_copy(update={"value": exp(self.gain)})
            error = prior(predicted)[1]
            low, high = (exp(self.gain + ends * error) for ends in (-Z, Z))
            predicted = predicted.model_copy(update={"low": low, "high": high})
        opened = OpenTrial(context, replace(self.candidate, predicted=predicted), "confirming by whole runs")
        trial = opened.ended(self._judged(opened.number))
        if trial.verdict is Verdict.KEPT and self._before != state.baseline:
            with suppress(TrialFailed):  # its patch ran next to the incumbent's
                self._pair(opened.number, 0, state.baseline)
        shown, members, beliefs = trial.time_to_target, self.candidate.members, state.beliefs
        if shown is not None and self._run is not None:  # corrects the predictions of its changes, by their shares
            reported = self._divided(tuple(prior(said)[0] for _, said in members))
            shares = [self._run.shares(*reported)[other] for other in self._between]
            beliefs.saw(members, log(shown.value), shown.log_sd, self._run.gain(*reported), shares)
        return trial

    def _divided(self, gains: tuple[float, ...]) -> tuple[float, float]:
        """Log gains of the candidate's changes in sum: of those of the steps, and of those of evaluations alone."""
        between = sum(gain for gain, other in zip(gains, self._between, strict=True) if other)
        return sum(gains) - between, between

    @property
    def _between(self) -> tuple[bool, ...]:
        return tuple(self.context.between_steps(name) for name, _ in self.candidate.members)

    def _judged(self, number: int) -> Judgement:
        """The verdict by pairs that are made while they leave it open, show a gain, and a feasible number decides."""
        context, state, plan = self.context, self.state, self.candidate.plan
        level = context.gate.quality(plan, state.baseline)
        if level is not None and level.passed is False:
            return Judgement(verdict=Verdict.QUALITY_LOST, reason=level.detail, quality=level)
        if state.trained is None:
            train_first(context, plan, exp(self.gain))
        known = context.gate.trained_pairs(plan) if self._before == state.baseline else ()
        self._found = [pair for pair in known if pair.whole]
        while not context.stopping() and self._another_helps(level):
            try:
                self._found.append(self._pair(number, len(self._found), self._before))
            except TrialFailed as failure:
                late = failure.kind == "timeout" or failure.side == 0
                verdict = Verdict.INCONCLUSIVE if late else Verdict.FAILED
                return Judgement(verdict=verdict, reason=failure.reason)
        if not self._found:
            return Judgement(verdict=Verdict.INCONCLUSIVE, reason="no time for a pair of whole runs")
        ratio, quality = self._ratio(), self._quality(level)
        if quality.passed is not True and not (quality.passed is None and context.gate.accept_undecided):
            verdict = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        elif self._faster(ratio):
            verdict = Verdict.KEPT
        else:
            verdict = Verdict.HARMFUL if ratio.high < 1.0 else Verdict.INCONCLUSIVE
        pairs = "one pair" if ratio.n == 1 else f"{ratio.n} pairs"
        return Judgement(
            verdict=verdict,
            reason=f"whole runs: {ratio.text('.3f')} in {pairs}; {quality.detail}",
            quality=quality,
            time_to_target=ratio,
            planned_steps=state.planned_steps,
        )

    def _quality(self, level: Quality | None) -> Quality:
        return judge_runs(evidence_of(self.context, self.candidate.plan, self._found, level))

    def _another_helps(self, level: Quality | None) -> bool:
        """Whether it is open, there may be a gain, and the time holds as many more pairs as would confirm that."""
        left = self.context.allocation.budget - self._reserve - self.context.now()
        if not self._found:
            return self.pair_seconds <= left
        seen, enough = self._ratio(), len(self._found) >= self._fewest
        if (enough and self._faster(seen)) or seen.value <= 1.0 or self._quality(level).passed is False:
            return False
        pairs = self._pairs_for(log(seen.value))
        return pairs is not None and max(pairs - len(self._found), 1) * self.pair_seconds <= left

    def _faster(self, ratio: Estimate) -> bool:
        return ratio.low > 1.0 and ratio.value >= 1.0 + self.context.min_gain

    def _pairs_for(self, gain: float) -> int | None:
        """Pairs of whole runs that confirm a log gain; None where no feasible number does."""
        if gain < log1p(self.context.min_gain):
            return None
        return next((n for n in range(self._fewest, MOST_PAIRS + 1) if self._of([gain] * n).low > 1.0), None)

    @property
    def pair_seconds(self) -> float:
        """Of a whole run of each, if the patched one is as fast as promised."""
        return (self.seconds or 0.0) * (1 + exp(-self.gain))

    def _pair(self, number: int, index: int, before: Plan) -> TrainedPair:
        context, state = self.context, self.state
        if self._before == before == state.baseline:
            context.gate.selected.add(self.candidate.plan.key)
        return context.gate.trainings.whole_runs(
            before,
            self.candidate.plan,
            context.seed + FRESH_SEEDS + index,
            purpose=f"trial {number}, pair {index + 1}{'' if before == self._before else ', untouched'}",
            speedup=exp(self.gain),
            max_seconds=context.allocation.budget - context.now(),
        )

    def _ratio(self) -> Estimate:
        if self._otherwise:  # the steps to the target are a matter of chance as well
            seen = evidence_of(self.context, self.candidate.plan, self._found)
            trained = Trained.of(self._found, seen, None)
            if trained is not None:
                return trained.ratio
        return self._of([pair.log_ratio for pair in self._found])

    def _of(self, logs: list[float]) -> Estimate:
        """The ratio, by the scatter of whole runs that take turns, or of ones that run one after the other."""
        possible = isfinite(turn_of(self.state.memory_limit_bytes))
        time_sliced = possible and all(pair.time_sliced_same_steps for pair in self._found)
        length = length_scatter(self._found, self.state.facts.run) if self._found else 0.0
        return ratio_of_pairs(logs, self.state.noise.process_sd, time_sliced=time_sliced, length=length)
