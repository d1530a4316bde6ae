"""Verdicts on made-up evidence: a row for what was seen and is known, the verdict, its reason, the runs it wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from autoopt.benchmark.compiling import AGAIN
from autoopt.records import Change, Environment, Estimate, Noise, Plan, Quality, Trial, Verdict
from autoopt.records.messages import Startup
from autoopt.registry import load_strategies
from autoopt.search.accept.evidence import Evidence, Judgement, TrainedPair, lost_margin, memory_limit, near_limit
from autoopt.search.accept.gate import ENOUGH_SEEDS, MOST_SEEDS, NOT_TESTED, judge_runs, more_seeds_help, time_verdict
from autoopt.search.accept.time_to_target import TrainedRatio, same_steps_ratio
from autoopt.search.compare.comparison import Comparison, Decision, Rule, Side, SideFailure
from autoopt.search.compare.contest import compare
from autoopt.strategy import Risk
from autoopt.testing import FakeMachine
from autoopt.testing.fakes import FakeArm
from autoopt.testing.strategies import sample_case
from made_up import DOUBT, NOISE, OBJECTIVE, SAME, comparison, evidence, judge_as, losses, required_as, run

STEPS, TRAINED, ALL = (Risk.EXACT, Risk.NUMERIC), (Risk.TRAINING, Risk.MODEL), tuple(Risk)
EXACT, NUMERIC, TRAINING = (Risk.EXACT,), (Risk.NUMERIC,), (Risk.TRAINING,)
SMALL = comparison(speed=1.03)
"""A gain that steps to the target could never show to be paid for."""
SLOW = comparison(decision=Decision.INCONCLUSIVE, speed=1.0).model_copy(
    update={"estimate": Estimate(value=1.0, low=0.6, high=1.7, n=1)}
)
UNFINISHED = (*losses()[:40], None, *losses()[41:])
OTHER = SAME.model_copy(update={"level": None, "passed": False, "detail": "w is not updated in step 9"})
ROUNDED = Quality(method="probe", level="equivalent", passed=True, gradient_error=0.35, detail="but for rounding")


def priced(penalty: float, high: float | None = None) -> Quality:
    return ROUNDED.model_copy(update={"step_penalty": Estimate(value=penalty, low=1.0, high=high or penalty, n=32)})


def failed(side: str) -> Comparison:
    failure = SideFailure(side=side, kind="out_of_memory", message="139 GiB wanted")
    return comparison(decision=Decision.FAILED, failure=failure)


def reaching(*to: float | None, level: Quality | None = SAME, best: float = 0.93, **known: Any) -> Evidence:
    """A training of the candidate for each: the target is reached after so many steps, or never."""
    return evidence(tuple(run(seed, to=steps, best=best) for seed, steps in enumerate(to)), level=level, **known)


def scattered(*to: float) -> Evidence:
    """Trainings of the baseline that reach the target so far apart, and none of the candidate."""
    return evidence(baseline=tuple(run(seed, to=steps) for seed, steps in enumerate(to)), level=DOUBT)


def halved(interleaved: bool) -> Evidence:
    """Half the steps at half the seconds of a step, trained alternately with the baseline or after it."""
    before = tuple(run(seed, fixed_seconds=0.0) for seed in range(4))
    after = tuple(run(seed, to=50.0, fixed_seconds=0.0) for seed in range(4))
    after = tuple(one.model_copy(update={"training_seconds": one.training_seconds / 2}) for one in after)
    pairs = tuple(TrainedPair(baseline=old, best=new) for old, new in zip(before, after, strict=True))
    return evidence(after, before, interleaved_pairs=pairs if interleaved else ())


def parted(by: float, *seeds: int) -> Evidence:
    """Trainings whose losses lie so far off in their last third."""

    def path(seed: int) -> tuple[float, ...]:
        own = losses(seed)
        late = 2 * len(own) // 3
        return (*own[:late], *(value + by * own[0] for value in own[late:]))

    runs = tuple(run(seed, losses=path(seed)) for seed in seeds)
    return evidence(runs, tuple(run(seed, losses=losses(seed)) for seed in seeds), level=SAME)


@dataclass(frozen=True)
class Row:
    """``seeds``: of the trainings that are wanted, 0 for none; None: it is not asked."""

    risks: tuple[Risk, ...]
    seen: Comparison
    known: Evidence
    verdict: Verdict | tuple[Verdict, ...]
    reason: str = ""
    level: str | None = None
    seeds: int | None = None
    noise: float | None = None
    objective: dict[str, Any] = field(default_factory=dict)
    then: Callable[[Judgement], bool] = lambda judged: True


KEPT, LOST, OPEN, FAILED, NO_GAIN = (
    Verdict.KEPT, Verdict.QUALITY_LOST, Verdict.INCONCLUSIVE, Verdict.FAILED, Verdict.NO_GAIN,
)  # fmt: skip
NAN = run(0, losses=(*losses(0, 99), None), finite=False)
FASTER, REJECTED = comparison(), comparison(decision=Decision.REJECT)
FEW = evidence((run(0, evaluated=100), run(1, evaluated=100)), level=DOUBT)
OWN = {"target_source": "baseline"}
UNMEASURED = {"metric": None, "target": None}
WORSE = "evaluated on 100 samples where the baseline was evaluated on 500"
UNTOLD = comparison(decision=Decision.INCONCLUSIVE).model_copy(update={"incumbent": Side(), "candidate": Side()})
PAYS = (20 * 0.01 + 0.1) / (20 * 0.01 / 1.5 + 0.1)
"""In a long plan nothing paid once counts: an evaluation each 20 steps does."""

ROWS = {
    # the comparison
    "the candidate fails": Row(ALL, failed("candidate"), evidence(), FAILED, "out_of_memory: 139 GiB wanted",
        then=lambda judged: judged.quality.method == "not_tested"),
    "the incumbent fails": Row(ALL, failed("incumbent"), evidence(), OPEN, "out_of_memory: 139 GiB wanted"),
    "not faster": Row(STEPS, REJECTED, evidence(), NO_GAIN, seeds=0),
    "slower": Row(STEPS, comparison(decision=Decision.HARMFUL), evidence(), Verdict.HARMFUL, seeds=0),
    "time was up": Row(STEPS, comparison(decision=Decision.INCONCLUSIVE), evidence(), OPEN, seeds=0),
    "goes on without another pair": Row(TRAINED, UNTOLD, evidence(), OPEN, UNTOLD.reason, seeds=0),
    # losses
    "no loss": Row(ALL, comparison(after=()), reaching(100.0, 100.0), FAILED, "no loss was captured"),
    "a loss that is not finite": Row(ALL, comparison(after=UNFINISHED), reaching(100.0, 100.0), FAILED,
        "not_finite: the loss of step 40"),
    "not finite late in training": Row(NUMERIC, FASTER, evidence((NAN,)), FAILED, "not_finite:"),
    "the incumbent does so too": Row(EXACT, comparison(UNFINISHED, UNFINISHED), evidence(), KEPT),
    "too few in common": Row(EXACT, comparison(after=losses()[:4]), evidence(), LOST),
    "rounded": Row(EXACT, comparison(after=losses(jitter=1e-7)), evidence(), KEPT, level="identical", seeds=0,
        then=lambda judged: judged.time_to_target.value > 1.1),
    "another order of samples": Row(EXACT, comparison(after=losses(seed=1)), evidence(), LOST, "differ from step 0 on"),
    "rounded otherwise": Row(EXACT, comparison(after=losses(jitter=0.01)), evidence(), LOST),
    "on an incumbent in bf16": Row(EXACT, comparison(after=losses(jitter=0.003)), evidence(epsilon=2.0**-8), KEPT),
    "augmented at random": Row(EXACT, comparison(after=losses(seed=1)), evidence(deterministic=False), KEPT, seeds=0),
    "augmented, learns slower": Row(EXACT, comparison(after=losses(seed=1, slow=2.0)), evidence(deterministic=False),
        LOST),
    "learns slower": Row(NUMERIC, comparison(after=losses(slow=1.6)), evidence(), LOST, "higher", seeds=0),
    "another loss": Row(NUMERIC, comparison(after=tuple(0.5 * loss for loss in losses())), reaching(100.0), LOST,
        "another loss is computed"),
    "other draws, screened": Row(NUMERIC, comparison(after=losses(seed=1)), evidence(level=None, drawn=True), OPEN),
    "another loss, screened": Row(NUMERIC, comparison(after=losses(seed=1)), evidence(level=None), LOST,
        "another loss is computed"),
    "parts late in one seed": Row(NUMERIC, FASTER, parted(0.08, 0), KEPT, "which one seed does not decide", seeds=2),
    "parts late in two seeds": Row(NUMERIC, FASTER, parted(0.08, 0, 1), LOST),
    "parts grossly in one seed": Row(NUMERIC, FASTER, parted(0.5, 0), LOST, seeds=0),
    # levels
    "identical": Row(NUMERIC, comparison(after=losses(jitter=0.004)), evidence(), KEPT, level="identical", seeds=0),
    "equivalent": Row(NUMERIC, comparison(after=losses(jitter=0.004)), evidence(level=ROUNDED), KEPT,
        level="equivalent", seeds=0),
    "another training": Row(STEPS, FASTER, evidence(level=OTHER), LOST, OTHER.detail),
    "no metric, identical": Row(NUMERIC, FASTER, evidence(planned_steps=1000), KEPT, level="identical",
        objective=UNMEASURED),
    "no metric, in doubt": Row(NUMERIC, FASTER, evidence(planned_steps=1000, level=DOUBT), OPEN, objective=UNMEASURED),
    # the metric
    "in doubt, untrained": Row(NUMERIC, comparison(after=losses(jitter=0.004)), evidence(level=DOUBT), OPEN, seeds=2,
        noise=0.0005),
    "in doubt, two seeds as good": Row(NUMERIC, comparison(after=losses(jitter=0.004)),
        reaching(100.0, 100.0, level=DOUBT), KEPT, level="trained", noise=0.0005,
        then=lambda judged: judged.quality.margin == pytest.approx(0.0045)
        and judged.quality.difference.value == pytest.approx(0, abs=1e-9)),
    "one seed alone": Row(NUMERIC, FASTER, reaching(None, level=DOUBT, best=0.5), OPEN,
        "quality undecided: observed accuracy", noise=1e-6, objective={"target": 0.4}),
    "the target missed from one seed": Row((Risk.NUMERIC, Risk.TRAINING), FASTER, reaching(None, level=DOUBT, best=0.5),
        LOST, "accuracy 0.9 not reached in 220 steps"),
    "a worse metric": Row(NUMERIC, FASTER, reaching(None, None, None, level=DOUBT, best=0.85), LOST,
        then=lambda judged: judged.quality.difference.high < 0),
    "fewer samples evaluated": Row((Risk.NUMERIC, Risk.TRAINING), FASTER, FEW, LOST, WORSE),
    "noisier than the tolerance": Row(NUMERIC, SMALL, reaching(100.0, 100.0, level=DOUBT), OPEN, level="undecided",
        seeds=0, noise=0.05, then=lambda judged: judged.quality.difference is not None),
    "undecided and accepted": Row(NUMERIC, SMALL, reaching(100.0, 100.0, level=DOUBT, accept_undecided=True), KEPT,
        level="undecided", noise=0.05),
    "undecided within reach": Row(NUMERIC, SMALL, reaching(100.0, 100.0, level=DOUBT), OPEN, seeds=3, noise=0.0025),
    # steps to the target, where the metric is too noisy to tell
    "steps to be trained": Row(NUMERIC, comparison(speed=1.8), reaching(level=DOUBT), OPEN, seeds=2, noise=0.05),
    "steps that are charged": Row(NUMERIC, comparison(speed=1.8), reaching(108.0, 104.0, level=DOUBT), KEPT,
        "would have been refused with 80 %", level="trained", noise=0.05,
        then=lambda judged: judged.quality.step_penalty.value == pytest.approx(1.1, abs=0.05)
        and "times the steps" in judged.quality.would_miss),
    "steps that eat the gain": Row(NUMERIC, comparison(speed=1.8), reaching(170.0, 190.0, level=DOUBT), OPEN,
        "where the speedup pays for", level="undecided", noise=0.05),
    # the price of rounding
    "worth its price": Row(NUMERIC, comparison(speed=1.5), evidence(level=priced(1.12)), KEPT),
    "eaten up": Row(NUMERIC, comparison(speed=1.1), evidence(level=priced(1.12)), NO_GAIN, "more steps"),
    "as good as free": Row(NUMERIC, comparison(speed=1.1), evidence(level=priced(1.0001)), KEPT),
    "not certain": Row(NUMERIC, comparison(speed=1.15), evidence(level=priced(1.1, 1.2)), OPEN, "more steps"),
    "identical costs nothing": Row(NUMERIC, comparison(speed=1.1), evidence(), KEPT),
    # time to the target
    "a fixed cost that does not pay": Row(EXACT, comparison(fixed=60.0), evidence(), NO_GAIN, "throughput 1.50x",
        then=lambda judged: "time to target 0." in judged.reason),
    "a fixed cost in a long plan": Row(EXACT, comparison(fixed=60.0), evidence(planned_steps=1_000_000), KEPT,
        objective=OWN, then=lambda judged: judged.time_to_target.value == pytest.approx(PAYS, rel=0.02)),
    "one seed of a training": Row(TRAINED, FASTER, reaching(50.0), OPEN, seeds=2),
    "longer to the target": Row(TRAINING, comparison(speed=1.3), reaching(200.0, 200.0, 200.0),
        (NO_GAIN, Verdict.HARMFUL), "throughput 1.30x", then=lambda judged: judged.time_to_target.value < 1.0
        and "time to target is longer" in judged.reason),
    "sooner at the target": Row(TRAINING, FASTER, reaching(60.0, 60.0, 60.0), KEPT,
        then=lambda judged: judged.quality.seeds == 3),
    "never at the target": Row(TRAINING, comparison(speed=3.0), evidence((run(0, to=60.0), run(1, to=None, best=0.8))),
        LOST, "not reached", then=lambda judged: judged.time_to_target is None),
    "undecided with two seeds": Row(TRAINING, FASTER, reaching(90.0, 210.0), OPEN, seeds=3),
    "a schedule, no faster a sample": Row(TRAINING, comparison(decision=Decision.REJECT, speed=1.0),
        reaching(50.0, 50.0, 50.0), KEPT),
    "a schedule is trained": Row(TRAINING, comparison(decision=Decision.REJECT, speed=1.0), evidence(), OPEN, seeds=2),
    "more of an epoch's small last batch": Row((Risk.MODEL,), comparison(decision=Decision.INCONCLUSIVE, speed=1.0,
        samples=9.7), evidence(), OPEN, seeds=2),
    "another batch, no faster": Row(TRAINING, comparison(decision=Decision.REJECT, speed=1.0, samples=40.0), evidence(),
        NO_GAIN, seeds=0),
    "slow blocks, trained apart": Row(TRAINING, SLOW, halved(interleaved=False), OPEN),
    "slow blocks, trained alternately": Row(TRAINING, SLOW, halved(interleaved=True), KEPT),
}  # fmt: skip


@pytest.mark.parametrize(("name", "risk"), [(name, risk) for name, row in ROWS.items() for risk in row.risks])
def test_the_verdict_with_its_reason_and_the_trainings_it_wants(name: str, risk: Risk) -> None:
    row = ROWS[name]
    noise = NOISE if row.noise is None else Noise(seed_noise=row.noise)
    objective = OBJECTIVE.model_copy(update=row.objective)
    judged = judge_as(risk, row.seen, row.known, objective, noise)
    assert judged.verdict in (row.verdict if isinstance(row.verdict, tuple) else (row.verdict,)), judged.reason
    assert row.reason in judged.reason
    lost = judged.quality.passed is False
    assert lost or judged.verdict is not Verdict.QUALITY_LOST
    assert not lost or judged.verdict in (Verdict.QUALITY_LOST, Verdict.FAILED)
    assert row.level in (None, judged.quality.level)
    assert row.then(judged)
    wanted = required_as(risk, row.seen, row.known, objective, noise)
    assert row.seeds in (None, wanted.seeds if wanted else 0)


@pytest.mark.parametrize(
    ("seen", "known", "noise", "planned"),
    [
        (SMALL, evidence((run(0),), baseline=(run(0),), level=DOUBT), 0.0005, (2,)),
        (SMALL, evidence((run(0),), baseline=(run(0),), level=DOUBT), 0.0015, (3,)),
        (SMALL, evidence((run(0),), baseline=(run(0),), level=DOUBT), 0.01, None),  # more than there may be
        (comparison(speed=1.8), scattered(100.0, 100.0, 100.0), 0.05, (2,)),
        (comparison(speed=1.25), scattered(100.0, 100.0, 100.0), 0.05, (3, 4)),
        (comparison(speed=1.05), scattered(100.0, 100.0, 100.0), 0.05, None),
        (comparison(speed=1.25), scattered(60.0, 100.0, 160.0), 0.05, None),
    ],
)
def test_trainings_are_planned_by_what_could_prove_it(
    seen: Comparison, known: Evidence, noise: float, planned: tuple[int, ...] | None
) -> None:
    wanted = required_as(Risk.NUMERIC, seen, known, OBJECTIVE, Noise(seed_noise=noise))
    assert wanted.planned in planned if planned else not wanted


def test_times_to_the_target_hold_what_they_are_about() -> None:
    def value(risk: Risk, seen: Comparison, known: Evidence) -> float:
        found = judge_as(risk, seen, known, OBJECTIVE, NOISE).time_to_target
        return found.value

    free, paid = (value(Risk.NUMERIC, FASTER, evidence(level=level)) for level in (ROUNDED, priced(1.12)))
    assert paid < free / 1.03, "the rest is evaluations and what is paid once"
    assert value(Risk.TRAINING, SLOW, halved(True)) > 1.3 * value(Risk.TRAINING, SLOW, halved(False))
    incumbent = tuple(run(seed, to=50.0) for seed in range(3))
    alone, beside = reaching(60.0, 60.0, 60.0), reaching(60.0, 60.0, 60.0, incumbent_runs=incumbent)
    small = comparison(speed=1.02)
    assert value(Risk.TRAINING, small, alone) > 1.0 > value(Risk.TRAINING, small, beside), "timed against the incumbent"


@pytest.mark.parametrize("beside", [True, False])
def test_evaluations_of_a_plan_trained_interleaved_have_their_own_seconds(beside: bool) -> None:
    """Under autocast an evaluation takes as much less as a step: at the baseline's seconds the plan was told slower."""
    before, after = run(0, evaluation_seconds=4.0, evaluations=5), run(0, evaluation_seconds=2.0, evaluations=5)
    pair = TrainedPair(baseline=before, best=after, interleaved=beside)
    for interleaved, seconds in (((pair,), 3.5 if beside else 5.5), ((), 5.5)):
        known = evidence(baseline=(before,), interleaved_pairs=interleaved)
        found = same_steps_ratio(comparison(speed=2.0), known)
        # of 1 s paid once, 100 steps of 10 ms and 5 evaluations of 0.8 s
        assert found.value == pytest.approx(6.0 / seconds, rel=0.02)


