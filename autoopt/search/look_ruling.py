"""The ruling of looks: a candidate's gain, how far that may err, and the verdict where seconds are enough for one."""

from __future__ import annotations

from math import log, log1p

from autoopt.records import Verdict
from autoopt.search.accept.evidence import Judgement
from autoopt.search.accept.judge import NOT_TESTED
from autoopt.search.accept.time_to_target import same_steps_ratio
from autoopt.search.candidate import Candidate
from autoopt.search.compare.comparison import Comparison, Decision
from autoopt.search.compare.contest import SWITCHED, within
from autoopt.search.compare.sequential_test import SequentialTest, between_process_of
from autoopt.search.compare.statistics import TwoLevel
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState


class LookRuling:
    """Rules on looks.

    Args:
        context, state: of the run.
    """

    def __init__(self, context: RunContext, state: SearchState) -> None:
        self.context, self.state = context, state

    def gain(self, candidate: Candidate, seen: Comparison) -> float | None:
        """Log speedup of the time to target, else of throughput; None where nothing was measured."""
        if seen.estimate is None or seen.failure is not None:
            return None
        gate, state = self.context.gate, self.state
        evidence = gate.evidence(candidate.plan, state.incumbent, state.facts)
        ratio = same_steps_ratio(seen, evidence, state.objective)
        return log(ratio.value if ratio else seen.estimate.value)

    def ruling(self, candidate: Candidate, seen: Comparison) -> Judgement:
        """The verdict of a look: what is plain after seconds, a refusal by whatever else would refuse it; else none."""
        context, state = self.context, self.state
        open_ = seen.decision in (Decision.INCONCLUSIVE, Decision.ACCEPT)
        ruling = context.gate.screened(
            candidate.plan,
            seen.model_copy(update={"decision": Decision.ACCEPT}) if open_ and seen.mode != SWITCHED else seen,
            state.facts,
            state.objective,
            state.noise,
        )
        if not open_ or seen.estimate is None:
            return ruling
        if ruling.verdict not in (Verdict.KEPT, Verdict.INCONCLUSIVE, Verdict.NO_GAIN):
            return ruling
        if ruling.verdict is Verdict.NO_GAIN and self._costs_too_much(candidate, seen):
            return ruling
        where = ", in one process with the incumbent" if seen.mode == SWITCHED else ""
        told = f"screened at {seen.estimate.value:.2f}x in {seen.seconds:.0f} s{where}; no claim is made"
        return ruling.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": told, "quality": NOT_TESTED})

    def _costs_too_much(self, candidate: Candidate, seen: Comparison) -> bool:
        """Whether it is faster step by step, and what it costs once outweighs that by more than a look may err."""
        gain, least = self.gain(candidate, seen), log1p(self.context.min_gain)
        if gain is None or seen.estimate is None or log(seen.estimate.value) < least:
            return False
        return gain + self.error((seen,)) < least

    def joined(self, looks: tuple[Comparison, ...]) -> Comparison:
        """The looks at one candidate as one comparison: each is a pair of processes of its own."""
        pairs = [pair for look in looks for pair in look.pairs]
        test = SequentialTest(self.context.rule(1.0), self.state.noise, pairs)
        decision, reason = test.decide(0.0) or (Decision.INCONCLUSIVE, "too few blocks")
        known = {"decision": decision, "reason": reason, "estimate": test.estimate(), "pairs": tuple(pairs)}
        return looks[-1].model_copy(update=known)

    def error(self, looks: tuple[Comparison, ...]) -> float:
        """Standard error of the log speedup that looks showed, how processes differ included; 0 where none did."""
        pairs = [pair for look in looks for pair in look.pairs]
        if not pairs:
            return 0.0
        switched = all(look.mode == SWITCHED for look in looks)
        between = between_process_of(within(self.state.noise) if switched else self.state.noise)
        return TwoLevel([pair.log_ratio for pair in pairs], [pair.standard_error for pair in pairs], between).error
