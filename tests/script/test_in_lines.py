"""Changes that nothing but a script's own lines can say: an arm reads its files with them in place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoopt.errors import TrialFailed
from autoopt.export.script_patch import placed
from autoopt.records import Change, Plan, Sites
from autoopt.records.messages import Probe
from autoopt.script.applicable import inapplicable, moved
from autoopt.script.metric import name_of
from autoopt.search.accept.data import ProbeResult
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.levels import level_of
from autoopt.search.trial_runner import PROBE, TrialRunner
from autoopt.strategy import Risk
from autoopt.trial.parent import Launcher
from autoopt_model.muon import ADAM
from scripted import REGISTRY
from tests.script.conftest import OBJECTIVE, StartScript, block_of, edited, facts_of, plan_of, runner_of, sites_of

TASKS = "autoopt.benchmark.tasks"
LIMIT = 3 << 20


@pytest.fixture
def runner(
    folder: Path, launcher: Launcher, start_script: StartScript, search_path: tuple[str, ...]
) -> Callable[..., TrialRunner]:
    """A runner of a script's trials, as a run makes it once the script was watched."""

    def made(*words: str, memory_limit: int | None = None) -> TrialRunner:
        sites = start_script.watch(*words)
        found = runner_of(launcher, folder, *words, memory_limit=memory_limit, sites=sites, path=search_path)
        found.patched_files = lambda plan: {
            str(folder / name): text for name, text in placed(sites, plan, found.registry, "cpu").texts.items()
        }
        return found

    return made


def test_pieces_of_a_batch_train_the_same_and_fit(runner: Callable[..., TrialRunner]) -> None:
    found = runner("deep.py", memory_limit=LIMIT)
    with found.trial(plan_of("accumulation", size=64, accumulation=8), "pieces") as process:
        facts = facts_of(process)
        seen = block_of(process, 4).losses
        assert process.call(f"{TASKS}:largest_batch", timeout=60.0)["peak_memory_bytes"] < LIMIT
    found.base = found.base.model_copy(update={"memory_limit_bytes": None})
    with found.trial(Plan(), "whole") as process:
        assert seen == pytest.approx(block_of(process, 4).losses, rel=1e-4)
        known = facts_of(process)
    assert (facts.max_steps, facts.steps_per_epoch) == (known.max_steps, known.steps_per_epoch)


LARGER = plan_of("accumulation", size=32, accumulation=2)
REPEATED = (
    (
        "        for i, (x, y) in enumerate(bar):\n",
        "        batches = iter(bar)\n        for _ in range(len(bar) // cfg.accumulate):\n"
        "            for _ in range(cfg.accumulate):\n                x, y = next(batches)\n",
    ),
    ("            with torch.autocast", "                with torch.autocast"),
    ("                loss = nn", "                    loss = nn"),
    ("            scaler.scale(loss)", "                scaler.scale(loss)"),
    ("            if (i + 1) % cfg.accumulate == 0 or i + 1 == len(bar):\n", ""),
    ("                scaler.step(optimizer)", "            scaler.step(optimizer)"),
    ("                scaler.update()", "            scaler.update()"),
    ("                optimizer.zero_grad(", "            optimizer.zero_grad("),
)
"""The script with a loop within each step, as ``for micro_step in range(gradient_accumulation_steps)``."""


@pytest.mark.parametrize("edits", [(), REPEATED], ids=["counted", "repeated"])
def test_larger_batches_are_as_many_steps(
    runner: Callable[..., TrialRunner], folder: Path, edits: tuple[tuple[str, str], ...]
) -> None:
    edited(folder, "accumulating.py", *edits)
    found, lengths, seen = runner("accumulating.py"), set[tuple[int | None, int | None]](), []
    for plan in (Plan(), LARGER):
        with found.trial(plan, "steps") as process:
            facts = facts_of(process)
            lengths.add((facts.max_steps, facts.steps_per_epoch))
            seen.append(block_of(process, 4).losses)
    assert len(lengths) == 1, lengths
    assert seen[0] == pytest.approx(seen[1], rel=1e-4)


ACCELERATED = (
    ("cpu=True", "cpu=True, gradient_accumulation_steps=4"),
    ("        optimizer.zero_grad()\n", "        with accelerator.accumulate(model):\n"),
    ("        loss =", "            loss ="),
    ("        accelerator.b", "            accelerator.b"),
    ("        optimizer.step()", "            optimizer.step()\n            optimizer.zero_grad()"),
)


@pytest.mark.parametrize(
    ("script", "edits", "level", "words"),
    [
        ("accumulating.py", (), "identical", "same batches, losses and weights"),
        ("accumulating.py", (("nn.ReLU()", "nn.Dropout(0.2), nn.Dropout(0.2)"),), "equivalent", "but for rounding"),
        ("accumulating.py", (("(model(x), y)", "(model(x), y).mul(len(x))"),), None, "another gradient"),
        ("prepared.py", ACCELERATED, "identical", "same batches, losses and weights"),
    ],
    ids=["mean", "dropout", "sum", "accelerate"],
)
def test_probes_tell_whether_larger_batches_train_the_same(
    runner: Callable[..., TrialRunner],
    folder: Path,
    tmp_path: Path,
    script: str,
    edits: tuple[tuple[str, str], ...],
    level: str | None,
    words: str,
) -> None:
    edited(folder, script, *edits)
    found, probed = runner(script), list[ProbeResult]()
    for plan in (Plan(), LARGER):
        out, asked = tmp_path / f"{len(probed)}.npz", {"steps": 24, "seconds": 0.5, "gradients": 12}
        document = found.ask(plan, PROBE, timeout=120.0, label="probe", out=str(out), **asked)
        probed.append(ProbeResult(Probe.model_validate(document), Arrays.read(out)))
    quality = level_of(Risk.NUMERIC, *probed, OBJECTIVE)
    assert quality.level == level, quality.detail
    assert words in quality.detail


