"""The race against an exhaustive search: its space, its rivals, its slices, and what its page claims."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Plan
from autoopt.registry import Registry, load_strategies
from autoopt.testing.fakes import FakeClock
from autoopt.testing.strategies import sample_case
from benchmarks.oracle import race, rivals, space, stages, table
from benchmarks.oracle.slice import Slice, State, from_document, seconds_to_target

pytest.importorskip("optuna", reason="a rival in the race")

WORKERS = {"strategy": "workers", "setting": {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}}
THREAD = {"strategy": "threads", "setting": {"threads": 1}}
WHOLE = {"strategy": "prepared_samples", "setting": {"form": "rows", "where": "memory"}}
AMP = {"strategy": "amp", "setting": {"dtype": "bfloat16"}}
KNOBS: space.Knobs = {
    "samples": {space.AS_IS: [], "prepared_samples rows": [WHOLE]},
    "workers": {space.AS_IS: [], "1": [WORKERS]},
    "threads": {space.AS_IS: [], "1": [THREAD]},
    "precision": {space.AS_IS: [], "amp bfloat16": [AMP]},
}
FACTORS = {"workers": 1.2, "threads": 0.8, "prepared_samples": 1.1, "amp": 1.5}
SETUP = {"knobs": KNOBS, "points": 12, "reading_seconds": 2.0, "target": 0.9,
         "metric": "accuracy", "deterministic": True, "steps": 100.0, "evaluation_seconds": 1.0, "evaluate_every": 50.0,
         "environment": {"cpu": "a CPU", "cores": 2, "torch": "2.13"}}  # fmt: skip


def speedup(plan: Plan) -> float:
    """Of a step; workers and one thread belong together."""
    names = set(plan.names())
    both = {"workers", "threads"} <= names
    return math.prod(FACTORS[name] for name in names) * (1.6 if both else 1.0)


class FakeTrials:
    """Readings of a machine on which everything is known. ``changes_losses``: plans with it train otherwise."""

    def __init__(self, registry: Registry, clock: FakeClock, changes_losses: str = "") -> None:
        self.registry, self.clock, self.changes_losses = registry, clock, changes_losses
        self.readings: list[str] = []

    def reading(self, plan: Plan, seconds: float) -> dict[str, Any]:
        self.readings.append(plan.key)
        self.clock.now += seconds + 1.0
        return {"fixed_seconds": 1.0, "step_seconds": 0.1 / speedup(plan), "seconds": seconds + 1.0}

    def pair(self, plan: Plan, number: int, *, deterministic: bool | None) -> dict[str, Any]:
        self.clock.now += 10.0
        same = self.changes_losses not in plan.names()
        return {"log_ratio": math.log(speedup(plan)) if plan.changes else 0.0, "standard_error": 0.002, "seconds": 10.0,
                "baseline_step_seconds": 0.1, "baseline_fixed_seconds": 1.0, "fixed_seconds": 1.0,
                "same_losses": same, "losses": "as before" if same else "loss 1 higher than before"}  # fmt: skip


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_strategies()


def part(tmp_path: Path, registry: Registry, *, minutes: float = 1000.0, changes_losses: str = "") -> Slice:
    """A slice of a race whose set-up was measured."""
    state, clock = State(tmp_path / "state.jsonl"), FakeClock()
    if not state.records:
        state.add("digits", "setup", **SETUP)
    trials = FakeTrials(registry, clock, changes_losses)
    return Slice("digits", state, trials, 60.0 * minutes, clock=clock)  # type: ignore[arg-type]


def autoopt_chose(changes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command answers at once; its arguments are kept."""
    asked: list[list[str]] = []
    answer = {"best": {"plan": {"changes": changes}}, "environment": {"git_commit": "0"}}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps(answer), "")

    monkeypatch.setattr(stages.subprocess, "run", run)
    return asked


def test_the_lattice_is_every_combination_that_means_something_once() -> None:
    points = list(space.lattice(KNOBS))
    assert len(points) == 2 * 2 * 2 + 2 * 2  # workers have nothing to do where the data lies on the device whole
    assert len({rivals.key(point) for point in points}) == len(points)
    assert not any(point["samples"] == "prepared_samples rows" and "workers" in point for point in points)
    assert dict.fromkeys(KNOBS, space.AS_IS) in points


def test_points_of_the_lattice_are_different_setups(registry: Registry) -> None:
    plans = [space.plan_of(point, KNOBS, registry) for point in space.lattice(KNOBS)]
    assert len({repr(registry.fold(plan)) for plan in plans}) == len(plans)


def test_the_strategies_say_what_can_be_set(registry: Registry) -> None:
    case = sample_case()
    found = space.knobs(registry, case)
    assert next(iter(found["workers"])) == space.AS_IS
    assert len(found["threads"]) == (case.environment.cores or 1)
    placed = set(space.strategies_of(found))
    for name in placed - set(space.grids(8)) - {"amp", "matmul_precision"}:
        assert registry[name].applies(case)
    assert "bfloat16 autocast" in space.knobs(registry, case)["precision"]


def test_a_torn_line_is_dropped_and_the_rest_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    State(path).add("digits", "lattice", point={}, value=1.0)
    path.write_text(path.read_text() + '{"example": "dig')
    again = State(path)
    assert [record["value"] for record in again.of("digits", "lattice")] == [1.0]
    again.add("digits", "lattice", point={}, value=2.0)
    assert len(State(path).records) == 2


