"""``--tune``: a budgeted search of the optimizer's hyper-parameters, before the search of changes.

Optuna's TPE asks for values, each is trained here from a seed that confirms nothing later, and successive halving ends
those that are hopeless at their level. The best are handed to the strategy ``hyperparameters``, whose confirmation
trains it anew from the seeds of the gate. Every level is a step of the journal: a resumed run asks for the same values
again.
"""

from __future__ import annotations

import contextlib
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from autoopt.errors import TrialFailed, UsageError
from autoopt.options import Options
from autoopt.records import Change, Objective, Plan
from autoopt.records.messages import TrainingRun
from autoopt.records.tuning import Tuning, TuningTrial
from autoopt.search.first_training import train_first
from autoopt.search.run_context import RunContext
from autoopt.search.trial_runner import CONFIRMED
from autoopt.search.verify import FRESH_SEEDS
from autoopt.trial.remote.launcher import AnyTrial

if TYPE_CHECKING:
    import optuna

STRATEGY = "hyperparameters"
SHARE = 0.5
"""Of what is left for the search, for tuning at most; the winner's confirmation and all other changes need the rest."""
MOST_TRIALS, STARTUP, FACTOR = 60, 5, 3
ENOUGH_FOR_IMPORTANCE = 8


def tune(context: RunContext, options: Options) -> None:
    """Searches, and hands the best values on. Does nothing where nothing was asked for.

    Raises:
        UsageError: a name that the optimizer does not have.
    """
    state = context.state
    if not options.tune:
        return
    space, facts = {text.partition("=")[0]: text.partition("=")[2] for text in options.tune}, state.facts.optimizer
    numbers = {
        name: float(value)
        for name, value in facts.options.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    for name in space:
        if name not in numbers:
            raise UsageError(
                f"--tune {name}: {facts.type} has no such number", hint=f"there are: {', '.join(sorted(numbers))}"
            )
    own = {name: numbers[name] for name in space}
    empty = Tuning(
        space=options.tune, metric=state.objective.metric, target=state.objective.target,
        seed=context.seed + FRESH_SEEDS - 1, own=own,  # the winner is trained anew from seeds that chose nothing
    )  # fmt: skip
    if state.trained is None and state.objective.metric is not None and not state.untrainable:
        train_first(context)  # on a short budget it waits for a plan to be trained next to it: levels come of it
    refused = state.untrainable or ("" if state.trained is not None else "there was no time to train the baseline")
    if state.objective.target is None:
        refused = "without a target metric there is no time to it, by which values are ranked"
    if refused:
        state.tuning = empty.model_copy(update={"note": refused})
        context.warn(f"--tune: {refused}")
        return
    state.tuning = Tuner(context, space, empty).run()
    best, default = state.tuning.trial(state.tuning.best), state.tuning.trial(state.tuning.default)
    if best is None or best.seconds_to_target is None:
        return
    usual = default.seconds_to_target if default is not None else None
    if usual is None or usual > (1 + state.objective.min_gain) * best.seconds_to_target:
        state.tuned = {STRATEGY: {"found": best.values}}


def distributions(space: dict[str, str]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Optuna's distributions of a space as :func:`autoopt.options.parsers.parse_tune` writes it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for name, text in space.items():
        if "|" in text:
            found[name] = CategoricalDistribution([float(number) for number in text.split("|")])
            continue
        scale, _, span = text.partition(":")
        low, _, high = span.partition("..")
        found[name] = FloatDistribution(float(low), float(high), log=scale == "log")
    return found


def rungs_of(steps: int, every: int) -> tuple[int, ...]:
    """Steps at which trials are judged: a ninth, a third and all of what the baseline needs, at its evaluations."""
    rungs = [max(every, round(steps / part / every) * every) for part in (FACTOR * FACTOR, FACTOR)]
    return tuple(sorted({*rungs, max(every, -(-steps // every) * every)}))


class Tuner:
    """One search."""

    def __init__(self, context: RunContext, space: dict[str, str], document: Tuning) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.context, self.state, self.document = context, context.state, document
        self.distributions = distributions(space)
        trained = context.state.trained
        assert trained is not None
        steps = trained.curve.steps_to_target or trained.steps
        every = trained.curve.points[0].step if trained.curve.points else steps
        self.step_seconds = trained.seconds / max(trained.steps, 1)
        self.rungs = rungs_of(steps, every)
        self.limit = self.rungs[-1] + CONFIRMED * every
        """The last level and the evaluation that confirms it."""
        self.study = optuna.create_study(
            direction="minimize",
            sampler=optuna.samplers.TPESampler(seed=context.seed, n_startup_trials=STARTUP),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR),
        )

    def run(self) -> Tuning:
        """Trials until the time for them is up; the workload's own values first, where they lie in the space."""
        context, began = self.context, self.context.now()
        deadline = began + SHARE * (context.allocation.search_deadline(0) - began)
        own = self.document.own
        default = all(self.distributions[name]._contains(value) for name, value in own.items())
        if default:
            self.study.enqueue_trial(dict(own))
        trials: list[TuningTrial] = []
        longest = context.allocation.start_seconds + self.limit * self.step_seconds  # of a trial, about
        while len(trials) < MOST_TRIALS and not context.stopping() and context.now() + longest < deadline:
            trials.append(self._trial(len(trials)))
        reached = [trial for trial in trials if trial.seconds_to_target is not None]
        best = min(reached, key=lambda trial: trial.seconds_to_target or 0.0, default=None)
        importance, note = self._importance(trials)
        if best is None:
            note = f"none of {len(trials)} trials reached the target within {self.limit} steps; {note}".rstrip("; ")
        return self.document.model_copy(
            update={
                "rungs": self.rungs,
                "trials": tuple(trials),
                "default": 0 if default and trials else None,
                "best": best.number if best else None,
                "importance": importance,
                "note": note,
                "seconds": context.now() - began,
            }
        )

    def _trial(self, number: int) -> TuningTrial:
        """One training, judged level by level, in one process, which is started when a level is not in the journal."""
        from optuna.trial import TrialState

        context, document, objective = self.context, self.document, self.state.objective
        asked = self.study.ask(self.distributions)
        values = {name: float(value) for name, value in asked.params.items()}
        trial = TuningTrial(number=number, values=values, state="not_reached")
        plan = Plan(changes=(*self.state.baseline.changes, Change(strategy=STRATEGY, setting=values)))
        with contextlib.ExitStack() as stack:
            live: list[AnyTrial] = []

            def measure(steps: int) -> TrainingRun:
                if not live:
                    started = context.runner.trial(context.registry.order(plan), f"tune-{number}", seed=document.seed)
                    live.append(stack.enter_context(started))
                seconds = 4.0 * self.limit * self.step_seconds + 60.0
                answer = live[0].call(
                    "autoopt.benchmark.tasks:train", timeout=2 * seconds + 120.0, steps=steps,
                    max_seconds=seconds, max_steps=self.limit, target=document.target, confirm=CONFIRMED,
                )  # fmt: skip
                return TrainingRun.model_validate(answer).model_copy(update={"losses": ()})

            for place, steps in enumerate((*self.rungs[:-1], self.limit)):
                key = {"trial": number, "values": values, "steps": steps, "seed": document.seed}
                try:
                    run = context.run.step("rung", key, partial(measure, steps), TrainingRun)
                except TrialFailed as failure:
                    trial = trial.model_copy(update={"state": "failed", "reason": failure.reason})
                    break
                trial = self._seen(trial, run, objective)
                if trial.state in ("reached", "failed") or place == len(self.rungs) - 1:
                    break
                worst = float("inf")
                loss = worst if trial.metric is None else -trial.metric if objective.mode == "max" else trial.metric
                asked.report(loss, FACTOR**place)
                if asked.should_prune():
                    reason = f"behind others at step {run.steps}"
                    trial = trial.model_copy(update={"state": "pruned", "reason": reason})
                    break
        ended = {"failed": TrialState.FAIL, "pruned": TrialState.PRUNED}.get(trial.state)
        self.study.tell(asked, None if ended else self._value(trial, objective), state=ended)
        return trial

    def _seen(self, trial: TuningTrial, run: TrainingRun, objective: Objective) -> TuningTrial:
        points = tuple((point.step, point.metric) for point in run.curve.points if point.metric is not None)
        pick = max if objective.mode == "max" else min
        seen: dict[str, Any] = {
            "steps": run.steps,
            "points": points,
            "metric": pick((metric for _, metric in points), default=None),
        }
        if not run.finite:
            return trial.model_copy(update={**seen, "state": "failed", "reason": "not_finite: a loss or metric"})
        if run.stopped == "target" and run.curve.steps_to_target:
            seconds = run.curve.steps_to_target * self.step_seconds
            price = objective.price_per_hour
            seen |= {
                "state": "reached",
                "steps_to_target": run.curve.steps_to_target,
                "seconds_to_target": seconds,
                "cost_to_target": seconds / 3600 * price if price is not None else None,
            }
        return trial.model_copy(update=seen)

    def _value(self, trial: TuningTrial, objective: Objective) -> float:
        """Seconds to the target; where it was not reached, all of them and more by how far the metric is off."""
        if trial.seconds_to_target is not None:
            return trial.seconds_to_target
        target = objective.target or 0.0
        off = abs(target - trial.metric) / max(abs(target), 1e-12) if trial.metric is not None else 1.0
        return self.limit * self.step_seconds * (1.0 + min(off, 1e3))

    def _importance(self, trials: list[TuningTrial]) -> tuple[dict[str, float] | None, str]:
        """Shares of the parameters by PED-ANOVA, of trials that went all the way."""
        whole = [trial for trial in trials if trial.state in ("reached", "not_reached")]
        if len(self.distributions) < 2:
            return None, "one parameter has no rival in importance"
        if len(whole) < ENOUGH_FOR_IMPORTANCE:
            return None, f"importance needs {ENOUGH_FOR_IMPORTANCE} trials that were not pruned, there are {len(whole)}"
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = get_param_importances(self.study, evaluator=PedAnovaImportanceEvaluator())
            except (ValueError, RuntimeError) as error:
                return None, f"importance: {error}"
        return {name: float(share) for name, share in found.items()}, ""
