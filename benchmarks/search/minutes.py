"""Share of the attainable log speedup against minutes, on simulated machines whose truth is known.

``python -m benchmarks.search.minutes`` runs the whole loop, every module of it real but the
trials, whose true speed, cost and noise are given. Error: how often the final plan holds a change that brings nothing.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from autoopt.benchmark.warmup import least_groups
from autoopt.errors import TrialFailed
from autoopt.events import Event, TrialEnded
from autoopt.records import JsonDict, Plan
from autoopt.search.accept.gathering import SLOW_STEP
from autoopt.testing.fakes import Behaviour, NoiseModel
from benchmarks.documents import RESULTS, load, parser_of, record
from benchmarks.search import page
from benchmarks.search.cases import CASES, SimulatedCase
from benchmarks.whole_runs.tools import revision
from simulated import FakeTrial, World

INSPECTION = {"facts": 2.0, "measure_peaks": 3.0, "measure_stages": 6.0, "flops": 1.0, "probe": 8.0}
"""Seconds of a trial's tasks, as on a 2-core machine."""
STEPS = {"measure_stages": 12.0, "inspect": 14.0, "flops": 1.5, "advise": 2.5, "probe": 24.0}
"""Steps that a task takes, where they are slow, as seen on the same machine."""
STARTED, INCLUDED = frozenset({"facts", "probe"}), 2.0
"""Those of which each has a process of its own, and the seconds of its start that their figures hold."""
SHARED = NoiseModel("heavy")
DECIDED = ("kept", "no_gain", "harmful", "quality_lost", "failed")
WARM = 0.25
"""Of a compilation's seconds, those of a later start that finds it in the cache; on the CPU 5 of 33 s were measured."""


class _Trial(FakeTrial):
    """A trial's process whose tasks take time."""

    def call(self, task: str, **arguments: Any) -> JsonDict:
        _pass(self._runner, self._plan, task)
        return super().call(task, **arguments)


def _pass(runner: Any, plan: Plan, task: str) -> None:
    """The seconds of a task, with those of its process's start."""
    name = task.rpartition(":")[2]
    behaviour = runner.machine.behave(plan)
    start = behaviour.startup_seconds - INCLUDED if name in STARTED else 0.0
    seconds = INSPECTION.get(name, 0.0)
    if behaviour.step_seconds > SLOW_STEP:
        seconds = max(seconds, STEPS.get(name, 0.0) * behaviour.step_seconds)
    runner.machine.clock.advance(seconds + max(start, 0.0))


def simulated(case: SimulatedCase, budget: float, seed: int, folder: Path, noise: NoiseModel = SHARED) -> World:
    """The world of a case, not yet run."""

    compiled: set[frozenset[str]] = set()

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        names = plan.names()
        share = WARM if case.graph is not None and case.graph_of(names) in compiled else 1.0
        fixed = case.start_seconds + share * case.fixed(names)
        step = case.step_seconds / case.speed(names)
        warm_up = 2 * least_groups([step] * 4) if step > SLOW_STEP else behaviour.warm_up_steps
        return Behaviour(step_seconds=step, startup_seconds=fixed, warm_up_steps=warm_up)

    world = World(
        folder,
        *case.strategies(np.random.default_rng(seed)),
        speed=lambda plan: 1.0,
        behave=behave,
        noise=noise,
        reach=lambda plan: case.steps,
        budget=budget,
    )
    world.runner.obeys_limits = True
    world.runner.machine.rng = np.random.default_rng([seed, 7])
    start = world.runner.machine.start

    def limited(plan: Plan, label: str) -> Any:
        arm = start(plan, label)
        limit = getattr(getattr(world.runner, "limits", None), "ready", 300.0)
        warm_up = world.runner.limits.warm_up
        once = arm.behaviour.startup_seconds - case.start_seconds
        if warm_up is not None and once > warm_up:
            world.clock.advance(case.start_seconds + warm_up)
            raise TrialFailed("timeout", f"no answer within {warm_up:g} s (warm_up)")
        if case.hangs & set(plan.names()):
            world.clock.advance(limit)
            raise TrialFailed("timeout", f"no answer within {limit:g} s (ready)")
        compiled.add(case.graph_of(plan.names()))
        return arm

    world.runner.start = limited
    usual, asked = world.runner.trial, world.runner.ask
    world.runner.trial = lambda *a, **k: _costly(usual, world, *a, **k)
    world.runner.ask = lambda plan, task, **k: _asked(asked, world, plan, task, **k)
    return world


