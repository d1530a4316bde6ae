"""Metrics and losses of trainings: what lost quality is named, and what trains as before passes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from autoopt.records import Curve, CurvePoint, Estimate, Noise, Quality, Verdict
from autoopt.records.messages import WHOLE_RUN, TrainingRun
from autoopt.registry import Registry, Source
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.gate import judge_runs, may_be_rounding
from autoopt.search.accept.losses import (
    PATH_TOLERANCE,
    SEEN_BY_PROBES,
    common,
    judge_whole_runs,
    same_on_average,
    same_to_rounding,
    same_within_tolerance,
    windows,
)
from autoopt.search.accept.metric import (
    MetricDifference,
    detectable_steps,
    fewer_evaluated,
    metric_difference,
    metric_quality,
    seed_noise,
    unlearned,
)
from autoopt.search.accept.trainings import SCATTER, ratio_of_pairs
from autoopt.search.compare.comparison import LossPath
from autoopt.setup import Setup
from autoopt.strategy import Risk, Strategy
from benchmarks.truth.quality_changes import Change, hooked
from made_up import NOISE, OBJECTIVE, comparison, evidence, judge_as, losses, required_as, run, trained
from workloads import breakers


def test_one_seed_of_unknown_noise_has_a_difference_and_no_interval() -> None:
    difference = metric_difference([(run(0), run(0, best=0.89))], OBJECTIVE, Noise())
    assert difference is not None
    shown = metric_quality(difference, OBJECTIVE)
    assert shown.difference is None, "an interval of no width would claim certainty"
    assert shown.candidate is not None
    assert "which gives no interval" in (shown.detail or "")
    assert "over 1 seed," in (shown.detail or "")
    alike = metric_difference([(run(0), run(0, best=0.89))] * 2, OBJECTIVE, Noise())
    assert alike is not None
    assert "over 2 seeds," in (metric_quality(alike, OBJECTIVE).detail or "")
    assert metric_quality(alike, OBJECTIVE).difference is None, "a script's own seed gives the same training twice"
    whole = tuple(each.model_copy(update={"stopped": WHOLE_RUN}) for each in (run(0), run(0, best=0.89)))
    again = metric_difference([whole, whole], OBJECTIVE, Noise())
    assert again.estimate.n == 1, "whole runs of it are one seed"


@pytest.mark.parametrize(
    ("mode", "before", "after", "refused"),
    [
        ("max", (0.4, 0.9), (0.5, 0.3), True),
        ("max", (0.4, 0.9), (0.5, 0.6), False),  # worse, which one seed may be by chance
        ("min", (2.0, 0.5), (1.5, 2.5), True),
        ("min", (2.0, 0.5), (1.5, 0.9), False),
        ("max", (0.9, 0.4), (0.9, 0.3), False),  # the baseline does not learn either
        ("max", (0.9,), (0.1,), False),  # where it began is not known
    ],
)
def test_a_run_that_ends_worse_than_the_baseline_began_has_not_learnt(mode, before, after, refused: bool) -> None:
    def made(values: tuple[float, ...]) -> TrainingRun:
        points = tuple(CurvePoint(step=n, seconds=n, metric=value) for n, value in enumerate(values, 1))
        return run(0).model_copy(update={"curve": Curve(seed=0, points=points)})

    objective = OBJECTIVE.model_copy(update={"mode": mode})
    assert bool(unlearned([(made(before), made(after))], objective)) is refused


def test_a_loss_within_the_tolerance_is_proved_and_not_lost_however_certain_it_is() -> None:
    """Surely worse than before, and surely by less than what is allowed."""
    estimate = Estimate(value=-0.002, low=-0.0035, high=-0.0005, n=3)
    found = MetricDifference(estimate, error=0.0003, margin=0.0045, baseline=0.9, candidate=0.898, highest=-0.0005)
    assert found.confirmed
    assert not found.lost
    beyond = Estimate(value=-0.006, low=-0.0075, high=-0.0045, n=3)
    assert MetricDifference(beyond, 0.0003, margin=0.0045, baseline=0.9, candidate=0.894, highest=-0.0045).lost


def simulated_difference(rng, loss: float, seeds: int):
    """A metric's difference over seeds whose values scatter by 0.004 each, as the gate has it."""
    before = [run(s, to=None, best=0.9 + 0.004 * rng.standard_normal()) for s in range(seeds)]
    after = [run(s, to=None, best=0.9 - loss + 0.004 * rng.standard_normal()) for s in range(seeds)]
    return metric_difference(list(zip(before, after, strict=True)), OBJECTIVE, Noise(seed_noise=0.004))


