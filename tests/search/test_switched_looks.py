"""The search over changes that a running process can take on, in simulated time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoopt.errors import TrialFailed
from autoopt.events import PhaseStarted
from autoopt.records import Plan, Trial, Verdict
from autoopt.registry import Registry, Source
from autoopt.search.race import switchable
from autoopt.testing.fakes import Behaviour, NoiseModel
from simulated import World, product, strategy, verdicts

SPEEDS = {"loader": 1.0, "a": 1.3, "b": 1.0, "c": 0.8, "d": 1.15, "e": 1.0}
SECONDS = 9.0


def world(folder: Path, switched: bool, **options) -> World:
    def slow(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, startup_seconds=SECONDS)

    made = [strategy(name, switchable=switched and name != "loader") for name in SPEEDS]
    options = {
        "behave": slow,
        "noise": NoiseModel("normal", block_sd=0.03, process_sd=0.02),
        "budget": 480.0,
        **options,
    }
    return World(folder, *made, speed=product(SPEEDS), **options)


def screened(run: World) -> list[Trial]:
    return [event.trial for event in run.events if hasattr(event, "trial") and "screened" in event.trial.reason]


def test_many_are_seen_in_the_time_of_one_start_and_the_truth_is_kept(tmp_path: Path) -> None:
    one, other = (world(tmp_path / str(switched), switched) for switched in (True, False))
    outcome, usual = one.go(), other.go()
    assert set(outcome.best.plan.names()) == {"a", "d"}
    assert {"a", "d"} >= set(usual.best.plan.names())
    modes = {screening.candidate.plan.names(): screening.mode for screening in outcome.state.screenings}
    assert modes[("loader",)] == "interleaved"
    assert {modes[(name,)] for name in "abcde"} == {"switched"}
    told = [event.detail for event in one.events if isinstance(event, PhaseStarted) and event.detail]
    assert any(line.startswith("screening 5 candidates in one process: ") for line in told), told
    seen = {trial.strategy: trial for trial in screened(one) if not trial.companions}
    assert "in one process with the incumbent" in seen["a"].reason
    assert seen["a"].throughput is not None
    assert seen["a"].throughput.n == 1


def test_no_look_is_a_proof(tmp_path: Path) -> None:
    """What is kept was compared in two pairs of processes or more."""
    outcome = world(tmp_path, True).go()
    kept = [trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT]
    assert kept
    for trial in kept:
        comparison = outcome.state.comparisons[trial.id]
        assert comparison.mode == "interleaved"
        assert len(comparison.pairs) >= 2


def test_one_that_fails_in_the_process_has_a_look_of_its_own_that_says_why(tmp_path: Path) -> None:
    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        fails = TrialFailed("error", "no such kernel") if "b" in plan.names() else None
        return replace(behaviour, startup_seconds=SECONDS, fails=fails)

    outcome = world(tmp_path, True, behave=behave).go()
    assert verdicts(outcome)["b"] == [Verdict.FAILED]
    assert set(outcome.best.plan.names()) == {"a", "d"}


def test_a_plan_is_switchable_by_what_it_adds_and_what_it_takes_away() -> None:
    loader, a, b = strategy("loader"), strategy("a", switchable=True), strategy("b", switchable=True)
    registry = Registry([Source(each, "test") for each in (loader, a, b)])

    def plan(*names: str) -> Plan:
        return Plan.model_validate({"changes": [{"strategy": name} for name in names]})

    assert switchable(registry, plan("loader"), plan("loader", "a"))
    assert switchable(registry, plan("a"), plan("b"))
    assert not switchable(registry, plan(), plan("loader", "a"))
    assert not switchable(registry, plan("loader"), plan("a"))
    assert not switchable(registry, plan("a"), plan("a"))


def test_a_strategy_that_claims_what_no_process_can_do_has_looks_of_its_own() -> None:
    class Claims(type(strategy("claims"))):  # type: ignore[misc]
        name = "claims"
        switchable = True

        def apply(self, setup, setting):
            return setup.with_loader(num_workers=2)

    registry = Registry([Source(Claims(), "test")])
    assert not switchable(registry, Plan(), Plan.model_validate({"changes": [{"strategy": "claims"}]}))


def test_no_change_is_credited_with_the_start_of_a_process_that_it_did_not_have(tmp_path: Path) -> None:
    """A start of 9 s was taken as saved by all that was put on in one process: what brings nothing was a clear gain."""
    run = world(tmp_path, True, reach=lambda plan: 600)
    outcome = run.go()
    believed = {name: outcome.state.beliefs.of([(name, None)])[0] for name in ("b", "e")}
    assert all(abs(gain) < 0.05 for gain in believed.values()), believed
