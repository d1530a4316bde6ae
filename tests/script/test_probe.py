"""The quality level of a plan on a script, from probes of real processes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autoopt.benchmark.probe import Asked
from autoopt.export.script_patch import placed
from autoopt.records import Plan, Quality, Record, Sites
from autoopt.records.messages import Probe, TrainingRun
from autoopt.search.accept.data import ProbeResult
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.fidelity import Arrays, parted_across_epochs
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.levels import level_of
from autoopt.search.accept.losses import ROUNDING
from autoopt.search.first_training import adopt_metric
from autoopt.strategy import Risk
from scripted import REGISTRY
from tests.script.conftest import OBJECTIVE, StartScript, edited, plan_of

SITES = Sites(command=("python", "train.py"), cwd="/")
UNCHANGED = Plan()
ON_DEVICE = plan_of("prepared_samples", form="rows", where="memory")
FUSED = plan_of("fused_optimizer", implementation="fused")
BFLOAT16 = plan_of("amp", dtype="bfloat16")
WORKERS = plan_of("workers", num_workers=1, prefetch_factor=2)


class Prober:
    """Probes and trains scripts, as they are and with plans, or with other ``words``."""

    def __init__(self, start: StartScript, out: Path) -> None:
        self._start, self._out, self._count = start, out, 0
        self.weights: tuple[str, ...] = ()

    def sites(self, name: str) -> Sites:
        return self._start.watch(name, "100000", steps=18)

    def trained(self, name: str) -> Sites:
        """The sites of a script, which is probed at weights of a short training from now on."""
        sites, keep = self.sites(name), str(self._out / "weights")
        with self._start(name, "64", sites=sites) as process:
            found = process.call("autoopt.benchmark.tasks:train", timeout=60.0, max_seconds=50.0, keep=keep)
        self.weights = tuple(found["kept"])
        return sites

    def __call__(
        self, name: str, sites: Sites, plan: Plan = UNCHANGED, *, words: str = "100000", **more: object
    ) -> ProbeResult:
        """``more``: what the probe is asked for (``autoopt.benchmark.probe.Asked``), and of the script's trial."""
        self._count += 1
        out = self._out / f"{self._count}.npz"
        asked = {"out": str(out), "steps": 24, "seconds": 0.3, "weights": self.weights, "gradients": 12}
        asked |= {each.name: more.pop(each.name) for each in fields(Asked) if each.name in more}
        with self._start(name, *words.split(), sites=sites, plan=plan, **more) as process:
            found = process.call("autoopt.benchmark.tasks:probe", timeout=120.0, **asked)
        return ProbeResult(Probe.model_validate(found), Arrays.read(out))


@pytest.fixture
def prober(start_script: StartScript, tmp_path: Path) -> Prober:
    return Prober(start_script, tmp_path)


def level(risk: Risk, before: ProbeResult, after: ProbeResult, **how: bool) -> Quality:
    return level_of(risk, before, after, OBJECTIVE, **how)


def patch(folder: Path, name: str, *edits: tuple[str, str]) -> dict[str, str]:
    """The file of a script as a process reads it that gets these edits."""
    return {str(folder / name): edited(folder, name, *edits, to="edited.txt")} if edits else {}