def test_rates_of_false_losses_and_of_true_losses_that_pass() -> None:
    rng, most = np.random.default_rng(5), 4
    same = [[simulated_difference(rng, 0.0, n) for n in range(2, most + 1)] for _ in range(120)]
    lost = [[simulated_difference(rng, 0.009, n) for n in range(2, most + 1)] for _ in range(120)]
    assert np.mean([any(d.lost for d in screenings) for screenings in same]) <= 0.02
    assert np.mean([any(d.confirmed for d in screenings) for screenings in lost]) <= 0.05


@pytest.mark.parametrize(("seeds", "scatter"), [(3, 0.002), (4, 0.004), (6, 0.004)])
def test_a_loss_that_would_have_been_seen_is_seen_with_its_power(seeds: int, scatter: float) -> None:
    """The sentence of the page, tried: of losses as large as it names, four fifths are not shown to be as good."""
    rng, margin, error = np.random.default_rng(9), 0.0045, scatter * np.sqrt(2 / seeds)
    reach = float(student.ppf(0.975, seeds)) * error

    def seen(loss: float) -> MetricDifference:
        value = -loss + error * rng.standard_normal()
        estimate = Estimate(value=value, low=value - reach, high=value + reach, n=seeds)
        return MetricDifference(estimate, error, margin, 0.9, 0.9 + value, highest=value + 2 * reach)

    confirmed = next((one for one in (seen(0.0) for _ in range(2000)) if one.confirmed), None)
    if confirmed is None:
        undecided = seen(0.0)
        assert undecided.seeds_wanted is None or undecided.seeds_wanted > seeds
        return
    assert confirmed.detectable is not None
    missed = np.mean([seen(confirmed.detectable * margin).confirmed for _ in range(4000)])
    assert missed == pytest.approx(0.2, abs=0.03) or confirmed.detectable == 0.0
    assert np.mean([seen(margin).confirmed for _ in range(4000)]) <= 0.05


@pytest.mark.parametrize(("seeds", "allowed"), [(2, 1.5), (3, 1.3), (4, None)])
def test_further_steps_as_many_as_it_names_are_noticed_with_its_power(seeds: int, allowed: float | None) -> None:
    rng = np.random.default_rng(11)

    def seen(ratio: float) -> Estimate:
        return ratio_of_pairs(np.log(ratio) + SCATTER * rng.standard_normal(seeds))

    named = float(np.median([detectable_steps(seen(1.0), allowed) for _ in range(500)]))
    drawn = [seen(named) for _ in range(2000)]
    noticed = [one.low > 1.0 if allowed is None else one.high >= allowed for one in drawn]
    assert np.mean(noticed) == pytest.approx(0.8, abs=0.07)


def test_more_frequent_evaluations_are_quality_lost() -> None:
    one = run(0, to=None, best=0.88)
    often = run(0, to=None, best=0.89)
    points = [CurvePoint(step=s, seconds=0.01 * s, metric=0.004 * s) for s in range(10, 221, 10)]
    often = often.model_copy(update={"curve": Curve(seed=0, points=tuple(points))})
    lost = fewer_evaluated([(one, often)])
    assert lost == "evaluated every 10 steps where the baseline was evaluated every 20"
    assert fewer_evaluated([(often, one)]) == ""
    cut_off = (*one.curve.points[:2], one.curve.points[1].model_copy(update={"step": 44}))
    assert fewer_evaluated([(one, one.model_copy(update={"curve": Curve(seed=0, points=cut_off)}))]) == ""
    twice_the_batch = often.model_copy(update={"samples": 2 * often.samples})
    assert fewer_evaluated([(one, twice_the_batch)]) == ""
    judged = judge_runs(evidence((often, often.model_copy(update={"seed": 1}))))
    assert judged.passed is False


# Changes that are faster and spoil the training: each is named ``quality_lost``; honest ones pass.

OBJECTIVE_BREAKERS = OBJECTIVE.model_copy(update={"target": 0.82})
SEEDS = (0, 1)
PROBE = 96
LEVEL = Quality(method="probe", level="equivalent", passed=True, detail="what a probe overlooks")
TRAINED_OTHERWISE = [breaker for breaker in breakers.BREAKERS if breaker.name != "fewer_evaluated"]


def jitter(size: float) -> Callable[[Setup], Setup]:
    """Multiplies each gradient by ``1 + size * normal``: another arithmetic, as bf16 has."""

    def rounded(optimizer: torch.optim.Optimizer, step: int) -> None:
        noise = torch.Generator().manual_seed(step)
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
            parameter.grad *= 1 + size * torch.randn(parameter.grad.shape, generator=noise)

    return hooked(rounded)


