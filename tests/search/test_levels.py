"""Quality levels from real probes of two plans."""

from __future__ import annotations

from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from autoopt import records
from autoopt.benchmark.run import RunUnderWay
from autoopt.benchmark.tasks import probe
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Objective, Plan
from autoopt.records.messages import EpochOrder, EpochRead, Probe, samples_read
from autoopt.registry import Registry, Source
from autoopt.search.accept import levels
from autoopt.search.accept.data import DataCompared, ProbeResult
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.levels import level_of
from autoopt.strategy import Risk
from benchmarks.truth.quality_changes import Change, Remembering, bf16, drop, hooked, reading, without_decay
from made_up import breakers_trial
from workloads import breakers

OBJECTIVE = Objective(metric="accuracy", mode="max", target=0.82, target_source="user", tolerance=0.005, min_gain=0.01)
STEPS = 40


class NoisyEvaluation(torch.nn.Sequential):
    def forward(self, x):
        found = super().forward(x)
        return found if self.training else found + 2.0 * torch.randn_like(found)


def skip_tenth(optimizer: torch.optim.Optimizer, step: int) -> None:
    if step % 10 == 0:
        drop(optimizer)


LATER_SUBSET = Change("later_subset", breakers.build, reading(lambda i, n, c: i // 8 if n >= c else i), Risk.EXACT)
SKIPPING = Change("skipping", breakers.build, hooked(skip_tenth), Risk.NUMERIC)
UNDECAYED = Change("undecayed", breakers.build, lambda s: s.with_optimizer(without_decay), Risk.NUMERIC)
NOISY = Change("noisy", breakers.build, lambda s: s.with_model(lambda m: NoisyEvaluation(*m)), Risk.NUMERIC)
FROZEN = Change("frozen", breakers.build_augmented, lambda s: s.with_dataset(Remembering), Risk.EXACT)
ROUNDED = Change("bf16", breakers.build, bf16, Risk.NUMERIC)
THREADS = Change("threads", breakers.build, lambda s: s.with_flags(threads=1), Risk.EXACT)
PIECES = Change("pieces", breakers.build, lambda s: s.with_batch(size=16, accumulation=2), Risk.NUMERIC)
ALL = (*breakers.BREAKERS, LATER_SUBSET, SKIPPING, UNDECAYED, NOISY, FROZEN, ROUNDED, THREADS, PIECES)
REGISTRY = Registry([Source(breaker, "test") for breaker in ALL])


def plan_of(*names: str) -> Plan:
    return Plan(changes=tuple(records.Change(strategy=name) for name in names))


def live(plan: Plan, build: str = "build") -> TrialContext:
    return breakers_trial(REGISTRY, *plan.names(), build=build)


def probed(
    path: Path, plan: Plan, *, build: str = "build", steps: int = STEPS, gradients: int = 24, **asked: object
) -> ProbeResult:
    """The probe of a plan, with its arrays."""
    context, threads = live(plan, build), torch.get_num_threads()
    try:
        document = probe(context, out=str(path), **{"steps": steps, "gradients": gradients, "seconds": 20.0, **asked})
    finally:
        context.close()
        torch.set_num_threads(threads)
    return ProbeResult(Probe.model_validate(document), Arrays.read(path))


class Probes:
    """Probes of the breakers' workload at weights that its baseline kept."""

    def __init__(self, folder: Path, build: str = "build") -> None:
        self.folder, self.build = folder, build
        context = live(Plan(), build)
        run = RunUnderWay(context, max_seconds=60.0, keep=str(folder / "weights"))
        run.go_on()
        self.weights = list(run.document().kept)
        self.before = self._probed(Plan(), STEPS)
        self._kept: dict[tuple[str, int], ProbeResult] = {}

    def of(self, plan: Plan, steps: int = STEPS) -> ProbeResult:
        """Another probe than ``before``, made once."""
        if (plan.key, steps) not in self._kept:
            self._kept[plan.key, steps] = self._probed(plan, steps)
        return self._kept[plan.key, steps]

    def _probed(self, plan: Plan, steps: int) -> ProbeResult:
        path = self.folder / f"{'-'.join(plan.names()) or 'baseline'}.npz"
        return probed(path, plan, build=self.build, steps=steps, weights=self.weights)

    def level(self, change):
        return level_of(change.risk, self.before, self.of(plan_of(change.name)), OBJECTIVE, planned_steps=256)


@pytest.fixture(scope="module")
def probes(tmp_path_factory) -> Probes:
    return Probes(tmp_path_factory.mktemp("probes"))


def test_the_baseline_keeps_three_sets_of_weights(probes) -> None:
    assert len(probes.weights) == 3
    assert probes.before.probe.points == 3
    assert probes.before.probe.steps == STEPS


@pytest.mark.parametrize(("by_rounding", "passed"), [(None, None), (0.1, None), (0.5, True)])
def test_a_training_may_part_as_far_as_it_does_from_itself(probes, by_rounding, passed) -> None:
    """Across an epoch's end, where the first rounding grows to whole steps in a few of them."""
    after, weights = probes.of(Plan()), probes.before.arrays.weights[:9]
    away = 5 * np.linspace(0, 1, len(weights))[:, None] * (weights[1] - weights[0])

    def crossing(found: ProbeResult, share: float) -> ProbeResult:
        return replace(found, arrays=replace(found.arrays, windows={"epoch": weights + share * away}))

    before = crossing(probes.before, 0.0)
    if by_rounding is not None:
        before = replace(before, rounded=lambda size, draws: crossing(probes.before, by_rounding).arrays)
    found = level_of(Risk.NUMERIC, before, crossing(after, 1.0), OBJECTIVE)
    assert found.passed is passed, found.detail
    assert passed or "across the end of an epoch" in found.detail


@pytest.mark.parametrize("otherwise", [False, True])
def test_masks_that_differ_are_held_against_those_of_another_seed(probes, otherwise: bool) -> None:
    """A new Adam takes whole steps by gradients whose signs dropout decides: 5.6 steps across the end of an epoch."""
    size = probes.before.arrays.weights.shape[1]
    draws = np.random.default_rng(3).normal(size=(2, 4, size))
    weights = probes.before.arrays.weights[:9]
    away = 5 * np.linspace(0, 1, len(weights))[:, None] * (weights[1] - weights[0])
    asked: list[bool] = []

    def drawing(found: ProbeResult, masks: int, share: float) -> ProbeResult:
        windows = {"epoch": weights + share * away}
        return replace(found, arrays=replace(found.arrays, windows=windows, draws=draws[masks] * 1e-9))

    def rounded(size: float, other_draws: bool) -> Arrays:
        asked.append(other_draws)
        return drawing(probes.before, 0, 0.5 if other_draws else 0.01).arrays

    before = replace(drawing(probes.before, 0, 0.0), rounded=rounded)
    found = level_of(Risk.NUMERIC, before, drawing(probes.of(Plan()), int(otherwise), 1.0), OBJECTIVE)
    assert asked == [otherwise]
    assert found.passed is (True if otherwise else None), found.detail


@pytest.mark.parametrize(
    ("by_rounding", "first", "passed"),
    [(None, False, None), (0.05, False, None), (0.5, False, True), (0.5, True, None)],
)
def test_buffers_may_part_as_far_as_they_do_by_rounding(probes, by_rounding, first: bool, passed) -> None:
    """As running statistics of a training whose weights part from a rounding; not so in the first step."""
    walk = np.cumsum(np.random.default_rng(0).normal(size=(17, 6)), axis=0)
    grows = np.linspace(1.0 if first else 0.0, 1.0, 17)[:, None]

    def moving(found: ProbeResult, share: float) -> ProbeResult:
        away = share * np.cumsum(grows * np.random.default_rng(1).normal(size=(17, 6)), axis=0)
        names = ("running_mean",) * 6
        return replace(found, arrays=replace(found.arrays, buffers={"start": walk + away}, buffer_names=names))

    before = moving(probes.before, 0.0)
    if by_rounding is not None:
        before = replace(before, rounded=lambda size, draws: moving(probes.before, by_rounding).arrays)
    found = level_of(Risk.NUMERIC, before, moving(probes.of(Plan()), 1.0), OBJECTIVE)
    assert found.passed is passed, found.detail
    assert passed or "running_mean changes by" in found.detail


def test_batches_that_tell_nothing_are_never_called_identical(probes) -> None:
    blind = [
        ProbeResult(each.probe.model_copy(update={"unseen": "Molecule"}), each.arrays)
        for each in (probes.before, probes.of(Plan()))
    ]
    found = level_of(Risk.EXACT, *blind, OBJECTIVE)
    assert found.level != "identical"
    assert "the samples' order could not be checked (Molecule not seen)" in found.detail


@pytest.mark.parametrize("steps", [STEPS - 7, STEPS - 16])
def test_a_probe_of_fewer_steps_is_of_the_same_batches(steps: int, probes) -> None:
    """A candidate whose steps took longer under the probe (it compiles) trains fewer of them and reads on earlier."""
    found = level_of(Risk.EXACT, probes.before, probes.of(Plan(), steps), OBJECTIVE)
    assert (found.passed, found.level) == (True, "identical"), found.detail
    later = probes.of(plan_of("later_subset"), steps)
    assert level_of(Risk.EXACT, probes.before, later, OBJECTIVE).passed is False


def test_a_candidate_reads_on_as_far_as_the_incumbent_did_and_no_further(tmp_path: Path) -> None:
    def read(samples: int) -> int:
        limits = {"steps": 12, "seconds": 600.0, "reading": 0.0}
        return samples_read(probed(tmp_path / "read.npz", Plan(), samples=samples, **limits).probe.epochs)

    trained = read(0)
    batch = trained // 12
    assert read(trained + 3 * batch) == trained + 3 * batch
    assert read(trained + 3 * batch + 1) == trained + 4 * batch


OF_GRADIENTS = [b for b in breakers.BREAKERS if b.risk.value == "numeric" and b.name != "fewer_evaluated"]


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        (LATER_SUBSET, None, "another batch than the incumbent's at a batch after the probe's training"),
        (SKIPPING, None, "is not updated in step 9"),
        (UNDECAYED, None, "another update from the same gradients"),
        (NOISY, None, "accuracy"),
        *((breaker, None, "") for breaker in OF_GRADIENTS),
        (ROUNDED, "equivalent", ""),
        (THREADS, "identical", ""),
        (PIECES, "identical", ""),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_honest_change_has_its_level_and_a_breaker_has_none(change, level: str | None, words: str, probes) -> None:
    found = probes.level(change)
    assert (found.passed, found.level) == (level is not None, level), found.detail
    assert words in found.detail


def test_augmentation_that_freezes_after_the_first_epoch_is_lost(tmp_path: Path) -> None:
    probes = Probes(tmp_path, "build_augmented")
    frozen = probes.of(plan_of("frozen"))
    found = level_of(Risk.EXACT, probes.before, frozen, OBJECTIVE, deterministic=False)
    assert found.passed is False, found.detail
    assert "frozen draws" in found.detail
    honest = level_of(Risk.EXACT, probes.before, probes.of(Plan()), OBJECTIVE, deterministic=False)
    assert honest.passed is not False, honest.detail


def test_losses_that_agree_do_not_hide_gradients_that_are_rounded_otherwise(probes) -> None:
    """Half precision where the loss falls slowly: losses and weights of a short probe agree, gradients do not."""
    after = probes.of(Plan())
    rounded = tuple(
        values + 0.01 * values.std(axis=0) * np.random.default_rng(7).standard_normal(values.shape)
        for values in after.arrays.gradients
    )
    after = ProbeResult(after.probe, replace(after.arrays, gradients=rounded))
    found = level_of(Risk.NUMERIC, probes.before, after, OBJECTIVE, planned_steps=256)
    assert (found.passed, found.level) == (True, "equivalent"), found.detail


def test_without_kept_weights_gradients_are_compared_at_those_of_the_probes_own_steps(tmp_path: Path) -> None:
    before = probed(tmp_path / "own.npz", Plan(), weights=[])
    assert (len(before.probe.kept), before.probe.points, before.probe.own_steps) == (3, 3, STEPS)
    after = probed(tmp_path / "bf16.npz", plan_of("bf16"), weights=list(before.probe.kept))
    assert after.probe.kept == ()
    found = level_of(Risk.NUMERIC, before, after, OBJECTIVE, planned_steps=256)
    assert (found.passed, found.level) == (True, "equivalent"), found.detail
    assert f"3 points in its first {STEPS} steps of 24 batches" in found.detail


@pytest.mark.parametrize(("risk", "level"), [(Risk.NUMERIC, "undecided"), (Risk.EXACT, "identical")])
def test_what_may_round_is_not_identical_by_losses_and_weights_alone(risk: Risk, level: str, probes) -> None:
    """bf16 on a small GPT: 17 steps agreed within what float32 rounds, and no weights had been kept."""
    blind = [ProbeResult(p.probe, replace(p.arrays, gradients=())) for p in (probes.before, probes.of(Plan()))]
    found = level_of(risk, *blind, OBJECTIVE)
    assert (found.level, found.passed) == (level, True if level == "identical" else None), found.detail


@pytest.mark.parametrize(
    ("risk", "value", "turned", "passed"),
    [
        (Risk.NUMERIC, 0.8, 3, True),
        (Risk.NUMERIC, 0.8, 4, False),
        (Risk.EXACT, 0.8, 1, False),
        (Risk.NUMERIC, 0.3217, 3, False),
    ],
    ids=["three", "four", "exact", "loss"],
)
def test_rounding_may_turn_a_few_samples_of_an_evaluation(
    risk: Risk, value: float, turned: int, passed: bool, probes
) -> None:
    """Two of 180 were more than the tolerance: bf16 was taken out at the end, and with it all that was proved."""

    def evaluated(metric: float) -> ProbeResult:
        told = {"evaluated_samples": 100, "metrics": (metric,) * 3}
        return replace(probes.before, probe=probes.before.probe.model_copy(update=told))

    found = level_of(risk, evaluated(value), evaluated(value - turned / 100), OBJECTIVE)
    assert (found.passed is not False) == passed


def drawn(rng: np.random.Generator, samples: int, kinds: int, frozen: float = 0.0) -> list[EpochRead]:
    """Two epochs of samples that are drawn anew among so many kinds, a share of them not anew in the second."""
    first = rng.integers(kinds, size=samples)
    second = np.where(rng.random(samples) < frozen, first, rng.integers(kinds, size=samples))
    repeated = int((first == second).sum())
    return [
        EpochRead(samples=samples, distinct=samples, seen_before=0),
        EpochRead(samples=samples, distinct=samples, seen_before=repeated),
    ]


def other_data(one: list[EpochRead], other: list[EpochRead]) -> str:
    before, after = (Probe(file="", steps=0, epochs=tuple(e)) for e in (one, other))
    return data_of(before, after, deterministic=False).lost


def data_of(
    before: Probe, after: Probe, again: Probe | None = None, *, deterministic: bool = True, rows: float = 0.0
) -> DataCompared:
    """The data of two probes; gradients at two points, the candidate's ``rows`` off."""
    nothing = np.zeros((4, 1))
    one, other = (
        Arrays(("w",), np.ones(1), np.zeros(1, np.int64), nothing, (nothing + off,) * 2, None, None)
        for off in (0.0, rows)
    )
    return DataCompared.of(ProbeResult(before, one, lambda: again), ProbeResult(after, other), deterministic)


@pytest.mark.parametrize(
    ("usual", "candidate", "elsewhere", "rows", "lost", "until", "alike"),
    [
        ("a b c d", "a b c d", "a b x x", 0.0, "", None, False),
        ("a b c d", "a b c e", "a b c d", 0.0, "step 3", None, False),
        ("a b c d", "a b c e", None, 0.0, "step 3", None, False),
        ("a b c d", "a b c e", "a b c x", 0.0, "", 3, False),
        ("a b c d", "a b x e", "a b x d", 0.0, "", 2, False),  # as if by chance: what has parted stays so
        ("a b c d", "a x c e", "a b c x", 0.0, "step 1", 3, False),  # before weights can differ
        ("a b c d", "a x c e", "a x c d", 0.0, "step 1", 1, False),  # at the same weights, by the same arithmetic
        ("a b c d", "a x c e", "a x c d", 1e-6, "", 1, False),
        ("ap bq cr ds", "ap bu cv dw", "ax by cz dx", 1e-6, "", None, True),  # a solver's later calls
        ("ap bq cr ds", "ap bu cv ew", "ax by cz dx", 1e-6, "step 3", None, True),
        ("ap bq cr ds", "ap bqu cr ds", None, 0.0, "", None, False),  # micro-batches that cannot be joined
    ],
)
def test_data_that_depend_on_weights_are_told_from_other_data(
    usual: str, candidate: str, elsewhere: str | None, rows: float, lost: str, until: int | None, alike: bool
) -> None:
    """Each word is a step, each letter the digest of a part of its data. Two steps of gradients come first."""

    def read(words: str) -> Probe:
        digests = tuple("".join(letter * 16 for letter in word) for word in words.split())
        return Probe(file="", steps=4, digests=digests, gradient_digests=digests[:2])

    found = data_of(read(usual), read(candidate), read(elsewhere) if elsewhere else None, rows=rows)
    assert lost in found.lost
    assert bool(found.lost) is bool(lost)
    assert (found.until, found.alike) == (until, alike)


@pytest.mark.parametrize(("samples", "kinds"), [(300, 2), (1600, 2), (1600, 4), (5000, 50)])
def test_draws_that_repeat_by_chance_are_not_called_frozen(samples: int, kinds: int) -> None:
    rng = np.random.default_rng(0)
    called = [other_data(drawn(rng, samples, kinds), drawn(rng, samples, kinds)) for _ in range(1000)]
    assert sum(map(bool, called)) <= 1
    assert all("frozen" in other_data(drawn(rng, samples, kinds), drawn(rng, samples, kinds, 0.9)) for _ in range(50))


@pytest.mark.parametrize(
    ("metrics", "lost"),
    [
        ((0.01593, 0.83356, 0.96570), False),  # 16,384 letters of 256 samples, as measured in bf16
        ((0.01581, 0.84100, 0.96600), False),
        ((0.01581, 0.84800, 0.96600), True),
        ((0.01581, 0.83301, 0.97200), True),
    ],
)
def test_rounding_may_move_what_an_unfinished_model_gets_right(metrics: tuple[float, ...], lost: bool) -> None:
    usual = Probe(file="", steps=1, metrics=(0.01581, 0.83301, 0.96600), evaluated_samples=256)
    other = usual.model_copy(update={"metrics": metrics})
    objective = OBJECTIVE.model_copy(update={"target": None, "tolerance": 0.005})
    assert bool(levels.other_evaluation(usual, other, objective, levels.FLIPPED)) is lost
    assert levels.other_evaluation(usual, other, objective, 0), "what is exact moves nothing"
    fewer = usual.model_copy(update={"evaluated_samples": 128})
    assert "evaluated on 128 samples" in levels.other_evaluation(usual, fewer, objective, levels.FLIPPED)


@pytest.mark.parametrize(
    ("value", "other", "samples", "mode", "lost"),
    [
        (0.171875, 0.175, 320, "max", False),
        pytest.param(0.1719, 0.175, 320, "max", False, id="as it was printed"),
        pytest.param(17.19, 17.5, 320, "max", False, id="in per cent"),
        pytest.param(0.1719, 0.1875, 320, "max", True, id="five of them"),
        pytest.param(17.19, 18.75, 320, "max", True, id="five of them, in per cent"),
        pytest.param(0.1733, 0.1764, 320, "max", True, id="no share of so many"),
        pytest.param(2.5, 2.53, 320, "min", True, id="a loss"),
        pytest.param(1e-05, 0.005, 320, "min", True, id="a small loss"),
    ],
)
def test_one_answer_of_an_early_model_may_turn(value: float, other: float, samples: int, mode: str, lost: bool) -> None:
    usual = Probe(file="", steps=1, metrics=(value,), evaluated_samples=samples)
    found = usual.model_copy(update={"metrics": (other,)})
    objective = OBJECTIVE.model_copy(update={"target": None, "tolerance": 0.005, "mode": mode})
    assert bool(levels.other_evaluation(usual, found, objective, levels.FLIPPED)) is lost
    assert levels.other_evaluation(usual, found, objective, 0), "what is exact moves nothing"


def test_metrics_of_the_same_weights_on_other_data_say_nothing() -> None:
    """A script may draw its evaluation's batches: those of two processes are compared where they are the same."""
    usual = Probe(file="", steps=1, metrics=(0.8,), evaluation_digest="a")
    for digest, lost in (("a", True), ("b", False)):
        other = usual.model_copy(update={"metrics": (0.7,), "evaluation_digest": digest})
        assert bool(levels.other_evaluation(usual, other, OBJECTIVE, 0)) is lost
        assert not levels.same_metric(usual, other)
    same = usual.model_copy(update={"metrics": (None, 0.8 + 1e-7)})
    assert levels.same_metric(usual.model_copy(update={"metrics": (None, 0.8)}), same)
    assert not levels.same_metric(usual, same), "none of the same place"
    assert not levels.same_metric(usual, usual.model_copy(update={"evaluation_digest": "b"}))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"learning_rates": (0.1,) * 9}, {"learning_rates": (0.1,) * 5, "rates_ahead": ((8, 0.1), (16, 0.01))}, ""),
        ({"learning_rates": (0.1,) * 9}, {"learning_rates": (0.1,) * 5, "rates_ahead": ((8, 0.01),)}, "at step 8"),
        ({"rates_ahead": ((64, 0.1), (128, 0.01))}, {"rates_ahead": ((64, 0.1), (128, 0.1))}, "0.1 at step 128"),
        ({"rates_ahead": ((-30, 0.01),)}, {"rates_ahead": ((-30, 0.1),)}, "at epoch 30"),
        ({"dropouts": (0.1, 0.1)}, {"dropouts": (0.1, 0.2)}, "a dropout of 0.2 where it was 0.1"),
        ({"order": (100, 96, 96, False)}, {"order": (100, 96, 96, False)}, ""),
        ({"order": (100, 100, 100, False)}, {"order": (100, 96, 96, False)}, "drop_last"),
        ({"order": (100, 100, 100, False)}, {"order": (100, 100, 50, False)}, "a subset of the data"),
        ({"order": (100, 100, 100, False)}, {"order": (100, 100, 100, True)}, "set_epoch"),
        ({"order": (100, 100, 100, True)}, {"order": (100, 100, 100, True)}, ""),
        ({"order": (100, 100, 100, False)}, {"order": (50, 50, 50, False)}, ""),  # packed: told by its batches
    ],
)
def test_static_checks_have_their_sentences(before, after, words: str, probes) -> None:
    def told(fields) -> ProbeResult:
        if "order" in fields:
            names = [each.name for each in fields_of(EpochOrder)]
            fields = {"order": EpochOrder(**dict(zip(names, fields["order"], strict=True)))}
        return ProbeResult(Probe(file="", steps=1, **fields), replace(probes.before.arrays, draws=None, updates=None))

    found = levels.another_training(Risk.NUMERIC, told(before), told(after), OBJECTIVE)
    assert words in found
    assert bool(found) is bool(words)


@pytest.mark.parametrize("same", [True, False])
def test_samples_that_are_made_otherwise_are_judged_by_the_gradients_of_the_same_labels(probes, same: bool) -> None:
    """A script's images are decoded at another size: no number of a batch is the same, and every label is."""
    after, orders = probes.of(plan_of("bf16")), probes.before.probe.orders
    seen = {
        side: replace(
            each, probe=each.probe.model_copy(update={"gradient_digests": (side,) * 2, "digests": (side,) * 9})
        )
        for side, each in (("before", probes.before), ("after", after))
    }
    if not same:
        other = seen["after"].probe.model_copy(update={"orders": ("another", *orders[1:])})
        seen["after"] = replace(seen["after"], probe=other)
    quality = level_of(Risk.NUMERIC, *seen.values(), OBJECTIVE, deterministic=False, planned_steps=256)
    assert (quality.level, quality.passed) == (("equivalent", True) if same else ("undecided", None))