@pytest.mark.slow
def test_levels_of_a_script_are_decided_by_its_probes(prober: Prober, folder: Path) -> None:
    sites = prober.trained("plain.py")
    assert len(prober.weights) == 3
    before = prober("plain.py", sites)
    assert before.probe.steps >= 12
    assert before.probe.points == 3
    assert not before.probe.unseen

    same = level(Risk.EXACT, before, prober("plain.py", sites, WORKERS))
    assert (same.level, same.passed) == ("identical", True), same.detail

    whole = level(Risk.EXACT, before, prober("plain.py", sites, ON_DEVICE))
    assert (whole.level, whole.passed) == ("identical", True), whole.detail

    told = [prober("plain.py", sites, plan, metric="val acc ([0-9.]+)").probe for plan in (UNCHANGED, BFLOAT16)]
    assert told[0].metrics[0] is not None, "it evaluates after each epoch of sixteen steps"
    assert told[0].metrics == told[1].metrics, "of the same weights"
    assert told[0].evaluated_samples == told[1].evaluated_samples == 256, "so many answers may rounding turn"
    assert told[0].evaluation_digest == told[1].evaluation_digest != before.probe.digests[0]

    slow = [prober("plain.py", sites, plan, gradients=12, reading=0.0) for plan in (UNCHANGED, BFLOAT16)]
    assert {len(found) for each in slow for found in each.arrays.gradients} == {12}
    assert len(slow[0].probe.digests) == 3 * 12 + slow[0].probe.steps + 1, "it is not read on"
    found = level(Risk.NUMERIC, *slow)
    assert (found.level, found.passed) == ("equivalent", True), found.detail

    cast = level(Risk.NUMERIC, before, prober("plain.py", sites, BFLOAT16))
    assert (cast.level, cast.passed) == ("equivalent", True), cast.detail
    assert cast.gradient_error is not None
    assert cast.gradient_error > 0

    for old, new, told in (
        ("randn(256, 12)", "randn(256, 12).flip(0)", "another batch"),
        ("loss = criterion(model(x), y)", "loss = 1.2 * criterion(model(x), y)", "another gradient"),
        ("lr=0.1", "lr=0.1, momentum=0.5", "another update"),
    ):
        other = level(Risk.NUMERIC, before, prober("plain.py", sites, patched=patch(folder, "plain.py", (old, new))))
        assert other.passed is False, (new, other.detail)
        assert told in other.detail


def test_weights_at_the_target_do_not_end_a_script_there(prober: Prober, folder: Path) -> None:
    """At the end of an epoch a script evaluated trained weights that were put in, and its probe was over."""
    edited(folder, "plain.py", ('"model.pt")\n', '"model.pt")\n    if correct / len(data) >= 0.93:\n        break\n'))
    sites = prober.trained("plain.py")
    probe = prober("plain.py", sites, gradients=17, reading=0.0).probe  # its third epoch ends at the last weights
    assert probe.points == 3
    assert probe.steps >= 12


SECOND = "    for x, y in loader:\n"
BREAKS = {
    "momentum is forgotten": SECOND.replace("    for", "    optimizer.state.clear()\n    for"),
    "statistics are frozen": SECOND + "        model[1].momentum = 0.1 * (step < 100)\n",
    "steps are left out": SECOND + "        if step > 150:\n            x = x * 0.0\n",
    "the rate falls": SECOND + "        if step > 150:\n            optimizer.param_groups[0]['lr'] = 0.01\n",
}


@pytest.mark.slow
def test_breaks_at_the_end_of_an_epoch_or_of_a_short_training_are_in_its_windows(prober: Prober, folder: Path) -> None:
    edited(folder, "plain.py", ("nn.ReLU()", "nn.BatchNorm1d(32), nn.ReLU()"), ("lr=0.1", "lr=0.05, momentum=0.9"))
    sites = prober.trained("plain.py")
    before, again = (prober("plain.py", sites, until=200, reading=0.5, seconds=4.0) for _ in range(2))
    assert set(before.arrays.windows) == {"epoch", "end"}
    assert before.probe.trained == 200
    same = level(Risk.EXACT, before, again)
    assert (same.level, same.passed) == ("identical", True), same.detail
    assert "the steps across the end of an epoch; the last steps of a training of 200" in same.rests_on
    for told, lines in BREAKS.items():
        patched = patch(folder, "plain.py", (SECOND, lines))
        broken = prober("plain.py", sites, until=200, reading=0.5, seconds=4.0, patched=patched)
        for risk in (Risk.EXACT, Risk.NUMERIC):
            found = level(risk, before, broken)
            assert found.passed is not True, f"{told}: {found.detail}"


CLOSURE = """\

        def closure():
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
"""


