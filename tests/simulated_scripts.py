"""A script in simulated time: its steps as any workload's, its whole runs by what its patch brings."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, EstimateKind, Plan, RunParts, Site, Sites
from autoopt.records.messages import TrainingRun
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.script.whole_run import WholeRun
from autoopt.search.accept.evidence import TrainedPair
from simulated import World, product, strategy

STEPS = 600
SITES = Sites(command=("python", "train.py"), cwd=".", run=RunParts(steps=STEPS, end_seconds=10.0))
LOADER = Site(file="train.py", line=1, end_line=1, function="main", kind="loader_training", call="DataLoader")
VAGUE = Estimate(value=1.05, low=0.9, high=1.22, n=3, kind=EstimateKind.TRIED)
"""A prediction that leaves open whether there is a gain."""


class ScriptWorld(World):
    """A loop over a script whose patched run takes so many times the seconds of its untouched one.

    Args:
        whole: by the strategies of a plan, those of its steps where nothing else is given; what no patch says takes
            as long as before.
        lose: strategies that end with another metric, which no probe sees.
        break_: strategies whose patched run fails as it begins, which no probe sees either.
        seconds: of the untouched script's run.
    """

    def __init__(
        self,
        directory: Path,
        *strategies: Any,
        whole: dict[str, float],
        lose: tuple[str, ...] = (),
        break_: tuple[str, ...] = (),
        sites: Sites = SITES,
        seconds: float = 40.0,
        **more: Any,
    ) -> None:
        super().__init__(directory, *strategies, **{"speed": product(whole), **more})
        self.whole, self.lose, self.break_, self.seconds = whole, lose, break_, seconds
        self.pairs: list[tuple[str, ...]] = []
        runner: Any = self.runner
        runner.base = TrialSpec(workload="train.py", script=ScriptSpec(command=("python", "train.py"), sites=sites))
        runner.runs_whole = lambda plan: any(name in self.whole for name in plan.names())
        runner.whole_runs = self.run_whole
        runner.watched, runner.knows = lambda then=None, wait=0.0: sites, lambda sites: None
        runner.facts = runner.facts.model_copy(update={"target": None, "max_steps": STEPS})

    def run_whole(
        self,
        before: Plan,
        plan: Plan,
        *,
        steps: int,
        seed: int,
        max_seconds: float,
        speedup: float,
        patience: float,
        every: float | None = None,
    ) -> TrainedPair:
        self.pairs.append(plan.names())
        if set(plan.names()) & set(self.break_):
            self.clock.advance(1.0)
            failure = TrialFailed("error", "Input type (float) and bias type (double) should be the same")
            failure.side = 1
            raise failure
        runs: list[TrainingRun] = []
        for side, each in enumerate((before, plan)):
            seconds = self.seconds / prod(self.whole.get(name, 1.0) for name in each.names())
            limit = min(max_seconds, patience * runs[0].seconds) if runs else max_seconds
            self.clock.advance(min(seconds, limit))
            if seconds > limit:
                failure = TrialFailed("timeout", "not at its end")
                failure.side = side
                raise failure
            metrics = (0.3, 0.3) if side and set(plan.names()) & set(self.lose) else (0.6, 0.9)
            runs.append(WholeRun(seconds, metrics).as_training(steps, seed, every=every))
        return TrainedPair(baseline=runs[0], best=runs[1], whole=True, time_sliced=True)


def promised(name: str, value: float, stage: str) -> Any:
    """A strategy of one stage with a prediction whose whole interval is a gain."""
    told = Estimate(value=value, low=0.98 * value, high=1.02 * value, n=3, kind=EstimateKind.TRIED)
    return strategy(name, stages=frozenset({stage}), predict=lambda self, case, setting: told)