@pytest.mark.slow
def test_whole_runs_find_a_metric_that_nobody_has_named(runner: Callable[..., TrialRunner]) -> None:
    found, plan = runner("plain.py", "64"), plan_of("workers", num_workers=1)
    pair = found.whole_runs(Plan(), plan, steps=64, seed=1, max_seconds=120.0, speedup=1.0, patience=9.0)
    (pattern,) = pair.baseline.metric_patterns
    assert name_of(pattern) == "val acc"
    before, after = (run.curve.points for run in (pair.baseline, pair.best))
    assert [point.step for point in before] == [16, 32, 48, 64]
    assert [point.metric for point in before] == [point.metric for point in after]
    found.reads(pattern)
    again = found.whole_runs(Plan(), plan, steps=64, seed=2, max_seconds=120.0, speedup=1.0, patience=9.0)
    assert again.baseline.metric_patterns == (), "it is known by now"
    assert again.baseline.curve.points[-1].metric == again.best.curve.points[-1].metric != before[-1].metric


def test_float16_is_scaled_by_lines_and_by_nothing_else(
    runner: Callable[..., TrialRunner], start_script: StartScript
) -> None:
    scaled, seen = plan_of("amp", dtype="float16", loss_scaling=True), []
    found = runner("plain.py")
    for plan in (scaled, Plan()):
        with found.trial(plan, "scaled") as process:
            seen.append(block_of(process, 4).losses)
    assert seen[0] == pytest.approx(seen[1], rel=1e-2)
    assert found.base.script is not None
    with pytest.raises(TrialFailed, match="autoopt apply writes them"):
        start_script("plain.py", sites=found.base.script.sites, plan=scaled)


def test_sites_are_where_their_lines_have_gone(start_script: StartScript, folder: Path) -> None:
    sites = start_script.watch("plain.py")
    text = (folder / "plain.py").read_text()
    changed = moved(sites, {str(folder / "plain.py"): text.replace("import torch\n", "import torch\n\nx = 1\n", 1)})
    for before, after in zip(sites.sites, changed.sites, strict=True):
        assert (after.line - before.line, after.end_line - before.end_line) == (2, 2)
        assert after.end_column == before.end_column
        assert [place.line for place in after.used] == [place.line + 2 for place in before.used]


# Scripts that do not fit into a device's memory are watched all the same.


def test_a_script_that_does_not_fit_is_watched_in_little_memory(start_script: StartScript) -> None:
    with pytest.raises(TrialFailed) as failed:
        start_script("deep.py", memory_limit=LIMIT)
    assert failed.value.kind == "out_of_memory"
    process = start_script("deep.py", memory_limit=LIMIT, lean=True)
    sites = sites_of(process)
    facts = facts_of(process)
    fits = start_script("deep.py")
    seen = [[each.model_copy(update={"seconds_per_step": None}) for each in s.sites] for s in (sites, sites_of(fits))]
    assert seen[0] == seen[1]
    same = {"available_ram_bytes": 0}
    assert facts.model_copy(update=same) == facts_of(fits).model_copy(update=same)
    lean = start_script.losses("deep.py", steps=4, memory_limit=LIMIT, lean=True)
    assert lean == start_script.losses("deep.py", steps=4), "it trains the same"


# Every change that has a patch on a script, whether it pays there or not: the patched script trains.

SKIPPED = {
    "compile": "takes a minute; its line is run by the tests of compilation",
    "prepared_samples": "its example needs a dataset that has an index, which not all of these have",
    "chunked_loss": "its example names a layer of another model; test_prepared_module.py runs its lines",
}


def changes(sites: Sites) -> Iterator[tuple[Change, dict[str, str]]]:
    """Each change that may be put on a script by its patch alone, and the files as the patch leaves them."""
    for name, strategy in REGISTRY.items():
        if strategy.example is None or name in SKIPPED:
            continue
        if name == "muon" and not {site.name for site in sites.of("optimizer")} & ADAM:
            continue  # it applies to these alone
        change = Change(strategy=name, setting=strategy.example.setting)
        plan = Plan(changes=(change,))
        if inapplicable(REGISTRY.fold(plan), sites, patched=True) is None:
            found = placed(sites, plan, REGISTRY, "cpu")
            if found.patch.diff:
                yield change, found.texts


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("script", "watched", "short"),
    [
        ("plain.py", ("100000",), ("20",)),
        ("classes.py", ("100000",), ("20",)),
        ("gan.py", ("--epochs", "100000"), ("--epochs", "1")),
        ("get_batch.py", ("--max_iters=100000",), ("--max_iters=3",)),
    ],
)
def test_a_script_trains_with_each_change_that_its_patch_may_hold(
    start_script: StartScript, folder: Path, script: str, watched: tuple[str, ...], short: tuple[str, ...]
) -> None:
    sites = start_script.watch(script, *watched)
    before = {path: path.read_text() for path in folder.glob("*.py")}
    trained, failed = [], {}
    for change, texts in changes(sites):
        for name, text in texts.items():
            (folder / name).write_text(text)
        done = subprocess.run(
            [sys.executable, script, *short], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        trained.append(change.strategy)
        if done.returncode:
            failed[change.strategy] = done.stderr.strip().splitlines()[-1]
        for path, text in before.items():
            path.write_text(text)
    assert not failed
    assert len(trained) >= 4, trained
