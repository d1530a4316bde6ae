"""The settings that a strategy asks for, one by one, with the looks as answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log1p

from autoopt.records import Estimate, JsonDict, Plan, Verdict
from autoopt.search.candidate import Answer, Candidate, candidate_of, conversation, plan_of, skip
from autoopt.search.planner import plugin_error
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.time_limits import PATIENCE
from autoopt.strategy import Case, Risk, Strategy


class Talk:
    """A conversation with a strategy.

    Args:
        context, state: of the run.
        case: what the strategy is told.
        look: looks at a candidate, with so many waiting behind it; the log of its gain, None where it shows none.
        start_room: seconds that a look leaves the candidate's start.

    Attributes:
        best: the largest log gain so far; 0 where none was seen.
        goes_on: whether there may be another setting.
    """

    def __init__(
        self,
        context: RunContext,
        state: SearchState,
        case: Case,
        strategy: Strategy,
        look: Callable[[Candidate, int], float | None],
        start_room: Callable[[Candidate], float],
    ) -> None:
        self._context, self._state, self._case, self.strategy = context, state, case, strategy
        self._look, self._start_room = look, start_room
        self._settings: Iterator[tuple[JsonDict | BaseException, Answer]] = conversation(strategy, case)
        self.best = 0.0
        self.goes_on = True
        self._asked: tuple[JsonDict | BaseException, Answer] | None = None
        self._upcoming: Candidate | None = None
        self._answer: Answer = lambda trial: None

    def coming(self) -> tuple[Plan, Estimate | None] | None:
        """The plan that is looked at next, which has been asked for with it; None where there is none."""
        if self._upcoming is not None:
            return self._upcoming.plan, self._upcoming.predicted
        self._asked = self._asked or next(self._settings, None)
        if self._asked is None or isinstance(self._asked[0], BaseException):
            return None
        plan = plan_of(self._context, self._state, self.strategy, self._case, self._asked[0])
        return (plan, None) if plan is not None else None

    def upcoming(self) -> Candidate | None:
        """The candidate that is looked at next; None where there is none, or nothing new to try in it."""
        if self._upcoming is None and self.goes_on:
            self._upcoming = self._next()
        return self._upcoming

    def _next(self) -> Candidate | None:
        found, self._asked = self._asked or next(self._settings, None), None
        if found is None:
            self.goes_on = False
            return None
        setting, self._answer = found
        if isinstance(setting, BaseException):
            skip(self._context, self._state, self.strategy, Verdict.FAILED, plugin_error(setting))
            self.goes_on = False
            return None
        candidate = candidate_of(self._context, self._state, self.strategy, self._case, setting)
        if candidate is None:
            self._answer(None)
        return candidate

    def ask(self, remaining: int) -> None:
        """Looks at the next setting, and answers: kept where it is the best of this strategy so far."""
        candidate, self._upcoming = self.upcoming(), None
        if candidate is None:
            return
        context, state = self._context, self._state
        room, once = self._start_room(candidate), context.runner.once.get(self.strategy.name, 0.0)
        if once > PATIENCE * room:
            state.unseen[self.strategy.name] = once
            told = f"no time for a look: its start takes about {once:.0f} s once, and may take {room:.0f} s here"
            skip(context, state, self.strategy, Verdict.NOT_TRIED, told)
            self.goes_on = False
            return
        trials = len(state.trials)
        gain = self._look(candidate, remaining)
        trial = state.trials[trials]
        lost = trial.verdict is Verdict.QUALITY_LOST
        better = gain is not None and not lost and gain > self.best + log1p(context.min_gain)
        if better and gain is not None:
            self.best = gain
        self._answer(trial.model_copy(update={"verdict": Verdict.KEPT}) if better else trial)
        failure = state.looks[-1].failure
        if failure is not None and failure.kind == "timeout":
            self.goes_on = False  # another setting of it would take as long, of less time
        if lost and self.strategy.risk is Risk.EXACT:
            self.goes_on = False  # that it changes what is learnt is no matter of the setting