NEVER = tuple(run(seed, to=None, best=0.85) for seed in range(2))


@pytest.mark.parametrize(
    ("known", "passed", "level"),
    [
        (reaching(100.0, 100.0), True, "identical"),
        (reaching(100.0, 100.0, level=None), None, "undecided"),
        (evidence((run(0, losses=(1.0, None), finite=False),)), False, None),
        (evidence((run(0, losses=()),)), False, None),
        (evidence(NEVER), False, None),
        (evidence((run(0, evaluated=10),)), False, None),
        (evidence(level=None), None, None),
        # more and shorter steps: behind at every step, and at the target all the same
        (reaching(160.0, 160.0, level=None), False, None),
        (reaching(160.0, 160.0, level=None, risk=Risk.TRAINING), True, "trained"),
        (evidence(NEVER, level=None, risk=Risk.TRAINING), False, None),
        (evidence(NEVER, baseline=NEVER, level=None, risk=Risk.TRAINING), None, "undecided"),
    ],
)
def test_the_final_plan_is_judged_by_its_trainings(known: Evidence, passed: bool | None, level: str | None) -> None:
    found = judge_runs(known)
    assert (found.passed, level) in ((passed, None), (passed, found.level))
    if level == "trained":
        assert (found.seeds, "accuracy 0.9 reached from 2 of 2 seeds" in found.detail) == (2, True)