def test_gradients_that_a_closure_computes_within_the_step_are_compared(prober: Prober, folder: Path) -> None:
    """As Lightning's own loop has it: what is there when the step begins is the gradient of the one before."""
    text = (folder / "plain.py").read_text()
    begin, end = text.index("        optimizer.zero_grad()"), text.index("        step += 1")
    (folder / "plain.py").write_text(text[:begin] + CLOSURE.lstrip("\n") + text[end:])
    sites = prober.trained("plain.py")
    before, after = prober("plain.py", sites), prober("plain.py", sites, BFLOAT16)
    assert before.probe.points == after.probe.points == 3
    assert not before.probe.skipped_by_scaler
    cast = level(Risk.NUMERIC, before, after)
    assert (cast.level, cast.passed) == ("equivalent", True), cast.detail


def test_without_kept_weights_both_gradients_of_a_script_are_taken_at_those_that_the_first_probe_came_to(
    prober: Prober, folder: Path
) -> None:
    sites = prober.sites("plain.py")
    before = prober("plain.py", sites)
    prober.weights = before.probe.kept
    assert len(prober.weights) == 1
    after = prober("plain.py", sites, patched=patch(folder, "plain.py", ("lr=0.1", "lr=5.0")))  # another first step
    assert np.allclose(before.arrays.gradients[0], after.arrays.gradients[0])


@pytest.mark.slow
def test_a_state_that_a_model_hands_on_is_no_data_of_the_script(prober: Prober, folder: Path) -> None:
    sites = prober.trained("carried.py")
    before = prober("carried.py", sites)
    cast = level(Risk.NUMERIC, before, prober("carried.py", sites, BFLOAT16))
    assert "another batch" not in cast.detail
    assert cast.passed is not False, cast.detail
    other = patch(folder, "carried.py", ("(step * LENGTH", "(8 + step * LENGTH"))
    moved = level(Risk.NUMERIC, before, prober("carried.py", sites, patched=other))
    assert moved.passed is False
    assert "another batch" in moved.detail


def test_a_loop_without_a_loader_is_probed_where_its_model_is_called_with_the_labels(prober: Prober) -> None:
    sites = prober.sites("get_batch.py")
    before, after = prober("get_batch.py", sites), prober("get_batch.py", sites)
    assert not before.probe.unseen
    assert level(Risk.EXACT, before, after).level == "identical"


def test_updates_by_the_scripts_own_lines_are_probed(prober: Prober, folder: Path) -> None:
    sites = prober.sites("by_hand.py")
    before = prober("by_hand.py", sites)
    same = level(Risk.EXACT, before, prober("by_hand.py", sites))
    assert (same.passed, same.gradient_error, same.gradient_bias) == (True, 0.0, 0.0), same.detail
    assert level(Risk.NUMERIC, before, prober("by_hand.py", sites, BFLOAT16)).passed is True
    other = patch(folder, "by_hand.py", ("update(0.1)", "update(0.2)"))
    assert level(Risk.NUMERIC, before, prober("by_hand.py", sites, patched=other)).passed is not True


def test_batches_that_depend_on_weights_are_compared_where_weights_are_the_same(prober: Prober, folder: Path) -> None:
    """A policy samples what it is trained on: rounding of an update leads to other batches later on."""
    name, sites = "rollouts.py", prober.trained("rollouts.py")
    again: list[Probe] = []

    def elsewhere() -> Probe:
        again[:] = again or [prober(name, sites, elsewhere=True).probe]
        return again[0]

    def judged(*edits: tuple[str, str], plan: Plan = UNCHANGED) -> Quality:
        return level(Risk.NUMERIC, before, prober(name, sites, plan, patched=patch(folder, name, *edits)))

    before = replace(prober(name, sites), elsewhere=elsewhere)
    fused = judged(plan=FUSED)
    assert (fused.level, fused.passed) == ("equivalent", True), fused.detail
    rounded = judged(("optimizer.step()", "optimizer.step(); policy[0].weight.data.mul_(1.004)"))
    assert "data depend on its weights" in rounded.detail
    assert rounded.passed is not False, rounded.detail
    for edit in (
        ("order.split(64)", "order[:256].split(64)"),
        ("order.split(64)", "(order if iteration < 2 else order[:256]).split(64)"),
        ("order = torch.randperm(len(x))", "order = torch.arange(len(x))"),
        ("loss.backward()", "(1.2 * loss).backward()"),
        ("lr=0.01", "lr=0.01, weight_decay=0.1"),
    ):
        broken = judged(edit)
        assert broken.passed is False, (edit, broken.detail)


