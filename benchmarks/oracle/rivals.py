"""Optuna's samplers over the same knobs: asked for a point, told its seconds to the target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.oracle.space import Knobs, Point, wanted

SAMPLERS = ("tpe", "random")
Table = dict[str, dict[str, Any]]
SEEDS = 25
"""Of the studies of a sampler, whose median choice runs in the race."""


def best(records: Iterable[dict[str, Any]]) -> Point | None:
    """The point with the fewest seconds to the target; None where none was measured."""
    known = [record for record in records if record["value"] is not None]
    return min(known, key=lambda record: record["value"])["point"] if known else None


def replayed(sampler: str, space: Knobs, table: Table, budget: float, seed: int) -> Point | None:
    """The choice of a study that draws from readings that are there already; each costs what it took.

    Args:
        sampler: ``tpe`` or ``random``, with Optuna's defaults.
        space: its knobs.
        table: the lattice's readings, as :func:`table_of` gives them.
        budget: seconds.
        seed: of the sampler.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    make = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}[sampler]
    study, spent, seen = optuna.create_study(sampler=make(seed=1000 * seed)), 0.0, []
    while spent < budget:
        trial, point = study.ask(), {}
        for name in sorted(space, key=lambda name: name != "samples"):
            if wanted(name, point, space):
                point[name] = trial.suggest_categorical(name, list(space[name]))
        found = table[key(point)]
        if found["value"] is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, found["value"])
        seen.append({"point": point, **found})
        spent += found["seconds"]
    return best(seen)


def replays(sampler: str, space: Knobs, table: Table, budget: float, seeds: int = SEEDS) -> list[Point]:
    """The sampler's choice from each of so many seeds, the best reading first."""
    chosen = [replayed(sampler, space, table, budget, seed) for seed in range(1, seeds + 1)]
    return sorted((point for point in chosen if point is not None), key=lambda point: table[key(point)]["value"])


def table_of(records: Iterable[dict[str, Any]]) -> Table:
    """Value and seconds of each point by its :func:`key`."""
    return {key(row["point"]): {"value": row["value"], "seconds": row["seconds"]} for row in records}


def key(point: Point) -> str:
    """A point as one text, whatever the order of its knobs."""
    return ", ".join(f"{name}={point[name]}" for name in sorted(point))