# Room in the device's memory: what counts against a setting, and what does not.

LIMIT = 1000


@pytest.mark.parametrize(
    ("peak", "limit", "retries", "allocated", "words"),
    [
        (950, LIMIT, 0, None, ""),
        (951, LIMIT, 0, None, "5% must stay free"),
        (None, LIMIT, 0, None, ""),
        (5000, None, 0, None, ""),
        (10, LIMIT, 1, None, "ran out 1 times"),
        (990, LIMIT, 0, 600, ""),  # the rest is cache, which goes before anything fails
        (990, LIMIT, 0, 960, "5% must stay free"),
        (990 << 20, LIMIT << 20, 1, 600 << 20, "tensors held 600 MiB"),
    ],
)
def test_five_per_cent_must_stay_free(
    peak: int | None, limit: int | None, retries: int, allocated: int | None, words: str
) -> None:
    found = near_limit(peak, limit, retries, allocated)
    assert words in found
    assert bool(found) is bool(words)


def taken(peak: int | None = None, retries: int = 0, held: int | None = None) -> Side:
    return Side(peak_memory_bytes=peak, allocation_retries=retries, allocated_memory_bytes=held)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (taken(500), taken(960), True),
        (taken(960), taken(960), False),
        (taken(960), taken(990), True),
        (taken(), taken(retries=2), True),
        (taken(retries=1), taken(retries=2), False),
        (taken(500), taken(500), False),
        (taken(500, held=400), taken(990, held=600), False),
        (taken(500, held=400), taken(990, held=970), True),
        (taken(999, held=980), taken(999, held=970), False),
    ],
)
def test_what_the_incumbent_does_too_is_not_held_against_a_candidate(before: Side, after: Side, refused: bool) -> None:
    assert bool(lost_margin(before, after, LIMIT)) is refused