HONEST = {
    str(size): Change(f"jitter_{number}", breakers.build, jitter(size), Risk.NUMERIC)
    for number, size in enumerate((0.0, 1e-7, 1e-3))
}
FASTER_RATE = Change("rate", breakers.build, lambda s: s.with_batch(learning_rate_factor=2.0), Risk.TRAINING)
REGISTRY = Registry([Source(each, "test") for each in (*breakers.BREAKERS, *HONEST.values(), FASTER_RATE)])


@pytest.fixture(scope="module")
def baseline() -> tuple[TrainingRun, ...]:
    runs = tuple(trained(REGISTRY, seed=seed) for seed in (*SEEDS, 2))
    assert all(r.reached for r in runs)
    return runs


def verdict(strategy: Strategy, baseline: tuple[TrainingRun, ...], risk: Risk | None = None):
    """Judges as the loop does: gathers what the judge still needs, seed by seed."""
    risk, runs = risk or strategy.risk, [trained(REGISTRY, strategy.name)]
    samples = 10.0 * (strategy.apply(Setup(), {}).batch.size or breakers.BATCH) / breakers.BATCH
    seen = comparison(baseline[0].losses[:PROBE], runs[0].losses[:PROBE], speed=1.4, samples=samples)
    noise = Noise(seed_noise=seed_noise(baseline, "max"))
    how = {"objective": OBJECTIVE_BREAKERS, "deterministic": True, "planned_steps": 256, "level": LEVEL}
    known = Evidence(baseline_runs=baseline, **how)
    for _ in range(5):
        wanted = required_as(risk, seen, known, OBJECTIVE_BREAKERS, noise)
        have = len(known.candidate_runs)
        if not wanted or wanted.seeds <= have or wanted.seeds > len(baseline):
            break
        runs += [trained(REGISTRY, strategy.name, seed=seed) for seed in range(len(runs), wanted.seeds)]
        known = known.model_copy(update={"candidate_runs": tuple(runs[: wanted.seeds])})
    return judge_as(risk, seen, known, OBJECTIVE_BREAKERS, noise)


@pytest.mark.parametrize("breaker", TRAINED_OTHERWISE, ids=lambda breaker: breaker.name)
def test_breaker_is_named_quality_lost_also_where_it_claims_to_be_exact(breaker, baseline) -> None:
    for risk in (None, Risk.EXACT):
        found = verdict(breaker, baseline, risk)
        assert found.verdict is Verdict.QUALITY_LOST, found.reason
        assert found.quality.passed is False
        assert found.reason