RANDOM = ("import sys", "import random\nimport sys")
MADE = "loader = DataLoader(\n    data,"
NOISY = """\
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return len(inputs)

    def __getitem__(self, index):
        return inputs[index] + torch.randn(12) * random.random(), int(inputs[index].sum() > 0)


loader = DataLoader(
    Noisy(),"""


@pytest.mark.slow
def test_random_samples_are_compared_one_by_one_and_updates_from_equal_weights(prober: Prober, folder: Path) -> None:
    decayed = "AdamW(model.parameters(), lr=0.01, weight_decay=0.5)"
    edited(folder, "plain.py", RANDOM, (MADE, NOISY), ("SGD(model.parameters(), lr=0.1)", decayed), to="noisy.py")
    sites = prober.trained("noisy.py")

    def level_with(**script: object) -> Quality:
        before, after = (prober("noisy.py", sites, plan, **script) for plan in (UNCHANGED, WORKERS))
        return level(Risk.EXACT, before, after, deterministic=False)

    same = level_with(same_draws=True)
    assert (same.level, same.passed) == ("identical", True), same.detail
    other = level_with()
    assert (other.level, other.passed) == ("undecided", None), (
        "other samples: nothing is proven, and nothing is refuted"
    )


def test_an_optimizer_for_later_is_left_as_it_is(prober: Prober, folder: Path) -> None:
    """L-BFGS after Adam: it has no fused update, and no step of a probe is its own."""
    late = "late = torch.optim.LBFGS(model.parameters())\nstep = 0\n"
    saved = '"model.pt")\n'
    last = (saved, f"{saved}late.step(lambda: criterion(model(inputs), data.tensors[1]))\n")
    edited(folder, "plain.py", ("optim.SGD", "optim.Adam"), ("step = 0\n", late), last, to="stages.py")
    sites = prober.sites("stages.py")
    before, after = (prober("stages.py", sites, plan) for plan in (UNCHANGED, FUSED))
    assert before.arrays.updates is not None
    found = level(Risk.NUMERIC, before, after)
    assert found.passed, found.detail
    diff = placed(sites, FUSED, REGISTRY, "cpu").patch.diff
    assert "Adam(model.parameters(), lr=0.1, fused=True)" in diff
    assert "+late" not in diff


@pytest.mark.slow
def test_samples_without_whole_numbers_are_known_by_the_indices_that_were_drawn(prober: Prober, folder: Path) -> None:
    """Images and masks that another plan decodes otherwise: what is compared is their gradients."""
    signs = ("(inputs.sum(1) > 0).long()", "inputs.sum(1, keepdim=True).sign()")
    squares = (("CrossEntropyLoss()", "MSELoss()"), ("nn.Linear(32, 2)", "nn.Linear(32, 1)"))
    edited(folder, "plain.py", signs, *squares, to="values.py")
    otherwise = patch(folder, "values.py", ("randn(256, 12)", "randn(256, 12).mul(1.001)"))
    order = patch(folder, "values.py", ("shuffle=True", "shuffle=False"))
    sites = prober.trained("values.py")

    before, decoded, other = (prober("values.py", sites, patched=each) for each in ({}, otherwise, order))
    assert before.probe.digests != decoded.probe.digests
    assert all(before.probe.orders)
    assert before.probe.orders == decoded.probe.orders
    found = level(Risk.NUMERIC, before, decoded, deterministic=False)
    assert (found.level, found.passed) == ("equivalent", True), found.detail
    lost = level(Risk.NUMERIC, before, other, deterministic=False)
    assert lost.passed is False
    assert "another batch" in lost.detail


SAMPLER = """class ByClass(torch.utils.data.Sampler):
    def __iter__(self):
        for _ in range(256):
            yield random.randrange(256)

    def __len__(self):
        return 256


loader = DataLoader(
    data,
    sampler=ByClass(),"""