def test_the_cpu_has_a_limit_where_one_was_set() -> None:
    cpu = Environment(python="3", device="cpu", ram_bytes=100, device_memory_bytes=100)
    assert memory_limit(cpu) is None
    assert memory_limit(cpu.model_copy(update={"device_memory_bytes": 50})) == 50
    assert memory_limit(cpu.model_copy(update={"device": "cuda:0"})) == 100


# Trouble of the compiler stands in the reason of the verdict, and a strategy may answer to it.

COMPILED = Plan(changes=(Change(strategy="compile", setting={"mode": "default"}),))
STORM = f"{AGAIN} (forward, 8 times or more; the last for: size mismatch)"


def test_a_storm_is_named_in_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = FakeArm.warm_up

    def warm_up(self: FakeArm, max_seconds: float) -> Startup:
        startup = plain(self, max_seconds)
        return startup.model_copy(update={"compiler": STORM}) if self.plan.changes else startup

    monkeypatch.setattr(FakeArm, "warm_up", warm_up)
    fake = FakeMachine()
    found = compare(fake.start, Plan(), COMPILED, Rule(max_seconds=60), clock=fake.clock)
    assert found.reason.endswith(f"; {STORM}")
    assert AGAIN not in compare(fake.start, Plan(), Plan(), Rule(max_seconds=60), clock=fake.clock).reason