def evaluate(point: space.Point) -> dict[str, Any]:
    weights = {"prepared_samples rows": -3.0, "1": -1.0, "amp bfloat16": -2.0}
    value = 10.0 + sum(weights.get(choice, 0.0) for choice in point.values())
    return {"value": value, "seconds": 1.0}


@pytest.mark.parametrize("sampler", rivals.SAMPLERS)
def test_a_rival_finds_the_best_point_of_a_small_space(sampler: str) -> None:
    table = rivals.table_of({"point": point, **evaluate(point)} for point in space.lattice(KNOBS))
    best = {"samples": "prepared_samples rows", "threads": "1", "precision": "amp bfloat16"}
    assert rivals.replayed(sampler, KNOBS, table, 48.0, 1) == best
    assert rivals.replays(sampler, KNOBS, table, 48.0, seeds=2)[0] == best


def test_the_whole_race_in_one_go(tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = autoopt_chose([WORKERS, THREAD], monkeypatch)
    one = part(tmp_path, registry)
    assert stages.run(one)
    spent = sum(record["seconds"] for record in one.of("lattice"))
    budget = float(asked[0][asked[0].index("--budget") + 1].removesuffix("s"))
    assert budget <= max(0.25 * spent, 20)
    assert asked[0][asked[0].index("--only") + 1] == "prepared_samples,workers,threads,amp"
    assert len(one.of("lattice")) == 12
    assert len(one.of("again")) == race.TOP * race.AGAIN_ROUNDS

    found = table.document(one.state, {}, {})["examples"]["digits"]
    best = max((speedup(one.plan(p)), p) for p in space.lattice(KNOBS) if p)
    oracle_plan = Plan.model_validate(found["race"]["oracle"]["plan"])
    assert set(oracle_plan.names()) == set(one.plan(best[1]).names()) == {"workers", "threads", "amp"}
    assert found["race"]["oracle"]["throughput"]["value"] == pytest.approx(best[0], rel=0.01)
    assert found["race"]["baseline"]["throughput"]["value"] == pytest.approx(1.0, abs=0.01)
    before = seconds_to_target(SETUP, 1.0, 0.1)
    expected = before / seconds_to_target(
        SETUP, 1.0, 0.1 / speedup(Plan.model_validate({"changes": [WORKERS, THREAD]}))
    )
    assert found["race"]["autoopt"]["time_to_target"]["value"] == pytest.approx(expected, rel=0.01)
    share = found["race"]["autoopt"]["share"]
    assert share["low"] < share["value"] < 0.95
    assert found["race"]["tpe"]["replayed"]


def test_slices_go_on_where_the_one_before_ended(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    autoopt_chose([AMP, WORKERS, THREAD], monkeypatch)
    readings = []
    for _ in range(60):
        one = part(tmp_path, registry, minutes=1.6)
        complete = stages.run(one)
        readings += one.trials.readings  # type: ignore[attr-defined]
        if complete:
            break
    assert complete
    assert len(one.of("lattice")) == len({rivals.key(r["point"]) for r in one.of("lattice")}) == 12
    rows = [(row["round"], json.dumps(row["plan"])) for row in one.of("race")]
    assert len(rows) == len(set(rows))
    assert len(readings) == 12
    found = table.document(one.state, {}, {})["examples"]["digits"]
    assert found["race"]["autoopt"]["same_as_oracle"]
    assert found["race"]["autoopt"]["share"]["value"] == 1.0


def test_a_point_that_trains_otherwise_is_not_the_oracle(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    autoopt_chose([AMP], monkeypatch)
    one = part(tmp_path, registry, changes_losses="amp")
    assert stages.run(one)
    assert "amp" not in race.best_again(one).names()
    found = table.document(one.state, {}, {})["examples"]["digits"]["race"]["autoopt"]
    assert found["share"] is None
    assert "higher" in found["quality_lost"]


@pytest.mark.parametrize(("sampler", "ahead"), [(0.98, False), (0.7, True)])
def test_to_be_ahead_of_a_sampler_takes_an_interval_above_one(sampler: float, ahead: bool) -> None:
    shares = {"autoopt": (1.0, 0.96), "tpe": (sampler, 0.9 * sampler), "random": (sampler, 0.9 * sampler)}
    race = {
        who: {"share": {"value": value, "low": low, "high": value**2 / low}} for who, (value, low) in shares.items()
    }
    found = table.means({"digits": {"race": race}})["ahead"]["tpe"]
    assert (found["low"] > 1.0) is ahead
    assert found["high"] > 1.0


def test_another_revision_runs_on_the_lattice_that_a_document_has(tmp_path: Path) -> None:
    row = {"point": {"precision": "as is"}, "value": 9.0, "step_seconds": 0.1, "fixed_seconds": 1.0, "seconds": 5.0}
    found = {"setup": {"points": 1}, "again": [{"round": 0}], "lattice": [row], "autoopt": {"commit": "0"}}
    state = from_document(tmp_path / "new.jsonl", {"examples": {"digits": found}})
    assert [reading["seconds"] for reading in state.of("digits", "lattice")] == [5.0]
    setup = state.one("digits", "setup")
    assert setup["points"] == 1
    assert state.of("digits", "again")
    assert not state.of("digits", "autoopt")
