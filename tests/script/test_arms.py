"""A script as an arm: it stops at steps' ends, trains the same steps everywhere, and takes a setup at its sites."""

from __future__ import annotations

import gzip
import json
import os
from functools import partial
from pathlib import Path

import pytest

from autoopt.errors import AutooptError, UsageError
from autoopt.export.script_patch import placed
from autoopt.records import Plan, Site, SiteKind, Sites
from autoopt.records.messages import ENDED, TrainingRun
from autoopt.registry import load_strategies
from autoopt.script.applicable import inapplicable
from autoopt.script.metric import name_of
from autoopt.script.view import LINKED_FROM, open_view
from autoopt.search.compare.arm import TrialArm
from autoopt.search.compare.comparison import SideStatistics
from autoopt.search.trial_runner import Turns
from autoopt.setup import Setup
from tests.script.conftest import StartScript, block_of, edited, facts_of, plan_of

STEPS = 20


_WATCHED: list[Sites] = []


@pytest.fixture
def sites(start_script: StartScript) -> Sites:
    """Those of ``plain.py``; it is watched once, which takes a process."""
    if not _WATCHED:
        _WATCHED.append(start_script.watch("plain.py", "100000", steps=18))
    return _WATCHED[0]


def test_arms_train_the_same_steps_and_stand_still_between_blocks(start_script: StartScript, sites: Sites) -> None:
    workers = plan_of("workers", num_workers=1, prefetch_factor=2)
    with (
        start_script("plain.py", "100000", sites=sites) as one,
        start_script("plain.py", "100000", sites=sites, plan=workers) as other,
    ):
        arms = [TrialArm(process, process.ranks[0].spec.plan) for process in (one, other)]
        assert arms[0].ready().facts.loader.num_workers == 0
        assert arms[1].ready().facts.loader.num_workers == 1
        blocks = [[], []]  # type: ignore[var-annotated]
        for turn in range(4):
            index = turn % 2
            arms[1 - index].freeze()
            arms[index].thaw()
            blocks[index].append(arms[index].block(0.0, STEPS, 0.0))
    for (before, after), (same, later) in [blocks]:
        assert before.losses == same.losses, "the loader's own order holds, whatever its workers"
        assert after.losses == later.losses
    first, second = blocks[0]
    assert first.steps == second.steps == STEPS
    assert second.first_step == first.first_step + STEPS, "nothing was trained between two blocks"
    assert sum(first.stage_seconds.values()) == pytest.approx(first.seconds, rel=0.02)
    assert first.samples == STEPS * 16


@pytest.mark.slow
def test_some_steps_of_a_script_are_traced(start_script: StartScript, sites: Sites, tmp_path: Path) -> None:
    with start_script("plain.py", "100000", sites=sites) as process:
        where = str(tmp_path / "traces")
        written = process.call("autoopt.benchmark.tasks:trace", timeout=60.0, directory=where, steps=3)
        assert block_of(process, 4).steps == 4, "it trains on"
    with gzip.open(written["raw"], "rt") as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 3
    assert any("DataLoader" in name for name in names)
    assert any("Optimizer.step" in name for name in names)


def test_losses_have_the_number_of_their_step_however_long_the_warm_up_was(
    start_script: StartScript, sites: Sites
) -> None:
    """One side's warm-up is compared with the other's blocks: a step of one must not stand beside the next."""
    paths = []
    for seconds, steps in ((0.0, 40), (2.0, 5)):
        with start_script("plain.py", "100000", sites=sites) as process:
            arm, side = TrialArm(process, process.ranks[0].spec.plan), SideStatistics(process.ranks[0].spec.plan)
            arm.ready()
            side.started(arm.warm_up(seconds))
            side.ran(arm.block(0.0, steps, 0.0))
            paths.append(dict(zip(side.side().losses.steps, side.side().losses.losses, strict=True)))
    common = paths[0].keys() & paths[1].keys()
    assert len(common) > 20
    assert all(paths[0][step] == paths[1][step] for step in common)


def test_evaluations_are_timed_apart_and_a_metric_that_nobody_named_is_found_in_what_is_printed(
    start_script: StartScript, sites: Sites
) -> None:
    with start_script("plain.py", "64", sites=sites) as process:
        run = TrainingRun.model_validate(process.call("autoopt.benchmark.tasks:train", timeout=60.0, max_seconds=50.0))
    (pattern,) = run.metric_patterns
    assert name_of(pattern) == "val acc"
    assert [point.step for point in run.curve.points] == [16, 32, 48, 64]
    assert run.evaluation_seconds > 0
    assert run.seconds == pytest.approx(run.training_seconds + run.evaluation_seconds)


@pytest.mark.parametrize("found", [False, True])
def test_a_metric_that_nobody_named_may_be_missing_later(start_script: StartScript, sites: Sites, found: bool) -> None:
    """One evaluation has shown it, and further ones print something else."""
    with start_script("plain.py", "64", sites=sites, metric="val loss ([0-9.]+)", found=found) as process:
        train = partial(process.call, "autoopt.benchmark.tasks:train", timeout=60.0, max_seconds=50.0)
        if not found:
            with pytest.raises(UsageError, match="in nothing that the script printed"):
                train()
            return
        run = TrainingRun.model_validate(train())
    assert (run.steps, run.curve.points) == (64, ())


