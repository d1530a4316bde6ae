"""Share of the attainable log speedup against minutes, on simulated machines whose truth is known.

``python -m benchmarks.search.minutes --seeds 8 --out FILE`` runs the whole loop, every module of it real but the
trials, whose true speed, cost and noise are given. Error: how often the final plan holds a change that brings nothing.
``--table FILE`` tells what a file holds: the share by budget and by case, and the seconds of the journals' steps.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from autoopt.benchmark.warmup import least_groups
from autoopt.errors import TrialFailed
from autoopt.events import Event, Kept
from autoopt.records import JsonDict, Plan
from autoopt.search.accept.gathering import SLOW_STEP
from autoopt.testing.fakes import Behaviour, NoiseModel
from benchmarks.search.cases import CASES, SimulatedCase
from benchmarks.search.runs import GAINS, until_gains
from simulated import FakeTrial, World

INSPECTION = {"facts": 2.0, "measure_peaks": 3.0, "measure_stages": 6.0, "flops": 1.0, "probe": 8.0}
"""Seconds of a trial's tasks, as on a 2-core machine."""
STEPS = {"measure_stages": 12.0, "inspect": 14.0, "flops": 1.5, "advise": 2.5, "probe": 24.0}
"""Steps that a task takes, where they are slow, as seen on the same machine."""
STARTED, INCLUDED = frozenset({"facts", "probe"}), 2.0
"""Those of which each has a process of its own, and the seconds of its start that their figures hold."""
SHARED = NoiseModel("heavy")
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


SPENT = {
    "facts, peaks": ("inspect",),
    "A/A": ("control",),
    "profiles": ("examine",),
    "looks": ("look",),
    "proofs": ("trial",),
    "trainings, probes": ("training", "trainings", "probe"),
    "ablation, verification": ("comparison", "comparisons"),
}
"""Columns of the table, by the kinds of the journal's steps."""


def table(rows: Sequence[JsonDict]) -> list[str]:
    """Two tables as Markdown: budgets with the mean seconds of their steps, and cases with their shares by budget."""
    budgets = sorted({row["budget"] for row in rows})
    lines = ["| budget | of the attainable | useless kept | verified | tried | " + " | ".join(SPENT) + " | whole |"]
    lines += ["| --- " * (len(SPENT) + 6) + "|"]
    for budget in budgets:
        mine = [row for row in rows if row["budget"] == budget]
        useless = f"{sum(row['useless'] > 0 for row in mine)} of {len(mine)}"
        steps = [fmean(sum(row["spent"].get(kind, 0.0) for kind in kinds) for row in mine) for kinds in SPENT.values()]
        seconds = [f"{each:.0f} s" for each in (*steps, fmean(row["seconds"] for row in mine))]
        ends = [row["verified"] for row in mine if row.get("verified") is not None]
        verified = f"{sum(ends)} of {len(ends)}"
        cells = [_told(budget), _share(mine), useless, verified, f"{fmean(row['tried'] for row in mine):.1f}", *seconds]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| case | " + " | ".join(map(_told, budgets)) + " |", "| --- " * (len(budgets) + 1) + "|"]
    for name in dict.fromkeys(row["case"] for row in rows if row["share"] is not None):
        shares = [_share([r for r in rows if (r["case"], r["budget"]) == (name, budget)]) for budget in budgets]
        lines.append(f"| {name} | " + " | ".join(shares) + " |")
    return lines


def _share(rows: Sequence[JsonDict]) -> str:
    known = [row["share"] for row in rows if row["share"] is not None]
    return f"{fmean(known):.0%}".replace("%", " %") if known else "-"


def _told(budget: float) -> str:
    return f"{budget / 3600:g} h" if budget >= 3600 else f"{budget / 60:g} min"


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


def run(case: SimulatedCase, budget: float, seed: int) -> JsonDict:
    """One search: its share of the attainable, how many changes it kept that bring nothing, and where its time went."""
    with tempfile.TemporaryDirectory() as folder:
        world = simulated(case, budget, seed, Path(folder))
        outcome = world.go()
        names = outcome.best.plan.names()
        lines = (Path(folder) / "journal.jsonl").read_text().splitlines()
    gain = gain_of(case, names)
    best = attainable(case)
    useless = [n for n in names if case.speed(names) <= case.speed(tuple(o for o in names if o != n)) * 1.0001]
    tried = {trial.strategy for trial in outcome.state.trials}
    return {
        "case": case.name,
        "budget": budget,
        "seed": seed,
        "plan": list(names),
        "share": gain / best if best > 0.005 else None,
        "useless": len(useless),
        "verified": outcome.speedup.end_to_end_verified if names else None,
        "tried": len(tried),
        "seconds": world.clock(),
        "until": {str(gain): seconds for gain, seconds in until_gains(_kept(world.events)).items()},
        "spent": _spent([json.loads(line)["record"] for line in lines]),
    }


def _kept(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Seconds and speedup over the incumbent before it of each kept plan."""
    found = [(event.at, event.speedup.throughput) for event in events if isinstance(event, Kept)]
    return [(at, estimate.value if estimate else 1.0) for at, estimate in found]


def _spent(records: list[JsonDict]) -> dict[str, float]:
    """Seconds by kind of step, from a journal."""
    begun, found = {}, defaultdict(float)
    for record in records:
        if record["type"] == "start":
            begun[record["step"]] = (record["kind"], record["at"])
        elif record["type"] in ("end", "failed") and record["step"] in begun:
            kind, at = begun[record["step"]]
            found[kind] += record["at"] - at
    return dict(found)


def _middle(seconds: Sequence[float | None]) -> str:
    """The median of those that came to it, and how many did not."""
    known = [each for each in seconds if each is not None]
    return f"{median(known) if known else 0:.0f} s (not in {len(seconds) - len(known)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budgets", type=float, nargs="+", default=[90.0, 180.0, 360.0, 600.0, 1800.0])
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--out", type=Path, help="the file of what was run")
    parser.add_argument("--table", type=Path, metavar="FILE", help="tell what a file holds, run nothing")
    options = parser.parse_args()
    if options.table is not None:
        print("\n".join(table(json.loads(options.table.read_text()))))
        return
    if options.out is None:
        parser.error("--out FILE, or --table FILE")
    rows = []
    for budget in options.budgets:
        for name in options.cases:
            rows += [run(CASES[name], budget, seed) for seed in range(options.seeds)]
        mine = [row for row in rows if row["budget"] == budget]
        shares = [row["share"] for row in mine if row["share"] is not None]
        reached = [[row["until"][str(gain)] for row in mine] for gain in GAINS]
        print(
            f"{budget:6.0f} s: {fmean(shares):6.1%} of the attainable, useless changes kept in "
            f"{fmean(row['useless'] > 0 for row in mine):.1%} of {len(mine)} runs, "
            f"{fmean(row['tried'] for row in mine):.1f} tried, {fmean(row['seconds'] for row in mine):.0f} s; "
            + ", ".join(f"{gain:g}x kept after {_middle(found)}" for gain, found in zip(GAINS, reached, strict=True)),
            flush=True,
        )
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