def trial(reason: str) -> Trial:
    return Trial(id=1, round=0, strategy="compile", setting={}, base="baseline", verdict=Verdict.NO_GAIN, reason=reason)


def test_after_a_storm_any_shape_is_expected() -> None:
    conversation = load_strategies()["compile"].settings(sample_case())
    first = next(conversation)
    assert not first.get("dynamic")
    assert conversation.send(trial(f"no gain; {STORM}")) == {**first, "dynamic": True}
    assert not conversation.send(trial("no gain")).get("dynamic")


# Times to target over seeds: looked at after each seed, placebos are seldom kept and real gains are.

WORTH = float(np.log(1.01))
THROUGHPUT_ERROR = 0.01


def sought(rng: np.random.Generator, true: float, spread: float, alpha: float = 0.05) -> Verdict:
    """The verdict on a change of a true log speedup, whose seeds are judged one by one.

    Args:
        spread: standard deviation over seeds of the log time to target of either side.
    """
    shared = THROUGHPUT_ERROR * rng.standard_normal()
    ratios = true + shared + np.sqrt(2) * spread * rng.standard_normal(MOST_SEEDS)
    for seeds in range(2, MOST_SEEDS + 1):
        ratio = TrainedRatio(tuple(ratios[:seeds]), 1.96 * THROUGHPUT_ERROR)
        verdict, _ = time_verdict(ratio, WORTH, alpha)
        if not more_seeds_help(_judged(verdict, ratio), seeds, OBJECTIVE):
            return verdict
    return verdict


