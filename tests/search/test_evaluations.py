"""Changes of evaluation alone: the same metric first, then seconds of evaluations and their share of the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autoopt.records import RunParts, Verdict
from autoopt.records.evaluating import EvaluationPair, HeldEvaluations
from autoopt.search.accept.evidence import EvaluationRatios
from autoopt.search.accept.time_to_target import by_whole_run, same_steps
from autoopt.search.compare.comparison import Comparison, Decision, Side
from autoopt.search.evaluations import rule_on_evaluations, try_evaluations
from autoopt.search.planner import Proposal
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from made_up import comparison, evidence
from simulated import strategy

SLOW = HeldEvaluations(seconds=(2.0, 1.0, 1.0), samples=300, metric="acc", value=0.8125, digits=4)


def pairs(count: int = 4, **after: Any) -> list[EvaluationPair]:
    faster = SLOW.model_copy(update={"seconds": (1.0, 0.1, 0.1), **after})
    return [EvaluationPair(incumbent=SLOW, candidate=faster)] * count


@pytest.mark.parametrize(
    ("after", "share", "same_batches", "verdict"),
    [
        ({}, 0.5, False, Verdict.KEPT),
        ({}, 0.005, False, Verdict.NO_GAIN),  # a tenth of the seconds of next to nothing
        ({"seconds": (1.0, 1.0, 1.0)}, 0.02, True, Verdict.NO_GAIN),
        ({"seconds": (4.0, 4.0, 4.0)}, 0.5, True, Verdict.HARMFUL),
        ({"value": 0.8126}, 0.5, False, Verdict.KEPT),  # the last digit that is told
        ({"value": 0.8150}, 0.5, False, Verdict.QUALITY_LOST),
        ({"samples": 299}, 0.5, False, Verdict.QUALITY_LOST),
        ({"value": None}, 0.5, False, Verdict.INCONCLUSIVE),  # other batches, and no metric to compare
        ({"value": None}, 0.5, True, Verdict.KEPT),  # the same batches give the same metric
        ({"why": "no evaluation came within 300 s"}, 0.5, True, Verdict.INCONCLUSIVE),
    ],
)
def test_the_whole_run_decides_once_the_metric_is_the_same(
    after: dict[str, Any], share: float, same_batches: bool, verdict: Verdict
) -> None:
    found = rule_on_evaluations(pairs(**after), share, 0.01, same_batches=same_batches)
    assert found.verdict is verdict, found.reason


def test_the_speedup_is_that_of_the_whole_run() -> None:
    found = rule_on_evaluations(pairs(), share=0.5, min_gain=0.01, same_batches=False)
    assert found.between_ratio == pytest.approx(0.1), "the first evaluation of a process starts what stays"
    assert found.time_to_target.value == pytest.approx(1 / (0.5 + 0.05))
    assert found.time_to_target.low < found.time_to_target.value < found.time_to_target.high < 2.0, (
        "no more than all of the evaluations"
    )
    assert found.quality.passed
    assert found.quality.level == "identical"


def test_two_pairs_leave_a_small_gain_open() -> None:
    found = rule_on_evaluations(pairs(2, seconds=(1.0, 0.95, 0.95)), share=0.5, min_gain=0.01, same_batches=True)
    assert found.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("off", "passed"), [(1e-6, True), (1e-4, False)])
def test_a_metric_as_a_number_is_the_same_to_rounding_only(off: float, passed: bool) -> None:
    exact = SLOW.model_copy(update={"digits": None})
    after = exact.model_copy(update={"value": 0.8125 * (1 + off)})
    both = [EvaluationPair(incumbent=exact, candidate=after)] * 3
    assert rule_on_evaluations(both, 0.5, 0.01, same_batches=False).quality.passed is passed


def test_ratios_of_evaluations_are_known_by_the_options_of_their_loader() -> None:
    known, own = EvaluationRatios(), Setup()
    large, larger = own.with_evaluation(batch_size=64), own.with_evaluation(batch_size=256)
    assert known.ratio("evaluate", large, own) is None
    known.measured("evaluate", large, own, 0.5)
    known.measured("evaluate", larger, large, 0.5)
    assert known.ratio("evaluate", larger, own) == pytest.approx(0.25)
    assert known.ratio("evaluate", larger, large) == pytest.approx(0.5)
    assert known.ratio("evaluate", large.with_loader(num_workers=2), large) == 1.0, "the training's loader is another"
    beside = own.with_flags(save_in_background=("train.py:9",))
    assert known.ratio("checkpoint", larger, own) == 1.0, "it saves as before"
    assert known.ratio("checkpoint", beside, own) is None
    known.measured("checkpoint", beside, own, 0.1)
    assert known.ratio("checkpoint", beside, larger) == pytest.approx(0.1)


EPOCHS = RunParts(steps=1000, steps_per_epoch=10, step_seconds=0.01)


def starting(comparison: Comparison, before: float, after: float, fixed: float = 1.0) -> Comparison:
    """A comparison whose sides begin an epoch in so many seconds, and the candidate its run in ``fixed``."""

    def side(usual: Side, seconds: float, cost: float) -> Side:
        startup = usual.startup.model_copy(update={"epoch_seconds": seconds})
        return usual.model_copy(update={"startup": startup, "fixed_seconds": (cost,)})

    incumbent, candidate = side(comparison.incumbent, before, 1.0), side(comparison.candidate, after, fixed)
    return comparison.model_copy(update={"incumbent": incumbent, "candidate": candidate})


@pytest.mark.parametrize(
    ("speed", "before", "after", "fixed", "decision"),
    [
        (1.0, 0.5, 0.0, 1.0, Decision.ACCEPT),  # 49.5 s of epochs' starts beside 10 s of steps
        (1.0, 0.5, 0.5, 1.0, Decision.REJECT),
        (1.0, 0.5, 0.0, 60.0, Decision.REJECT),  # it slows the start by more than it saves
        (1.0, 0.0, 0.5, 1.0, Decision.REJECT),
        (1.0, 0.5, 0.3, 1.0, Decision.REJECT),  # single readings of a start scatter
        (1.0, 0.0, 0.0, 0.1, Decision.REJECT),
        (1.2, 0.0, 0.0, 1.0, Decision.REJECT),  # a refusal of steps stands where nothing else is saved
    ],
)
def test_starts_of_epochs_decide_where_steps_are_alike(
    speed: float, before: float, after: float, fixed: float, decision: Decision
) -> None:
    seen = starting(comparison(decision=Decision.REJECT, speed=speed), before, after, fixed)
    known = evidence((), (), planned_steps=1000, run=EPOCHS)
    assert by_whole_run(seen, known).decision is decision


def test_blocks_that_hold_the_starts_of_epochs_are_not_charged_again() -> None:
    seen = starting(comparison(speed=1.0), 0.5, 0.0)
    held = seen.incumbent.model_copy(update={"stage_seconds": {"epoch": 0.05}})
    known = evidence((), (), planned_steps=1000, run=EPOCHS)
    found = same_steps(seen.model_copy(update={"incumbent": held}), known)
    assert found.before.epoch_seconds == 0.0


def test_evaluations_that_were_timed_alone_count_in_the_planned_run() -> None:
    run = EPOCHS.model_copy(update={"evaluation_seconds": 2.0, "evaluate_every": 100.0, "steps_per_epoch": None})
    known = evidence((), (), planned_steps=1000, run=run, evaluation_ratio=0.1)
    found = same_steps(comparison(speed=1.0), known)
    assert found.before.seconds == pytest.approx(1 + 10 + 20)
    assert found.after.seconds == pytest.approx(1 + 10 + 2)


@pytest.mark.parametrize(
    ("evaluating", "other", "why"),
    [(9.0, 3.0, "no time for it"), (1.0, 3.0, "too little to be worth a trial now"), (0.001, 1.0, "too little")],
)
def test_evaluations_wait_for_what_promises_more_than_they_could_bring(
    monkeypatch: pytest.MonkeyPatch, evaluating: float, other: float, why: str
) -> None:
    """Three settings of an evaluation took half of a budget, the last of 1.01x; what promised 2x had no time."""
    found: list[str] = []
    state: Any = SimpleNamespace(
        run=RunParts(steps=100, step_seconds=0.1, evaluate_every=10.0, evaluation_seconds=evaluating),
        aa=SimpleNamespace(side=SimpleNamespace(step_seconds=None)),
        sites=None,
        trials=[],
        rounds=[SimpleNamespace(step_seconds=0.1)],
        skip=lambda strategy, verdict, reason: found.append(reason),
    )
    context: Any = SimpleNamespace(
        now=lambda: 0.0,
        stopping=lambda: False,
        min_gain=0.01,
        allocation=SimpleNamespace(start_seconds=2.0),
        announce=lambda event: None,
        state=state,
    )
    proposal = Proposal(strategy("evaluates", stages=frozenset({"evaluate"})), None, {})
    monkeypatch.setattr("autoopt.search.candidate.TrialEnded", lambda **_: None)
    try_evaluations(context, [proposal], sample_case(), deadline=5.0, other=other)
    assert len(found) == 1
    assert why in found[0]