def _asked(usual: Any, world: World, plan: Plan, task: str, **arguments: Any) -> JsonDict:
    _pass(world.runner, plan, task)
    return usual(plan, task, **arguments)


def _costly(usual: Any, world: World, *arguments: Any, **options: Any) -> Any:
    from contextlib import contextmanager

    @contextmanager
    def trial() -> Any:
        with usual(*arguments, **options) as process:
            process.__class__ = _Trial
            yield process

    return trial()


def seconds_to_target(case: SimulatedCase, names: tuple[str, ...]) -> float:
    return case.start_seconds + case.fixed(names) + case.steps * case.step_seconds / case.speed(names)


def attainable(case: SimulatedCase) -> float:
    """The largest true log speedup of the time to the target that any plan brings."""
    every = [name for name in case.gains if name not in case.hangs]
    plans = [names for size in range(min(len(every), 5) + 1) for names in combinations(every, size)]
    return max(math.log(seconds_to_target(case, ()) / seconds_to_target(case, names)) for names in plans)


def gain_of(case: SimulatedCase, names: tuple[str, ...]) -> float:
    """The true log speedup of the time to the target."""
    return math.log(seconds_to_target(case, ()) / seconds_to_target(case, names))


def run(
    case: SimulatedCase,
    budget: float,
    seed: int,
    noise: NoiseModel = SHARED,
    prepare: Callable[[World], None] = lambda world: None,
) -> JsonDict:
    """One search: its trials with their minutes, its share of the attainable, and changes kept that bring nothing."""
    trials: list[JsonDict] = []
    with tempfile.TemporaryDirectory() as folder:
        world = simulated(case, budget, seed, Path(folder), noise)
        prepare(world)

        def heard(event: Event) -> None:
            if isinstance(event, TrialEnded):
                made = [event.trial.strategy, *(change.strategy for change in event.trial.companions)]
                minute = world.clock() / 60
                trials.append({"strategies": made, "verdict": str(event.trial.verdict), "minute": minute})

        world.context.announce.subscribe(heard)
        outcome = world.go()
        names, seconds = outcome.best.plan.names(), world.clock()
    ended, best = outcome.state.trials, attainable(case)
    useless = [n for n in names if case.speed(names) <= case.speed(tuple(o for o in names if o != n)) * 1.0001]
    decided = {*names, *(trial.strategy for trial in ended if trial.verdict.value in DECIDED and not trial.companions)}
    return {
        "case": case.name,
        "budget": budget,
        "seed": seed,
        "trials": trials,
        "decided": sorted(decided),
        "plan": list(names),
        "share": gain_of(case, names) / best if best > 0.005 else None,
        "useless": len(useless),
        "tried": len({trial.strategy for trial in ended}),
        "seconds": seconds,
    }


def main() -> None:
    parser = parser_of("benchmarks.search.minutes", __doc__, RESULTS / "minutes.json")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--budgets", type=float, nargs="+", default=[90.0, 120.0, 180.0, 300.0, 600.0])
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--start", type=float, default=0.0, help="seconds that a process takes to start at least")
    options = parser.parse_args()
    rows, part = [], "slow_starts" if options.start else "revisions"
    for budget, name in product(options.budgets, options.cases):
        case = replace(CASES[name], start_seconds=max(CASES[name].start_seconds, options.start))
        runs = [run(case, budget, seed) for seed in range(options.seeds)]
        rows.append(
            {"case": name, "budget": budget, **{key: [one[key] for one in runs] for key in ("share", "useless")}}
        )
        record(options.out, {"rows": rows, "start": options.start}, part, revision())
    print(page.minutes(load(options.out)))


if __name__ == "__main__":
    main()
