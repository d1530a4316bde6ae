"""The planner: candidates to try next, and why not the rest, by priority order, applicability and predictions; and the
beliefs about each change: its prediction, and how far off comparisons have shown predictions of it to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt

import numpy as np
from scipy.stats import norm

from autoopt.records import Change, Estimate, EstimateKind, JsonDict, Plan, Prediction, Round, Stop, StopReason, Verdict
from autoopt.records.base import Z
from autoopt.registry import Registry
from autoopt.script.applicable import inapplicable, without_loader
from autoopt.setup import Setup
from autoopt.strategy import Case, Strategy

PLUGIN_ERRORS = (Exception, SystemExit)
"""Exceptions that a strategy's methods may raise without ending the run; a stop by the user is none of them."""


@dataclass(frozen=True)
class Choice:
    """Which strategies the user wants: ``only`` (empty: all), ``skip``, and the risk classes allowed."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    allow: tuple[str, ...] = ("exact", "numeric", "training")

    def names(self, strategy: str) -> bool:
        """Whether a strategy is among those that the user asked for by name."""
        return strategy not in self.skip and (not self.only or strategy in self.only)


@dataclass(frozen=True)
class Proposal:
    """A strategy with its first setting, and the prediction of that."""

    strategy: Strategy
    predicted: Estimate | None = None
    setting: JsonDict = field(default_factory=dict)

    @property
    def change(self) -> Change:
        return Change(strategy=self.strategy.name, setting=self.setting)


@dataclass(frozen=True, kw_only=True)
class Skipped(Proposal):
    """One that is not tried, and why."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Queue:
    """One round's proposals in their order, and the skipped strategies."""

    proposals: tuple[Proposal, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """Those of the proposals, the largest gain first; bounds after them, and last what has none."""

        def rank(proposal: Proposal) -> tuple[float, float]:
            bound = proposal.predicted.value if proposal.predicted is not None else 0.0
            return predicted_gain(proposal.predicted) or 0.0, bound

        ranked = sorted(self.proposals, key=rank, reverse=True)
        return tuple(Prediction(strategy=p.strategy.name, setting=p.setting, predicted=p.predicted) for p in ranked)


def predicted_gain(predicted: Estimate | None) -> float | None:
    """The speedup that is predicted; None where nothing is, or no more than a bound."""
    return None if predicted is None or predicted.kind is EstimateKind.BOUND else predicted.value


def build_queue(registry: Registry, case: Case, choice: Choice, threshold: float, untrainable: str = "") -> Queue:
    """Sorts all strategies into those worth trying and those not.

    Args:
        threshold: a speedup; one whose prediction, at the very best, is below it is not tried.
        untrainable: why no change of training can be judged; empty where one can.
    """
    every = [_consider(registry, strategy, case, choice, threshold, untrainable) for strategy in registry.values()]
    skipped = tuple(each for each in every if isinstance(each, Skipped))
    return Queue(tuple(each for each in every if not isinstance(each, Skipped)), skipped)


def by_promise(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals, the largest predicted speedup first; those that promise none or the same keep their order."""
    known = sorted(gain for gain in (predicted_gain(p.predicted) for p in proposals) if gain is not None)

    def promised(predicted: Estimate | None) -> float:
        """The speedup; where none is predicted, the median of the others, or no more than a bound leaves."""
        if predicted is not None and (predicted.kind is not EstimateKind.BOUND or not known):
            return predicted.value
        middle = known[len(known) // 2] if known else 1.0
        return min(middle, predicted.value) if predicted is not None else middle

    return sorted(proposals, key=lambda proposal: -max(promised(proposal.predicted), 1.0))


def _consider(
    registry: Registry, strategy: Strategy, case: Case, choice: Choice, threshold: float, untrainable: str
) -> Proposal | Skipped:
    predicted: Estimate | None = None
    setting: JsonDict = {}

    def skipped(verdict: Verdict, reason: str) -> Skipped:
        return Skipped(strategy, predicted, setting, verdict=verdict, reason=reason)

    if refused := unwanted(strategy, choice):
        return skipped(Verdict.NOT_TRIED, refused)
    try:
        for change in case.plan.changes:
            if strategy.name in registry[change.strategy].excludes:
                return skipped(Verdict.NOT_APPLICABLE, f"it has no effect in addition to {change.strategy}")
        no_loader: str | None = None  # a strategy of the loader misreads the data of a script that has none
        if case.sites is not None and not case.sites.of("loader_training") and strategy.example is not None:
            no_loader = without_loader(strategy.apply(Setup(), strategy.example.setting), case.sites)
        applies = strategy.applies(case)
        if not applies:
            why = no_loader or applies.reason or "it says that it does not apply"
            crashed = case.inspected(strategy.name).get("error")
            known = f" (its look into the workload failed: {crashed})" if crashed else ""
            return skipped(Verdict.NOT_APPLICABLE, f"{why}{known}")
        if untrainable and strategy.risk.trains_otherwise:
            return skipped(Verdict.NOT_TRIED, untrainable)
        first = next(iter(strategy.settings(case)), None)
        if first is None:
            return skipped(Verdict.NOT_APPLICABLE, no_loader or "it has no setting to try here")
        setting = dict(first)
        for trial in case.trials:  # an exception of its own: another incumbent mends none
            own = trial.strategy == strategy.name and trial.setting == setting and not trial.companions
            if own and trial.reason.startswith("error:"):
                return skipped(Verdict.FAILED, trial.reason)
        if case.sites is not None:  # with its companions it must go on the script that is trained
            setup = strategy.apply(Setup(), setting)
            for companion in strategy.companions(case, setting):
                if companion.strategy in registry:
                    setup = registry[companion.strategy].apply(setup, companion.setting)
            if refused := inapplicable(setup, case.sites, patched=True) or "":
                return skipped(Verdict.NOT_APPLICABLE, refused)
        predicted = predict(strategy, case, setting)
    except PLUGIN_ERRORS as error:  # a plugin's crash is a result, not the end
        return Skipped(strategy, verdict=Verdict.FAILED, reason=plugin_error(error))
    best = best_of(strategy, predicted, case)
    if predicted is not None and best < threshold:
        gain = predicted_gain(predicted)
        text = "" if gain is None else f"predicted {gain:.3f}x, "
        return skipped(Verdict.NOT_TRIED, f"cannot pay: {text}at the very best {best:.3f}x, below {threshold:.3f}x")
    return Proposal(strategy, predicted, setting)


def best_of(strategy: Strategy, predicted: Estimate | None, case: Case) -> float:
    """The most that may come of it; without a prediction of its own the ceiling says that."""
    if predicted is None:
        return inf
    # its interval knows nothing of what the graph leaves out, such as workers next to compute threads on few cores
    simulated = type(strategy).predict is not Strategy.predict and predicted.kind is EstimateKind.SIMULATED
    doubt = min(USUAL_SD, _share(strategy, case)) if simulated else 0.0
    return predicted.high * (1 + doubt)


def _share(strategy: Strategy, case: Case) -> float:
    """Seconds of the stages that it shortens over those of a step: a doubt cannot be larger than what it is about."""
    if case.pipeline is None or not case.pipeline.step_seconds:
        return 1.0
    seconds = {stage.name: stage.seconds * stage.parallel for stage in case.pipeline.stages}
    if not strategy.stages & set(seconds):
        return 1.0
    return sum(seconds.get(name, 0.0) for name in strategy.stages) / case.pipeline.step_seconds


def unwanted(strategy: Strategy, choice: Choice) -> str:
    if choice.only and strategy.name not in choice.only:
        return "not among --only"
    if strategy.name in choice.skip:
        return "left out by --skip"
    if strategy.risk.value not in choice.allow:
        return f"risk class {strategy.risk.value} needs --allow {strategy.risk.value}"
    return ""


def predict(strategy: Strategy, case: Case, setting: JsonDict) -> Estimate | None:
    """The strategy's own prediction, else the what-if of its stages at their ceiling, which is a bound and no
    prediction.

    Numbers of its own, which neither the pipeline nor a try on a copy gave, are declared ones.
    """
    own = strategy.predict(case, setting)
    if own is not None:
        return own.as_kind(EstimateKind.DECLARED) if own.kind is EstimateKind.MEASURED else own
    if case.pipeline is None or strategy.risk.trains_otherwise:
        return None
    ceilings = {
        stage.name: stage.ceiling_seconds
        for stage in case.pipeline.stages
        if stage.name in strategy.stages and stage.ceiling_seconds is not None
    }
    if not ceilings:
        return None
    ceilings = {**_issued(case.pipeline.round, strategy.stages), **ceilings}
    gain = case.pipeline.gain(ceilings)
    most = max(gain.high, 1.0)
    return Estimate(value=most, low=1.0, high=most, n=gain.n, kind=EstimateKind.BOUND)


def _issued(round_: Round, stages: Iterable[str]) -> dict[str, float]:
    """The ``host`` stage of a device at the very best of a strategy that shortens what is issued: none of it."""
    known, host = round_.simulation, next((stage for stage in round_.stages if stage.name == "host"), None)
    if known is None or known.device == "cpu" or host is None:
        return {}
    update = min(host.seconds, known.update_issue_seconds or 0.0)
    left = update if "optimizer" not in stages else 0.0
    return {"host": left} if {"forward", "backward"} & set(stages) else {"host": host.seconds - update + left}


def candidate_plan(registry: Registry, incumbent: Plan, changes: Iterable[Change]) -> Plan:
    """The incumbent with these changes, in the registry's order, less what they exclude."""
    plan = incumbent
    for change in changes:
        for other in incumbent.changes:
            if registry.exclude(change.strategy, other.strategy):
                plan = plan.without(other.strategy)
        plan = plan.with_change(change)
    return registry.order(plan)


def plugin_error(error: BaseException) -> str:
    """A plugin's exception as a trial's reason."""
    return f"error: the strategy raised {type(error).__name__}: {error}".split("\n")[0]


def at_the_ceiling(round_: Round) -> Stop | None:
    """The stop of a search where no stage holds the step back; None where one does, or that is not known."""
    ceiling = round_.ceiling_step_seconds
    if not ceiling or not round_.stages or round_.bottleneck is not None:
        return None
    takes = f"a step takes {1e3 * round_.step_seconds:.2f} ms, its ceiling here is {1e3 * ceiling:.2f} ms"
    times = f"({round_.step_seconds / ceiling:.2f} times that)"
    why = f"{takes} {times}: no stage is far enough from its own to hold it back"
    return Stop(reason=StopReason.AT_THE_CEILING, detail=why)


def nothing_left(plan: Queue, threshold: float) -> Stop:
    """The stop of a search whose queue has nothing more that is worth trying."""
    best = max((p.predicted.high for p in plan.skipped if p.predicted), default=None)
    if not plan.proposals and best is not None:
        why = f"the best remaining prediction is {best:.3f}x, below the {threshold:.3f}x that would count"
        return Stop(reason=StopReason.DIMINISHING_RETURNS, detail=why)
    return Stop(reason=StopReason.EXHAUSTED, detail="every applicable strategy was tried on the incumbent")


Member = tuple[str, Estimate | None]
"""A strategy's name, and what its prediction says next to the others of a plan; None where it says nothing."""

USUAL_SD = 0.1
"""How the log gains of changes scatter around their predictions, about; by half of itself, where one is larger."""
UNKNOWN_SD = 0.3
"""How those of which nothing is predicted scatter around none: some double the speed."""


def gain_where_it_is_one(mean: float, spread: float) -> float:
    """The log gain to be expected of what is taken only where it turns out to be a gain, of a normal distribution."""
    spread = max(spread, 1e-9)
    return spread * float(norm.pdf(mean / spread)) + mean * float(norm.cdf(mean / spread))


def prior(predicted: Estimate | None) -> tuple[float, float]:
    """Mean and spread of a log gain by its prediction alone; of a bound, that there is no more."""
    if predicted is None:
        return 0.0, UNKNOWN_SD
    if predicted.kind is EstimateKind.BOUND:
        return 0.0, min(UNKNOWN_SD, max(log(max(predicted.value, 1.0)), 1e-3))
    mean = log(predicted.value)
    return mean, max(abs(mean) / 2, USUAL_SD)


class Beliefs:
    """The errors of predictions as one normal distribution, in logs of speedups.

    A plan's log gain is the sum of what its changes are predicted to bring next to each other, and of the errors of
    these predictions. Each comparison of a plan shows the sum of the errors: it moves those of all its changes, the
    least certain most, and several plans distinguish between the changes that they do not share.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._mean, self._covariance = np.zeros(0), np.zeros((0, 0))
        self._seen = set[str]()

    def saw(
        self,
        members: Sequence[Member],
        gain: float,
        error: float,
        expected: float | None = None,
        shares: Sequence[float] | None = None,
    ) -> None:
        """A plan's log gain, with its standard error, over the same plan without these changes.

        Args:
            expected: of it by the predictions alone; their sum where None.
            shares: of each change's log gain in the plan's; all of it where None.
        """
        expected = sum(prior(said)[0] for _, said in members) if expected is None else expected
        which = self._features(members, shares)
        moved = self._covariance @ which
        weights = moved / (which @ moved + max(error, 1e-6) ** 2)
        self._mean = self._mean + weights * (gain - expected - which @ self._mean)
        self._covariance = self._covariance - np.outer(weights, moved)
        self._seen.update(name for name, _ in members)

    def of(self, members: Sequence[Member]) -> tuple[float, float]:
        """Mean and standard error of the log gain of these changes together."""
        which = self._features(members)
        mean = sum(prior(said)[0] for _, said in members) + which @ self._mean
        return float(mean), sqrt(max(float(which @ self._covariance @ which), 0.0))

    def believed(self, name: str, predicted: Estimate | None) -> Estimate | None:
        """The speedup of a change: its prediction, until something was seen of it; None where neither says anything."""
        if name not in self._seen:
            return None if predicted is None or predicted.kind is EstimateKind.BOUND else predicted
        mean, error = self.of([(name, predicted)])
        low, high = exp(mean - Z * error), exp(mean + Z * error)
        return Estimate(value=exp(mean), low=low, high=high, n=1, kind=EstimateKind.TRIED)

    def _features(self, members: Sequence[Member], shares: Sequence[float] | None = None) -> np.ndarray:
        for name, predicted in members:
            if name not in self._names:
                self._names.append(name)
                self._mean = np.append(self._mean, 0.0)
                grown = np.zeros((len(self._names),) * 2)
                grown[:-1, :-1] = self._covariance
                grown[-1, -1] = prior(predicted)[1] ** 2
                self._covariance = grown
        found = np.zeros(len(self._names))
        for (name, _), share in zip(members, shares or [1.0] * len(members), strict=True):
            found[self._names.index(name)] += share
        return found