def test_a_sampler_s_draws_do_not_depend_on_how_far_ahead_it_is_asked(prober: Prober, folder: Path) -> None:
    """It draws from a generator that the process has: workers that read ahead were another order of the samples."""
    edited(folder, "plain.py", RANDOM, (MADE, SAMPLER), ("    shuffle=True,\n", ""), to="sampled.py")
    sites = prober.sites("sampled.py")
    before, after = (prober("sampled.py", sites, plan, same_draws=True) for plan in (UNCHANGED, WORKERS))
    count = min(len(before.probe.orders), len(after.probe.orders))
    assert count > 20, "over the end of an epoch"
    assert before.probe.orders[:count] == after.probe.orders[:count]
    assert len({*before.probe.orders}) == len(before.probe.orders), "other ones in each epoch"


@pytest.mark.slow
def test_masks_that_are_drawn_otherwise_part_trainings_as_far_as_another_seed_does(
    prober: Prober, folder: Path
) -> None:
    adam = ("SGD(model.parameters(), lr=0.1)", "Adam(model.parameters(), lr=0.003)")
    edited(folder, "plain.py", ("nn.ReLU()", "nn.ReLU(), nn.Dropout(0.4)"), adam, to="drops.py")
    sites, bits = prober.trained("drops.py"), plan_of("native_operators", dropout=True)
    before, same, other = (prober("drops.py", sites, plan, seconds=2.0) for plan in (UNCHANGED, FUSED, bits))
    again = prober("drops.py", sites, disturbed=1e-6, draws=1, seconds=2.0)
    assert before.arrays.drawn > 0
    assert not before.arrays.draws_otherwise(same.arrays)
    assert before.arrays.draws_otherwise(other.arrays)
    apart, by_draws = (parted_across_epochs(before.arrays, each.arrays) for each in (other, again))
    assert 0.3 < apart < 2 * by_draws
    found = level(Risk.NUMERIC, before, other)
    assert (found.level, found.passed) == ("equivalent", True), found.detail


@pytest.mark.slow
def test_a_script_that_ends_too_soon_stays_undecided(prober: Prober) -> None:
    sites = prober.sites("get_batch.py")
    short = [prober("get_batch.py", sites, words="--max_iters=5") for _ in range(2)]
    assert short[0].probe.points == 0
    assert level(Risk.EXACT, short[0], short[1]).level == "undecided"


@pytest.mark.slow
def test_what_could_not_be_seen_of_a_script_leaves_it_undecided(prober: Prober) -> None:
    """Labels that no loader gives and no model is called with, an optimizer that wants a closure."""
    sites = prober.sites("closures.py")
    before, after = prober("closures.py", sites), prober("closures.py", sites)
    assert before.probe.unseen == "labels"
    assert before.arrays.updates is None
    assert level(Risk.EXACT, before, after).level == "undecided"


class Facts(Record):
    """The part of a workload's facts that a metric changes."""

    metric: str | None = None
    mode: str = "max"
    has_evaluate: bool = False


def adopted(
    told: tuple[str, ...], sites: Sites | None = SITES, metric: str | None = None, seconds: float | None = None
) -> tuple[Any, list[str], list[str]]:
    """The state of a search after its first training, which named no metric, with the notes and the warnings on it."""
    state = SimpleNamespace(sites=sites, objective=OBJECTIVE.model_copy(update={"metric": metric}), facts=Facts())
    read: list[str] = []
    notes: list[str] = []
    warnings: list[str] = []
    context: Any = SimpleNamespace(
        runner=SimpleNamespace(reads=read.append),
        note=lambda *texts: notes.extend(texts),
        warn=lambda *texts: warnings.extend(texts),
        state=state,
    )
    adopt_metric(context, told, *([] if seconds is None else [seconds]))
    return SimpleNamespace(read=read, **vars(state)), notes, warnings


def test_a_script_without_a_metric_is_told_how_to_give_one() -> None:
    _, notes, (warning,) = adopted(())
    assert "--metric 'PATTERN'" in warning
    assert not notes
    _, _, (note,) = adopted((), seconds=14.2)
    assert note.startswith("the script did not evaluate in the 14 s that it trained: no metric")
    assert note.endswith("or a larger --budget")
    assert adopted(("x ([0-9]+)",), metric="val loss")[1:] == ([], [])
    assert adopted((), sites=None)[1:] == ([], []), "what build() says of its evaluation is another matter"


