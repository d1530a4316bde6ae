"""Seconds that the verification of a plan still needs: pairs of processes, probes, and trainings in turns."""

from __future__ import annotations

from autoopt.search.at_once import of_plans
from autoopt.search.compare.comparison import Comparison
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.strategy import Risk

SEEDS = 2
"""Seeds that baseline and final plan are trained from, where there is time."""

OVER = 0.05
"""Of the budget: a training that is nearly there may end; what takes longer than was to be expected is cut off."""


def seconds_due(context: RunContext, state: SearchState) -> float:
    """Seconds that the verification of the incumbent still needs: pairs of processes, probes, trainings in turns."""
    tested = 0.0 if proved(state) else _short(context, state) + probes_due(context, state)
    return _trainings_due(context, state) + tested


def proved(state: SearchState) -> Comparison | None:
    """The proof of the incumbent, where it was compared with the baseline itself."""
    found = state.comparisons.get(int(state.base)) if state.base.isdigit() else None
    return found if found is not None and of_plans(found, state.baseline, state.incumbent) else None


def may_be_compared(context: RunContext, state: SearchState, end: float) -> bool:
    """Whether there is time for a short comparison of the incumbent with the baseline, and then for its trainings."""
    return end - context.now() - _trainings_due(context, state) >= _short(context, state)


def may_be_checked(context: RunContext, state: SearchState, end: float, *, trained: bool) -> bool:
    """Whether the incumbent can be proved against the baseline itself: what is left of a stack was not.

    Args:
        trained: no probe is believed on what is left, unless it is exact.
    """
    needed = 0.0 if proved(state) is not None else _short(context, state) + probes_due(context, state)
    if trained and not exact(context, state):
        needed += context.allocation.in_turns(state.speedup_so_far)
    if not needed:
        return True
    return not context.stopping() and context.now() + needed <= end + OVER * context.allocation.budget


def exact(context: RunContext, state: SearchState) -> bool:
    """Whether what was kept changes no result at all, by its class."""
    return context.gate.risk_over(state.incumbent, state.baseline) is Risk.EXACT


def compared_by(context: RunContext, state: SearchState, end: float) -> float:
    """Until when the plan may be compared, so that it can be trained thereafter: from two seeds, else from one.

    What is left for the comparison is a short one at least, before a second seed is thought of and before the plan is
    trained alone instead of in turns.
    """
    allocation, speedup = context.allocation, state.speedup_so_far
    now, short, dearer = context.now(), _short(context, state), state.dearer_start(state.incumbent)
    end -= short / 4  # half a pair of processes: the last one may take longer than those before it
    first = len(context.gate.in_turns(state.incumbent))
    by = end - max(SEEDS - first, 0) * (allocation.in_turns(speedup) + dearer)
    if by - now >= short:  # two seeds, each trained in turns, make the headline
        return by
    if first:
        return max(end, now + short)
    by = end - allocation.in_turns(speedup) - dearer
    return by if by - now >= short else max(end - allocation.verification(1, speedup) - dearer, now + short)


def _short(context: RunContext, state: SearchState) -> float:
    """Seconds of a short comparison of the incumbent with the baseline: two pairs of their processes."""
    return 2 * context.pair_seconds(state, state.baseline, state.incumbent)


def probes_due(context: RunContext, state: SearchState) -> float:
    """Seconds of the probes that the quality level of the incumbent beside the baseline still takes."""
    due = context.gate.probes_due(state.incumbent, state.baseline)
    return due * (context.allocation.probe + context.allocation.start_seconds)


def _trainings_due(context: RunContext, state: SearchState) -> float:
    """Seconds of the trainings in turns that the headline still takes: two pairs where they fit, one in any case.

    Two pairs are an interval, and one is a point. So the second comes before a finer ablation or another comparison.
    """
    allocation, have = context.allocation, len(context.gate.in_turns(state.incumbent))
    each = allocation.in_turns(state.speedup_so_far) + state.dearer_start(state.incumbent)
    missing = max(SEEDS - have, 0)
    while missing > (0 if have else 1) and context.now() + missing * each > allocation.budget:
        missing -= 1
    return missing * each
