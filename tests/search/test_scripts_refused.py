"""What whole runs of a script leave out: for its quality, for a patch that does not run, for what brings more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import (
    Change,
    Estimate,
    EstimateKind,
    JsonDict,
    Plan,
    Quality,
    Verdict,
)
from autoopt.search.accept.evidence import TrainedPair
from autoopt.search.accept.gathering import Gate
from autoopt.search.accept.levels import BATCHES
from autoopt.search.planner import Beliefs
from autoopt.setup import Setup
from autoopt.strategy import Applies, Risk
from simulated import product, strategy, verdicts
from simulated_scripts import LOADER, SITES, VAGUE, ScriptWorld, promised


@pytest.mark.parametrize("seen", [True, False])
def test_a_metric_that_probes_have_seen_is_not_evaluated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """Timing the evaluations of a short script took as long as a pair of its whole runs, or was not to be had."""
    monkeypatch.setattr(Gate, "same_metric", lambda self, plan, incumbent: seen)
    larger = promised("evaluation", 1.5, "evaluate")
    larger.settings = lambda case: iter([{"batch_size": 256}])
    world = ScriptWorld(
        tmp_path,
        larger,
        promised("fused", 1.2, "optimizer"),
        speed=product({"evaluation": 1.0, "fused": 1.2}),
        whole={"evaluation": 1.5, "fused": 1.2},
        budget=900.0,
    )
    outcome = world.go()
    assert set(outcome.best.plan.names()) == ({"evaluation", "fused"} if seen else {"fused"})
    assert all(("evaluation" in names) is seen for names in world.pairs)


@pytest.mark.parametrize("less", [True, False])
def test_an_evaluation_that_gives_another_metric_blames_no_other_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, less: bool
) -> None:
    """A metric of each batch: the best ten of a hundred. Three changes of the training were refused for it.

    Without gradients, which come with the larger batches, it is the same.
    """
    plain = Gate.quality

    def batches(plan: Plan) -> bool:
        return "batch_size" in (plan.setting("evaluation") or {})

    def quality(self: Gate, plan: Plan, *others: Any, **named: Any) -> Quality | None:
        if batches(plan):
            return Quality(method="probe", passed=False, detail="another metric")
        return plain(self, plan, *others, **named)

    monkeypatch.setattr(Gate, "quality", quality)
    monkeypatch.setattr(Gate, "same_metric", lambda self, plan, incumbent: not batches(plan))
    larger = promised("evaluation", 1.5, "evaluate")
    larger.settings = lambda case: iter([{"batch_size": 256, "no_grad": True}, *([{"no_grad": True}] if less else [])])
    gains = {"evaluation": 1.5, "fused": 1.2, "layout": 1.3}
    fused, layout = promised("fused", 1.2, "optimizer"), promised("layout", 1.3, "forward")
    fused.risk = layout.risk = Risk.NUMERIC  # the likelier reason, where nothing is known
    world = ScriptWorld(tmp_path, larger, fused, layout, speed=product(gains), whole=gains, budget=900.0)
    outcome = world.go()
    assert set(outcome.best.plan.names()) == {"fused", "layout", *(["evaluation"] if less else [])}
    assert outcome.best.plan.setting("evaluation") == ({"no_grad": True} if less else None)
    assert less or Verdict.QUALITY_LOST in verdicts(outcome)["evaluation"]


def test_the_next_setting_takes_the_place_of_one_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures decoded at an eighth of their size gave other gradients; at a quarter nobody tried."""
    plain = Gate.quality

    def quality(self: Gate, plan: Plan, *others: Any, **named: Any) -> Quality | None:
        if (plan.setting("decoding") or {}).get("shorter") == 64:
            return Quality(method="probe", passed=None, detail="other gradients")
        return plain(self, plan, *others, **named)

    monkeypatch.setattr(Gate, "quality", quality)
    decoding, fused = promised("decoding", 1.5, "preparation"), promised("fused", 1.2, "optimizer")
    decoding.risk, decoding.settings = Risk.NUMERIC, lambda case: iter([{"shorter": 64}, {"shorter": 128}])
    gains = {"decoding": 1.5, "fused": 1.2}
    outcome = ScriptWorld(tmp_path, decoding, fused, speed=product(gains), whole=gains, budget=900.0).go()
    assert set(outcome.best.plan.names()) == {"decoding", "fused"}
    assert outcome.best.plan.setting("decoding") == {"shorter": 128}


