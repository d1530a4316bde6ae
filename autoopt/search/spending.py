"""Spending: what the seconds of a run went on, by the steps of its journal, and what more of them would buy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from autoopt.records import Spent, Stop, StopReason, Verdict
from autoopt.search.state import SearchState
from autoopt.storage.run import Took

_BY_KIND = {
    "inspect": "start-up",
    "sites": "start-up",
    "history": "start-up",
    "fit": "start-up",
    "control": "A/A control",
    "sharing": "A/A control",
    "diagnose": "profile",
    "examine": "profile",
    "look": "comparing candidates",
    "trial": "proof",
    "comparison": "proof",
    "comparisons": "ablation",
    "probe": "quality",
    "training": "quality",
    "rung": "tuning",
    "trainings": "quality",
    "largest": "verification",
}
_BY_PURPOSE = {"ablation": "ablation", "verification": "verification", "baseline": "baseline's training"}
"""Purposes that begin so say more than the kind of a step."""

IDLE = "between steps"
MOST_NAMED = 6
BEFORE_ROUNDS = 1.25
"""Seconds before the first round on a somewhat larger budget, over those that they were."""


def spending(took: Iterable[Took], seconds: float) -> tuple[Spent, ...]:
    """Seconds by what they were spent on, the largest first; what no step accounts for is the time between steps.

    Args:
        took: the steps.
        seconds: of the whole run.
    """
    found: dict[str, float] = defaultdict(float)
    for step in took:
        found[spent_on(step.kind, step.purpose)] += step.seconds
    rest = seconds - sum(found.values())
    if rest > 0.0:
        found[IDLE] = rest
    return tuple(Spent(on=on, seconds=each) for on, each in sorted(found.items(), key=lambda item: -item[1]))


def spent_on(kind: str, purpose: str) -> str:
    """The purpose of a step of a journal."""
    named = _BY_PURPOSE.get(purpose.partition(" ")[0].rstrip(":"))
    return named or _BY_KIND.get(kind, kind)


def more_budget(state: SearchState) -> str:
    """A sentence on what more time would buy, with how much; empty where time held nothing back."""
    unseen = without_a_look(state)
    undecided = {t.id: t.strategy for t in state.trials if t.verdict is Verdict.INCONCLUSIVE}
    unproven = {number: seconds for number, seconds in state.unproven.items() if number in undecided}
    if not unseen and not unproven:
        return ""
    seconds = sum(unseen.values()) + sum(unproven.values())
    parts = []
    if unseen:
        parts.append(f"a look at {len(unseen)} that had none ({named(unseen)})")
    if unproven:
        parts.append(f"the proof of what did well and was not decided ({named(undecided[n] for n in unproven)})")
    return f"about {max(seconds / 60, 0.1):.1f} min more would buy {' and '.join(parts)}"


def out_of_time(now: float, deadline: float, budget: float, needed: float, *, begun: bool) -> Stop:
    """The end of a search whose time is up, and where it never began the budget with which it would.

    Args:
        now, deadline: of the search, seconds of the run.
        budget: of the whole run, seconds.
        needed: seconds that the next thing would take.
        begun: whether there was a round.
    """
    kept_back = budget - deadline
    told = (
        f"of the {deadline:.0f} s that the search had of the {budget:.0f} s budget {max(deadline - now, 0):.0f} s were "
        f"left, and going on takes {needed:.0f} s; {kept_back:.0f} s are kept back for ablation and verification"
    )
    if not begun:
        wanted = BEFORE_ROUNDS * (now + needed + kept_back)
        told += f"; a budget of some {max(wanted / 60, 0.5):.1f} min begins to try changes"
    return Stop(reason=StopReason.BUDGET, detail=told)


def without_a_look(state: SearchState) -> dict[str, float]:
    """Strategies that there was no time for, with the seconds that a look at each would have taken."""
    tried = {trial.strategy for trial in state.trials}
    return {name: seconds for name, seconds in state.unseen.items() if name not in tried}


def named(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more
