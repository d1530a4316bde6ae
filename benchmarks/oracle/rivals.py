"""Optuna's samplers over the same knobs: asked for a point, told its seconds to the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.oracle.space import Knobs, Point, wanted

SAMPLERS = ("tpe", "random")
Table = dict[str, dict[str, Any]]
TITLES = {"tpe": "Optuna TPE", "random": "Optuna random"}


class Rival:
    """One study.

    Args:
        sampler: ``tpe`` or ``random``, with Optuna's defaults.
        space: its knobs.
        seed: of the sampler.
        history: what it has seen in earlier slices: ``point`` and ``value`` (None: it failed).
    """

    def __init__(self, sampler: str, space: Knobs, seed: int, history: Iterable[dict[str, Any]] = ()) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self.space = optuna, space
        history = list(history)
        make = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}[sampler]
        # A sampler goes on from its place in the study, not from its first draw again.
        self._study = optuna.create_study(sampler=make(seed=1000 * seed + len(history)))
        for record in history:
            self._remember(record["point"], record["value"])

    def _remember(self, point: Point, value: float | None) -> None:
        known = self._optuna.trial.TrialState
        distributions = {
            name: self._optuna.distributions.CategoricalDistribution(list(self.space[name])) for name in point
        }
        state = known.COMPLETE if value is not None else known.FAIL
        trial = self._optuna.trial.create_trial(
            params=dict(point), distributions=distributions, value=value, state=state
        )
        self._study.add_trial(trial)

    def turn(self, evaluate: Callable[[Point], dict[str, Any]]) -> dict[str, Any]:
        """Asks for one point, has it evaluated, and tells the study.

        Args:
            evaluate: gives ``value``, the seconds to the target, or None where the point failed.

        Returns:
            What ``evaluate`` gave, with the ``point``.
        """
        trial = self._study.ask()
        point: Point = {}
        for name in sorted(self.space, key=lambda name: name != "samples"):
            if wanted(name, point, self.space):
                point[name] = trial.suggest_categorical(name, list(self.space[name]))
        found = evaluate(point)
        if found["value"] is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, found["value"])
        return {"point": point, **found}


def best(records: Iterable[dict[str, Any]]) -> Point | None:
    """The point with the fewest seconds to the target; None where none was measured."""
    known = [record for record in records if record["value"] is not None]
    return min(known, key=lambda record: record["value"])["point"] if known else None


def replayed(sampler: str, space: Knobs, table: Table, budget: float, seed: int) -> Point | None:
    """The sampler's choice from readings that are there already; each costs what it took.

    Args:
        table: the lattice's readings, as :func:`table_of` gives them.
        budget: seconds.
    """
    rival, spent, seen = Rival(sampler, space, seed), 0.0, []
    while spent < budget:
        found = rival.turn(lambda point: table[key(point)])
        seen.append(found)
        spent += found["seconds"]
    return best(seen)


def replays(sampler: str, space: Knobs, table: Table, budget: float, seeds: int) -> list[tuple[float, Point]]:
    """The sampler's choice from each of so many seeds, with its reading, the best first."""
    chosen = [replayed(sampler, space, table, budget, seed) for seed in range(1, seeds + 1)]
    return sorted(
        ((table[key(point)]["value"], point) for point in chosen if point is not None), key=lambda item: item[0]
    )


def table_of(records: Iterable[dict[str, Any]]) -> Table:
    """Value and seconds of each point by its :func:`key`."""
    return {key(row["point"]): {"value": row["value"], "seconds": row["seconds"]} for row in records}


def key(point: Point) -> str:
    """A point as one text, whatever the order of its knobs."""
    return ", ".join(f"{name}={point[name]}" for name in sorted(point))