def _judged(verdict: Verdict, ratio: TrainedRatio) -> Judgement:
    return Judgement(verdict=verdict, reason="", quality=NOT_TESTED, time_to_target=ratio.estimate)


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
def test_placebos_are_kept_in_at_most_five_per_cent(spread: float) -> None:
    rng = np.random.default_rng(7)
    kept = [sought(rng, 0.0, spread) is Verdict.KEPT for _ in range(150)]
    assert np.mean(kept) <= 0.05


def test_a_true_gain_is_not_called_none() -> None:
    """A true 1.5 whose seeds scatter by a tenth: seldom called no gain, kept in most runs."""
    rng = np.random.default_rng(8)
    found = [sought(rng, np.log(1.5), 0.1) for _ in range(60)]
    assert np.mean([verdict in (Verdict.NO_GAIN, Verdict.HARMFUL) for verdict in found]) <= 0.05
    assert np.mean([verdict is Verdict.KEPT for verdict in found]) > 0.6


@pytest.mark.parametrize(("alpha", "verdict"), [(0.05, Verdict.KEPT), (1e-6, Verdict.INCONCLUSIVE)])
def test_the_errors_that_the_run_may_still_make_narrow_what_is_kept(alpha: float, verdict: Verdict) -> None:
    assert time_verdict(TrainedRatio((0.34, 0.30, 0.36), 0.02), WORTH, alpha)[0] is verdict


@pytest.mark.parametrize(("ratios", "most"), [((0.01, -0.02, 0.0), ENOUGH_SEEDS), ((0.2, -0.1, 0.1), MOST_SEEDS)])
def test_seeds_that_do_not_look_worth_it_end_early(ratios: tuple[float, ...], most: int) -> None:
    judged = _judged(Verdict.INCONCLUSIVE, TrainedRatio(ratios, 0.02))
    assert [more_seeds_help(judged, seeds, OBJECTIVE) for seeds in (most - 1, most)] == [True, False]