def test_trainings_take_turns_and_are_what_they_are_alone(start_script: StartScript, sites: Sites) -> None:
    arguments = {"max_seconds": 50.0, "target": None, "confirm": 1}
    script = {"sites": sites, "metric": "val acc ([0-9.]+)"}
    with start_script("plain.py", "64", **script) as one, start_script("plain.py", "64", **script) as other:
        assert (facts_of(one).metric, facts_of(one).mode) == ("val acc", "max")
        turns = Turns((one, other), arguments, seconds=1.0)
        turns._legs = (0.01, 0.01)  # so that there are many of them
        for process in (one, other):
            process.freeze()
        while 0 not in turns._runs:
            turns._leg(0)
        other.thaw()
        alone = TrainingRun.model_validate(other.call("autoopt.benchmark.tasks:train", timeout=60.0, max_seconds=50.0))
    run = turns._runs[0]
    assert run.stopped == alone.stopped == ENDED
    assert run.steps == alone.steps == 64
    assert run.losses == alone.losses
    assert [(p.step, p.metric) for p in run.curve.points] == [(p.step, p.metric) for p in alone.curve.points]
    told = [point.seconds for point in run.curve.points]
    assert told == sorted(told)
    assert run.seconds == pytest.approx(run.training_seconds + run.evaluation_seconds)


def test_a_setup_is_put_on_at_its_sites(start_script: StartScript, sites: Sites) -> None:
    plans = (Plan(), plan_of("amp", dtype="bfloat16"), plan_of("fused_optimizer", implementation="fused"))
    plainly, cast, fused = (start_script.losses("plain.py", "100000", steps=8, sites=sites, plan=p) for p in plans)
    assert plainly != cast
    assert cast == pytest.approx(plainly, rel=0.1)
    assert fused == pytest.approx(plainly, rel=1e-4)


TELLS = """    print("rate", optimizer.param_groups[0]["lr"], "workers", valid.num_workers,
          "reads", type(valid.dataset).__name__)"""


def test_a_batch_its_rate_and_the_validation_loader_are_put_on(start_script: StartScript, folder: Path) -> None:
    said = """    print(f"step {step} val acc {correct / len(data):.4f}")"""
    edited(folder, "plain.py", ("torch.manual_seed(3)\n", ""), (said, f"{said}\n{TELLS}"), to="unseeded.py")
    sites = start_script.watch("unseeded.py", "100000", steps=40)
    assert sites.seeded is False
    larger = plan_of("batch_size", size=32, learning_rate_factor=2.0, warmup_steps=0)
    apart = plan_of("validation_loader", num_workers=1, persistent_workers=True)
    both = Plan(changes=(*larger.changes, *apart.changes))
    kept = plan_of("validation_loader", samples={"where": "memory"}, num_workers=0)
    for plan, steps, samples, told in (
        (kept, 40, 16, "rate 0.1 workers 0 reads KeptSamples"),
        (both, 10, 32, "rate 0.2 workers 1 reads TensorDataset"),
    ):
        with start_script("unseeded.py", "100000", sites=sites, plan=plan) as process:
            assert block_of(process, steps).samples == steps * samples
            assert told in process.ranks[0].log.read_text()


def test_patched_files_are_read_in_place_of_the_users_and_added_ones_beside_them(
    start_script: StartScript, sites: Sites, folder: Path
) -> None:
    found = placed(sites, plan_of("prepared_samples", form="rows", where="memory"), load_strategies(), "cpu")
    assert set(found.texts) == {"plain.py", "prepared_data.py"}, "there is a prepared.py already"
    patched = {str(folder / name): text.replace("batch_size=16", "batch_size=8") for name, text in found.texts.items()}
    with start_script("plain.py", "100000", sites=sites, patched=patched) as process:
        assert block_of(process, 4).samples == 4 * 8
    assert "batch_size=16" in (folder / "plain.py").read_text()
    assert not (folder / "prepared_data.py").exists()


def test_what_cannot_be_put_on_from_outside_says_so(start_script: StartScript, sites: Sites) -> None:
    def told(setup: Setup, *others: SiteKind, of: Sites = sites) -> str:
        more = tuple(Site(kind=kind, file="a.py", line=1, end_line=1) for kind in others)
        return str(inapplicable(setup, of.model_copy(update={"sites": (*of.sites, *more)})))

    bare, larger = Sites(command=("x",), cwd="/"), Setup().with_batch(size=32)
    assert told(Setup().with_loader(num_workers=2)) == told(larger) == "None"
    assert "build()" in told(Setup().with_step(abs))
    assert "lines of its own" in told(Setup().with_batch(size=32, warmup_steps=3))
    assert "schedule" in told(larger, "scheduler")
    assert "evaluate" in told(Setup().with_evaluation(num_workers=1), of=bare)
    assert "no DataLoader" in told(Setup().with_loader(num_workers=2), of=bare)
    assert "compiles already" in told(Setup().with_compile(), "compile", of=bare)
    with pytest.raises(AutooptError, match="autoopt apply writes them"):
        start_script(
            "plain.py", "100000", sites=sites, plan=plan_of("accumulation", size=8, accumulation=2), fresh=True
        )


def test_a_copy_stands_in_where_no_overlay_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoopt.script.view._overlay", lambda *_: os.stat("/no/such"))
    user, scratch = tmp_path / "user", tmp_path / "scratch"
    (user / "data").mkdir(parents=True)
    scratch.mkdir()
    (user / "train.py").write_text("print(1)")
    with (user / "data" / "big.bin").open("wb") as file:
        file.truncate(LINKED_FROM)
    view = open_view([str(user), str(user / "data")], scratch)
    copied = Path(view.path(str(user / "train.py")))
    assert copied != user / "train.py"
    assert copied.read_text() == "print(1)"
    assert Path(view.path(str(user / "data" / "big.bin"))).is_symlink(), "large files are not copied"
    assert view.path("/etc/hosts") == "/etc/hosts"