def test_fewer_evaluated_samples_are_seen_in_whole_trainings(baseline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKERS_BATCHES", "4")
    runs = tuple(trained(REGISTRY, seed=seed) for seed in SEEDS)
    how = {"objective": OBJECTIVE_BREAKERS, "noise": NOISE, "level": LEVEL}
    found = judge_runs(Evidence(baseline_runs=baseline, candidate_runs=runs, **how))
    assert found.passed is False
    assert "evaluated on" in (found.detail or "")


@pytest.mark.parametrize(
    ("change", "risk", "verdicts"),
    [
        *((change, Risk.NUMERIC, (Verdict.KEPT,)) for change in HONEST.values()),
        *((HONEST[size], Risk.EXACT, (Verdict.KEPT,)) for size in ("0.0", "1e-07")),
        (FASTER_RATE, Risk.TRAINING, (Verdict.KEPT, Verdict.INCONCLUSIVE)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_honest_change_loses_no_quality(change, risk: Risk, verdicts: tuple[Verdict, ...], baseline) -> None:
    found = verdict(change, baseline, risk)
    assert found.verdict in verdicts, found.reason
    assert found.quality.passed is True
    assert found.time_to_target.value > 1.05


# Losses of whole trainings beside how far the baseline's own trainings part.

STEPS = 800
LEVEL_WHOLE_RUNS = Quality(method="probe", level="equivalent", passed=True, detail="the same training but for rounding")


def chaotic(batches: int, own: int, parted: int = 150, size: float = 0.05, shift: float = 0.0, since: int = 0):
    """Losses of a GAN: level, batch noise of its seed, and a walk of its own from the step on where it has parted."""
    step = np.arange(STEPS)
    draws = np.random.default_rng(1000 + own).standard_normal(STEPS)
    walk = np.array(list(accumulate(size * 0.2 * draws, lambda before, drawn: 0.98 * before + drawn)))
    grown = np.clip((step - parted) / 100, 0.0, 1.0)
    noise = np.random.default_rng(batches).normal(0, 0.05, STEPS)
    return tuple(0.7 + 0.3 * step / STEPS + noise + grown * walk + shift * (step >= since))


def judged(candidates, seeds: int = 2) -> Quality:
    runs = [run(seed, losses=chaotic(seed, seed)) for seed in range(seeds)]
    after = tuple(run(seed, losses=candidates(seed)) for seed in range(seeds))
    return judge_whole_runs(LEVEL_WHOLE_RUNS, evidence(after, tuple(runs)))


def test_trainings_that_part_by_chance_are_those_of_the_baseline_among_themselves() -> None:
    lost = undecided = 0
    for number in range(25):
        found = judged(lambda seed, number=number: chaotic(seed, 100 + 2 * number + seed))
        lost, undecided = lost + (found.passed is False), undecided + (found.passed is None)
    assert lost <= 1
    assert undecided <= 3


EACH, ONE = "in trainings from each of", "in trainings from one seed"


@pytest.mark.parametrize(
    ("own", "shift", "since", "shifted", "seeds", "passed", "words"),
    [
        (100, 0.05, 0, (0, 1), 2, False, ("higher", EACH)),
        (100, -0.05, 8, (0, 1), 2, False, ("lower", EACH)),
        (100, 0.5, 400, (0, 1), 2, False, ("higher", EACH)),
        (100, 2.0, 500, (1,), 2, False, ("higher", ONE)),  # it fails from one seed alone
        # the very training of the baseline, but for a shift between: a third seed decides it
        (0, 0.35, 400, (0, 1), 2, None, ("a further seed has to tell",)),
        (0, 0.35, 400, (0, 1, 2), 3, False, ("higher", EACH)),
    ],
)
def test_what_lies_off_in_all_seeds_or_grossly_in_one_is_another_training(
    own: int, shift: float, since: int, shifted: tuple[int, ...], seeds: int, passed: bool | None, words: tuple[str]
) -> None:
    found = judged(lambda seed: chaotic(seed, own + seed, shift=shift * (seed in shifted), since=since), seeds)
    assert found.passed is passed
    assert all(word in found.detail for word in words), found.detail


def test_no_spread_excuses_what_a_probe_sees() -> None:
    """Trainings of other seeds differ from their first step on; those of one seed do not."""
    apart = [chaotic(seed, seed, shift=0.1 * seed) for seed in range(2)]
    runs = tuple(run(seed, losses=losses) for seed, losses in enumerate(apart))
    early = np.where(np.arange(STEPS) < SEEN_BY_PROBES, 0.06, 0.0)
    after = tuple(run(seed, losses=tuple(np.array(losses) + early)) for seed, losses in enumerate(apart))
    assert judge_whole_runs(LEVEL_WHOLE_RUNS, evidence(after, runs)).passed is False


# Losses that part by rounding alone are told from those of another training, by the incumbent a rounding apart.


def unstable(step: int, apart: float) -> float:
    """A loss that rises at a large learning rate, from weights that are ``apart`` by a rounding."""
    return 7.0 + min(step, 8) * 0.7 + min(apart * 9.0**step, 1.0)


def paths_of(*aparts: float, steps: int = 24) -> list[LossPath]:
    kept = tuple(range(steps))
    return [LossPath(steps=kept, losses=tuple(unstable(step, apart) for step in kept)) for apart in aparts]


@pytest.mark.parametrize("level", ["equivalent", "undecided"])
def test_losses_that_part_as_they_do_from_a_rounding_of_the_weights_are_the_same_training(level) -> None:
    before, after, own = paths_of(0.0, 1e-5, -1e-5)
    found = comparison(before.losses, after.losses)
    probed = Quality(method="probe", level=level, passed=True if level == "equivalent" else None, detail="probed")
    known = evidence(level=probed)
    assert may_be_rounding(found, known) == (24 if level == "equivalent" else 0)
    assert may_be_rounding(found, known.model_copy(update={"risk": Risk.EXACT})) == 0
    assert judge_as(Risk.NUMERIC, found, known, OBJECTIVE, NOISE).verdict is Verdict.QUALITY_LOST
    judged = judge_as(Risk.NUMERIC, found, known.model_copy(update={"rounded": own}), OBJECTIVE, NOISE)
    assert judged.verdict is (Verdict.KEPT if level == "equivalent" else Verdict.INCONCLUSIVE)


def test_losses_that_part_sooner_or_further_than_by_a_rounding_are_another_training() -> None:
    before, own, early = paths_of(0.0, 1e-12, 0.5)
    probed = Quality(method="probe", level="equivalent", passed=True, detail="probed")
    far = tuple(loss + (8.0 if step > 10 else 0.0) for step, loss in enumerate(before.losses))
    for after in (early.losses, far):
        known = evidence(level=probed, rounded=own)
        judged = judge_as(Risk.NUMERIC, comparison(before.losses, after), known, OBJECTIVE, NOISE)
        assert judged.verdict is Verdict.QUALITY_LOST


@pytest.mark.parametrize(("drawn", "verdict"), [(False, Verdict.QUALITY_LOST), (True, Verdict.KEPT)])
def test_other_draws_make_another_loss_of_the_same_weights(drawn: bool, verdict: Verdict) -> None:
    probed = Quality(method="probe", level="equivalent", passed=True, detail="probed")
    before = losses()
    after = tuple(loss + 0.1 * (-1) ** step for step, loss in enumerate(before))
    judged = judge_as(Risk.NUMERIC, comparison(before, after), evidence(level=probed, drawn=drawn), OBJECTIVE, NOISE)
    assert judged.verdict is verdict


# Two loss paths of one training but for rounding: no false alarms.


@pytest.mark.parametrize("steps", [64, 1100])
@pytest.mark.parametrize("check", [same_within_tolerance, same_on_average])
def test_honest_paths_pass_again_and_again(check, steps: int) -> None:
    """Whatever the seed of the rounding noise: no false alarm in 50 paths."""
    for seed in range(50):
        own = 0.02 * np.random.default_rng(seed).standard_normal(steps)
        before = losses(seed, steps)
        paths = common(LossPath.of(before), LossPath.of(np.array(before) + own * np.linspace(0, 1, steps)))
        assert check(paths).passed


@pytest.mark.parametrize("steps", [64, 100, 256, 1117, 5000])
def test_who_learns_half_as_fast_is_told_however_many_steps_were_captured(steps: int) -> None:
    """All of the difference lies in the first steps; afterwards both have learnt what there is to learn."""
    step, noise = np.maximum(np.arange(steps) - 1, 0), np.random.default_rng(0).normal(0, 0.1, steps)
    before, after = (0.3 + 1.1 * np.exp(-step / pace) + noise for pace in (12.0, 24.0))
    paths = common(LossPath.of(before), LossPath.of(after))
    found = same_within_tolerance(paths)
    assert found.passed is False
    assert "higher than before from step" in (found.detail or "")


def test_what_the_incumbent_differs_from_itself_counts_more_in_a_shorter_window() -> None:
    """Draws of augmentation that scatter the losses at random, in all of a long path."""
    mean = 0.3 + 2.0 * np.exp(-np.arange(1200) / 40.0)
    for seed in range(30):
        random = np.random.default_rng(seed)
        before, after, again = (LossPath.of(mean + random.normal(0, 0.4, 1200)) for _ in range(3))
        assert same_on_average(common(before, after), common(before, again)).passed


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [(5, [5]), (64, [8] * 8), (1117, [8, 16, 32, 64, 128, 145, 145, 145, 145, 145, 144])],
)
def test_windows_double_until_they_are_an_eighth_of_the_path(steps: int, lengths: list[int]) -> None:
    cut = windows(np.arange(float(steps)))
    assert [len(window) for window in cut] == lengths
    assert np.array_equal(np.concatenate(cut), np.arange(float(steps)))


def test_a_claim_to_change_nothing_allows_a_ten_thousandth_of_the_loss_at_the_start() -> None:
    before = np.array(losses())
    paths = [LossPath.of(before + size) for size in (0.0, 1e-4, 5e-4)]
    assert same_to_rounding(common(paths[0], paths[1]), 0.0).passed
    assert not same_to_rounding(common(paths[0], paths[2]), 0.0).passed


@pytest.mark.parametrize(("share", "passed"), [(0.5, True), (1.5, False)])
@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_the_tolerance_is_a_share_of_the_loss_whatever_its_size(share: float, passed: bool, size: float) -> None:
    before = size * np.array(losses())
    paths = common(LossPath.of(before), LossPath.of(before + share * PATH_TOLERANCE * size * 2.3))
    assert paths.scale == pytest.approx(2.3 * size, rel=0.2)
    found = same_on_average(paths)
    assert found.passed is passed
    assert found.margin == pytest.approx(PATH_TOLERANCE * paths.scale)
