"""Proofs one after the other: what may be proved in the time there is, and what is known of its quality first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from math import exp, log, log1p

from autoopt.records import Round, Trial, Verdict
from autoopt.search.budget_allocation import TRIAL
from autoopt.search.proof import Proof
from autoopt.search.proof_queue import Costs, quality_first, refused, without_doubtful
from autoopt.search.run_context import RunContext
from autoopt.search.screened import FEWEST_PAIRS, Screened
from autoopt.search.screening import Screening
from autoopt.search.state import Part, SearchState
from autoopt.search.trainable import takes_trainings

SHORT = 0.75
"""Where nothing was kept and nothing else is to come, a proof begins with so much of the time that it is thought to
need: a faster side takes less, and a pair that the end cuts short still counts."""
AGAIN = 2.0
"""A proof may take so many times the seconds that it is thought to need."""
IN_VAIN = "a plan that it is a part of was trained, and not shown to be as good"


class Proofs:
    """Proves what did well in the screening.

    Args:
        context, state: of the run.
        seen_bottleneck: under which each strategy was tried, by its name.

    Attributes:
        parts: of the stacks that were proved, by the key of their plans.
    """

    def __init__(self, context: RunContext, state: SearchState, seen_bottleneck: dict[str, str | None]) -> None:
        self.context, self.state = context, state
        self.parts: dict[str, Mapping[str, Part]] = {}
        self._seen_bottleneck, self._costs = seen_bottleneck, Costs(context, state)
        self._trained_by: dict[int, float] = {}

    def in_order(self, waiting: list[Screened], screening: Screening, round_: Round) -> bool:
        """Proves one after the other until one is kept; what the time does not hold waits for the others."""
        later, unproven = list[Screened](), list[Screened]()
        while waiting and not self.context.stopping():
            screened = waiting.pop(0)
            if self._costs.pairs(screened) > self._left_for(screened):
                later.append(screened)
                continue
            if not self._learns_as_well(screened, screening, waiting, unproven):
                continue
            if self._prove(screened, len(waiting), round_):
                return True
            if screened.trial.id in self._trained_by:
                unproven.append(screened)
                self._less_doubtful(screened, screening, waiting, lost=False)
        return any(self._prove(screened, 0, round_) for screened in later)

    def _left_for(self, screened: Screened) -> float:
        """Seconds for its proof: what stands out has all but what the end of the run cannot do without.

        Where nothing was kept and that leaves too little, it has the end, too: nothing else would be verified there.
        What is trained to be kept is verified by that, and has all but the way back.
        """
        gain, plan, now = exp(screened.gain), screened.candidate.plan, self.context.now()
        if screened.trial.id in self._trained_by:
            return self._trained_by[screened.trial.id] - now
        left = (self._costs.last_deadline(gain, plan) if screened.plain else self._costs.deadline(gain)) - now
        if not screened.plain or self.state.found or left >= AGAIN * self._costs.pairs(screened):
            return left
        return max(left, self.context.allocation.budget - now - self._costs.probes_of(screened.candidate.plan))

    def _learns_as_well(
        self, screened: Screened, screening: Screening, waiting: list[Screened], unproven: list[Screened]
    ) -> bool:
        """Whether nothing speaks against proving it now: what is known of its quality, or may be asked afterwards.

        One whose quality takes trainings has them after its proof, where they fit and leave the way back to the best of
        the others; else a stack comes back without its doubtful part. A part of what was trained in vain has none.
        """
        context, state, costs = self.context, self.state, self._costs
        quality = quality_first(context, state, screened)
        if quality is None or quality.passed is True or context.gate.accept_undecided:
            price = context.gate.price(screened.candidate.plan, state.incumbent)
            if quality is not None and screened.gain + screened.error - log(price) < log1p(context.min_gain) < log(
                price
            ):
                refused(state, screened, quality, f"{price - 1:.1%} more steps are more than a step saves")
                return False
            if price == 1.0 or not waiting or costs.worth(screened) >= costs.worth(waiting[0]):
                return True
            waiting[:] = costs.in_order([screened, *waiting])  # with its price it is worth less than what comes next
            return False
        others = [one for one in waiting if not takes_trainings(context, state, one.candidate.changes)]
        changes = screened.candidate.changes
        in_vain = any(all(change in whole.candidate.changes for change in changes) for whole in unproven)
        if quality.passed is None and not in_vain and costs.decidable(screened, others):
            self._trained_by[screened.trial.id] = context.allocation.budget - costs.way_back(screened, others)
            return True
        late = "" if quality.passed is False else IN_VAIN if in_vain else costs.told_trainings(screened)
        refused(state, screened, quality, late)
        self._less_doubtful(screened, screening, waiting, lost=quality.passed is False)
        return False

    def _less_doubtful(self, screened: Screened, screening: Screening, waiting: list[Screened], lost: bool) -> None:
        """Looks at a stack without what is not shown to train as well, and puts it to what waits."""
        rest = without_doubtful(self.context, self.state, screened.candidate, lost=lost)
        with closing(screening):
            again = screening.look(rest) if rest is not None else None
        if again is not None and again.trial.verdict is Verdict.INCONCLUSIVE:
            waiting[:] = self._costs.in_order([*waiting, again])

    def _prove(self, screened: Screened, remaining: int, round_: Round) -> bool:
        """Proves what did well in the screening, if there is time for two pairs of processes. True where it is kept."""
        context, state, candidate = self.context, self.state, screened.candidate
        left, needed = self._left_for(screened), self._costs.pairs(screened)
        late = needed > left and not screened.plain
        least = min(needed, FEWEST_PAIRS * context.allocation.pair) * (1.0 if state.found else SHORT)
        if context.stopping() or late or left < least:
            state.unproven[screened.trial.id] = needed - max(left, 0)
            told = f"to prove it would take about {needed:.0f} s; {max(left, 0):.0f} s were left"
            self._revise(screened.trial, told)
            return False
        state.trials = [trial for trial in state.trials if trial.id != screened.trial.id]  # its proof stands for it
        self._seen_bottleneck[candidate.strategy.name] = round_.bottleneck
        self.parts[candidate.plan.key] = candidate.parts
        proof = Proof(context, state, context.now() + left)
        trial = proof.measure(
            candidate,
            number=screened.trial.id,
            seconds=max((TRIAL if remaining else 1.0) * self._compared_in(screened, left), needed),
            note=f"seen as {exp(screened.gain):.2f}x in the screening",
            remaining=remaining,
        )
        return trial.verdict is Verdict.KEPT

    def _compared_in(self, screened: Screened, left: float) -> float:
        """Of the seconds for its proof, those that its trainings leave."""
        if screened.trial.id not in self._trained_by:
            return left
        return left - self._costs.trainings(screened.candidate.plan, exp(screened.gain)) - self._costs.probes()

    def _revise(self, trial: Trial, told: str) -> None:
        """Adds a sentence to the reason of a trial."""
        for index, known in enumerate(self.state.trials):
            if known.id == trial.id:
                self.state.trials[index] = known.model_copy(update={"reason": f"{known.reason}; {told}"})