@pytest.mark.parametrize("lost", ["batches", "gradients"])
def test_what_comes_along_is_left_out_or_stays_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Workers that stay gave another batch: the threads that come with them were refused for ever."""
    plain, guilty = Gate.quality, "workers" if lost == "batches" else "threads"

    def quality(self: Gate, plan: Plan, *others: Any, **named: Any) -> Quality | None:
        if guilty in plan.names():
            return Quality(method="probe", passed=False, rests_on=BATCHES if lost == "batches" else "", detail=lost)
        return plain(self, plan, *others, **named)

    monkeypatch.setattr(Gate, "quality", quality)
    workers, threads = promised("workers", 1.5, "preparation"), strategy("threads", risk=Risk.NUMERIC)
    workers.companions = lambda case, setting: [Change(strategy="threads")]
    workers.apply = lambda setup, setting: setup.with_loader(num_workers=2)
    gains = {"workers": 1.5, "fused": 1.2, "threads": 1.0}
    world = ScriptWorld(
        tmp_path,
        workers,
        threads,
        promised("fused", 1.2, "optimizer"),
        speed=product(gains),
        whole=gains,
        sites=SITES.model_copy(update={"sites": (LOADER,)}),
        budget=900.0,
    )
    outcome = world.go()
    assert set(outcome.best.plan.names()) == ({"fused"} if lost == "batches" else {"workers", "fused"})
    assert Verdict.QUALITY_LOST in verdicts(outcome)[guilty]


def test_timing_evaluations_waits_for_what_brings_more_a_second(tmp_path: Path) -> None:
    """An evaluation of 3 % of the run took 30 of 240 s before the whole runs that brought 1.4x."""
    larger = promised("evaluation", 1.03, "evaluate")
    larger.settings = lambda case: iter([{"batch_size": 256}])
    gains = {"evaluation": 1.03, "fused": 1.4}
    made = (larger, promised("fused", 1.4, "optimizer"))
    world = ScriptWorld(tmp_path, *made, speed=product({"evaluation": 1.0, "fused": 1.4}), whole=gains, budget=900.0)
    outcome = world.go()
    first = next(trial for trial in outcome.state.trials if trial.time_to_target is not None)
    assert (first.strategy, world.pairs[0]) == ("fused", ("fused",))


def test_what_probes_have_seen_together_stays_together_without_evaluations_that_wait(tmp_path: Path) -> None:
    """Steps of the probe showed 1.5x where 2.7x was predicted. The evaluation's change waited, and of the rest was left
    what is likely a gain alone, which nobody had seen, while the probe had seen all of it."""
    larger = promised("evaluation", 1.03, "evaluate")
    larger.settings = lambda case: iter([{"batch_size": 256}])
    said = {"cache": 1.8, "fused": 1.3, "layout": 1.15}
    true = {"cache": 1.3, "fused": 1.1, "layout": 1.05}
    stages = ("preparation", "optimizer", "forward")
    made = (promised(name, gain, stage) for (name, gain), stage in zip(said.items(), stages, strict=True))
    speed, whole = product({**true, "evaluation": 1.0}), {**true, "evaluation": 1.03}
    world = ScriptWorld(tmp_path, larger, *made, speed=speed, whole=whole, budget=900.0)
    world.go()
    assert set(world.pairs[0]) == set(said)


def test_what_no_longer_applies_is_not_confirmed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen of it promised as much once more, without the setting that it had: its recipe found none."""
    seen = Estimate(value=2.0, low=1.8, high=2.2, n=1, kind=EstimateKind.TRIED)
    monkeypatch.setattr(Beliefs, "believed", lambda self, name, predicted: seen if name == "first" else predicted)
    first, vague = promised("first", 2.0, "forward"), strategy("vague", predict=lambda self, case, setting: VAGUE)
    first.settings = lambda case: iter([{"size": 4}])
    first.applies = lambda case: Applies.no("done") if case.plan.setting("first") is not None else Applies.yes()
    first.apply = lambda setup, setting: setup.with_loader(num_workers=setting.get("size", 1))
    gains, sites = {"first": 2.0, "vague": 1.3, "main": 3.0}, SITES.model_copy(update={"sites": (LOADER,)})
    made = (promised("main", 3.0, "optimizer"), first, vague)
    world = ScriptWorld(tmp_path, *made, speed=product(gains), whole=gains, budget=900.0, sites=sites)
    outcome = world.go()
    assert set(world.pairs[0]) == {"main", "first"}
    assert outcome.best.plan.setting("first") == {"size": 4}
    changes = [(each.strategy, each.setting) for trial in outcome.state.trials for each in (trial, *trial.companions)]
    assert {} not in [setting for name, setting in changes if name == "first"]


@pytest.mark.parametrize("ran", [True, False])
def test_a_patch_that_does_not_run_gives_way_to_the_plan_that_has_run(tmp_path: Path, ran: bool) -> None:
    """Blocks of steps had kept it; the verification left one of its other changes out, and published the rest."""

    class Broken(ScriptWorld):
        def run_whole(self, before: Plan, plan: Plan, **more: Any) -> TrainedPair:
            if "second" not in plan.names():
                shown.append(plan.names())
                return super().run_whole(before, plan, **more)
            self.clock.advance(5.0)
            failed.append(plan.names())
            failure = TrialFailed("error", "the run ended with exit code 1")
            raise failure

    failed, shown = list[tuple[str, ...]](), list[tuple[str, ...]]()
    gains = {"first": 2.0, "second": 1.5, "rounds": 1.5} if ran else {"second": 1.15, "rounds": 1.15}
    made = [strategy("second"), strategy("rounds", risk=Risk.NUMERIC)]
    made += [promised("first", 2.0, "forward")] if ran else []
    outcome = Broken(tmp_path, *made, speed=product(gains), whole=gains, budget=900.0).go()
    assert outcome.best.plan.names() == (("first",) if ran else ("rounds",))
    assert outcome.speedup.end_to_end_verified
    assert Verdict.KEPT not in verdicts(outcome)["second"]
    assert outcome.best.plan.names() in shown, "what is left was run whole itself"
    assert len(failed) == 1, "no part is left out on suspicion"


def test_what_ends_with_another_metric_is_left_out_and_the_rest_confirmed(tmp_path: Path) -> None:
    def other_workers(self: object, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_loader(num_workers=0)

    told = Estimate(value=1.1, low=1.08, high=1.12, n=3, kind=EstimateKind.TRIED)
    world = ScriptWorld(
        tmp_path,
        promised("layout", 1.3, "forward"),
        strategy("draws", apply=other_workers, predict=lambda self, case, setting: told, risk=Risk.EXACT),
        whole={"layout": 1.3, "draws": 1.1},
        lose=("draws",),
        budget=600.0,
        sites=SITES.model_copy(update={"sites": (LOADER,)}),
    )
    outcome = world.go()
    assert outcome.best.plan.names() == ("layout",)
    assert set(world.pairs[0]) == {"layout", "draws"}
    assert set(world.pairs[1:]) == {("layout",)}
    assert Verdict.KEPT not in verdicts(outcome).get("draws", [])