def test_the_one_number_of_each_evaluation_becomes_the_metric_and_that_is_said() -> None:
    state, (note,), warnings = adopted(("val loss ([0-9]+)",))
    assert not warnings
    assert state.read == ["val loss ([0-9]+)"]
    assert (state.objective.metric, state.objective.mode) == ("val loss", "min")
    assert (state.facts.metric, state.facts.mode, state.facts.has_evaluate) == ("val loss", "min", True)
    assert "'val loss', of which less is better" in note
    spelled = adopted((r"val loss ([0-9]+\.?)",))[1][0]
    assert r"--metric 'val loss ([0-9]+\.?)' names it" in spelled, "as a shell takes it"


def test_of_two_measures_the_one_that_is_no_loss_becomes_the_metric_and_the_other_is_named() -> None:
    state, (note,), _ = adopted(("val loss ([0-9]+)", "val acc ([0-9]+)"))
    assert state.read == ["val acc ([0-9]+)"]
    assert (state.objective.metric, state.objective.mode) == ("val acc", "max")
    assert "the one that is no loss of the 2 measures" in note
    assert "--metric 'val loss ([0-9]+)' would take another" in note


def test_what_one_model_computes_for_another_is_no_batch_of_the_data(prober: Prober, start_script: StartScript) -> None:
    """A generator's images are rounded otherwise in half precision: that is no other batch."""
    words = "--epochs=100000"
    sites = start_script.watch("gan.py", words, steps=18)
    before = prober("gan.py", sites, words=words)
    found = level(Risk.NUMERIC, before, prober("gan.py", sites, BFLOAT16, words=words))
    assert "another batch" not in found.detail
    assert before.probe.digests[1] != before.probe.digests[2]


@pytest.mark.slow
def test_a_gan_in_bfloat16_passes_and_halves_of_it_that_are_broken_do_not(
    prober: Prober, start_script: StartScript
) -> None:
    sites, steps = prober.sites("dcgan.py"), 400

    def probed(plan: Plan = UNCHANGED, broken: str = "") -> ProbeResult:
        asked = {"steps": 64, "seconds": 20.0, "weights": [], "gradients": 0, "reading": 0.5}
        return prober("dcgan.py", sites, plan, words=f"100000 {broken}", **asked)

    def trained(seed: int, plan: Plan = UNCHANGED, *broken: str) -> TrainingRun:
        how = {"sites": sites, "plan": plan, "seed": seed, "disturbed": ROUNDING["bfloat16"]}
        with start_script("dcgan.py", str(steps), *broken, **how) as process:
            arguments = {"max_seconds": 300.0, "max_steps": steps - 1}
            return TrainingRun.model_validate(process.call("autoopt.benchmark.tasks:train", timeout=300.0, **arguments))

    before = probed()
    quality = level(Risk.NUMERIC, before, probed(BFLOAT16))
    assert (quality.level, quality.passed) == ("equivalent", True), quality.detail
    for broken in ("half", "dropped", "detached"):
        found = level(Risk.NUMERIC, before, probed(broken=broken))
        assert found.passed is False, f"{broken}: {found.detail}"

    baseline = tuple(trained(seed) for seed in (1, 2))
    assert baseline[0].losses[0] != baseline[1].losses[0], "other samples first, and weights a rounding apart"
    assert baseline[0].losses[0] == pytest.approx(baseline[1].losses[0], rel=0.1), "the script's own weights"

    def verified(*runs: TrainingRun) -> Quality:
        known = {"objective": OBJECTIVE, "level": quality, "deterministic": True}
        return judge_runs(Evidence(baseline_runs=baseline, candidate_runs=runs, **known))

    assert verified(*(trained(seed, BFLOAT16) for seed in (1, 2))).passed is True
    for broken in ("half", "detached"):  # were a probe not to see it
        found = verified(*(trained(seed, UNCHANGED, broken) for seed in (1, 2)))
        assert found.passed is False, f"{broken}: {found.detail}"
