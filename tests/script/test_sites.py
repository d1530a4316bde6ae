"""Sites found by watching in scripts that are ugly on purpose, by file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoopt.benchmark.affinity import AT_START
from autoopt.errors import TrialFailed
from autoopt.export.script_patch import placed
from autoopt.records import Plan, Site, SiteKind, Sites
from autoopt.script.applicable import advice_of
from autoopt.script.metric import name_of
from autoopt.script.torch_hooks import Passes, anchor_of, period_of
from scripted import BF16, FUSED, LAYOUT, REGISTRY
from tests.script.conftest import SCRIPTS, StartScript, block_of, edited, facts_of, plan_of, sites_of

WORKERS = plan_of("workers", num_workers=1, prefetch_factor=2)


def lines(sites: Sites, kind: SiteKind) -> list[int]:
    return [site.line for site in sites.of(kind)]


def line_of(script: str, text: str, nth: int = 0) -> int:
    """The line on which a text stands in a script."""
    found = [number for number, line in enumerate((SCRIPTS / script).read_text().splitlines(), 1) if text in line]
    return found[nth]


def test_a_script_at_module_level_shows_every_site_with_its_line(start_script: StartScript) -> None:
    sites = start_script.watch("plain.py", "100000", steps=18)
    (loader,) = sites.of("loader_training")
    assert (loader.file, loader.line) == ("plain.py", line_of("plain.py", "loader = DataLoader("))
    assert loader.end_line == loader.line + 4
    assert loader.direct
    assert loader.options["batch_size"] == 16
    assert loader.options["shuffle"] is True
    assert lines(sites, "loader_validation") == [line_of("plain.py", "valid = ")]
    (model,) = sites.of("model")
    assert model.line == line_of("plain.py", "model = nn.Sequential")
    assert [place.line for place in model.used] == [line_of("plain.py", "loss = criterion")]
    assert lines(sites, "optimizer") == [line_of("plain.py", "torch.optim.SGD")]
    assert lines(sites, "loss") == [line_of("plain.py", "loss.backward")]
    assert lines(sites, "evaluation") == [line_of("plain.py", "correct +=")]
    assert lines(sites, "checkpoint") == [line_of("plain.py", "torch.save")]
    assert lines(sites, "device_wait") == [line_of("plain.py", "correct +=")]
    assert sites.accumulation == 1
    assert sites.seeded
    assert sum(sites.shares.values()) == pytest.approx(1)
    assert {"data", "forward", "backward", "optimizer"} <= set(sites.shares)
    assert sites.step_seconds is not None
    assert [name_of(pattern) for pattern in sites.metric_patterns] == ["val acc"]


def line_in(text: str, start: str) -> int:
    """The line on which a text begins within another."""
    return text[: text.index(start)].count("\n") + 1


LOOKS = """\
frozen = nn.Linear(12, 4).requires_grad_(False)
model.eval(), frozen.eval()
with torch.no_grad():
    features = frozen(inputs)
    error = model(inputs).square().mean()
step = 0
"""


def test_an_evaluation_before_the_first_step_is_one(start_script: StartScript, folder: Path) -> None:
    text = edited(folder, "plain.py", ("step = 0\n", LOOKS))
    sites = start_script.watch("plain.py", "100000")
    assert lines(sites, "evaluation") == [line_in(text, "error ="), line_in(text, "correct +=")]


@pytest.mark.parametrize(
    ("words", "wait", "metrics"), [("val acc", 0.0, []), ("val acc", 60.0, ["val acc"]), ("acc", 60.0, ["acc"])]
)
def test_the_end_of_an_epoch_is_waited_for_where_it_is_near(
    start_script: StartScript, folder: Path, words: str, wait: float, metrics: list[str]
) -> None:
    """And that of a second one, where the words do not name held-out data."""
    edited(folder, "plain.py", ("batch_size=16", "batch_size=1"), ("val acc", words))
    with start_script("plain.py", "100000") as process:
        document = process.call("autoopt.script.tasks:sites", timeout=120.0, seconds=0.0, steps=4, wait=wait)
    sites = Sites.model_validate(document)
    assert [name_of(pattern) for pattern in sites.metric_patterns] == metrics
    assert bool(sites.of("evaluation")) is bool(metrics)


FOLLOWS = """\
        step += 1
    with torch.no_grad():
        for kept, now in zip(average.parameters(), model.parameters()):
            kept.lerp_(now, 0.1)
"""


def test_an_average_of_weights_is_evaluated_on_held_out_data(start_script: StartScript, folder: Path) -> None:
    made = ("step = 0\n", "import copy\naverage = copy.deepcopy(model).requires_grad_(False).eval()\nstep = 0\n")
    evaluated = (("(model(x).argmax", "(average(x).argmax"), ("    model.eval()\n", ""))
    text = edited(folder, "plain.py", made, ("        step += 1\n", FOLLOWS), *evaluated)
    sites = start_script.watch("plain.py", "100000", steps=18)
    found = lines(sites, "loader_training"), lines(sites, "loader_validation")
    assert found == ([line_in(text, "loader =")], [line_in(text, "valid =")])


BINDS = """\
import os

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as the import of a library does
import torch
"""


@pytest.mark.skipif(len(AT_START) < 2, reason="there is one core")
def test_cores_that_an_import_takes_away_are_found_and_given_back(start_script: StartScript, folder: Path) -> None:
    edited(folder, "plain.py", ("import torch\n", BINDS))
    with start_script("plain.py", "100000") as process:
        sites = sites_of(process)
        asked = process.call("autoopt.benchmark.tasks:inspect", timeout=60.0, strategies=list(REGISTRY))
        assert any("cores" in warning for warning in facts_of(process).warnings)
        assert len(os.sched_getaffinity(process.ranks[0].pid)) == 1
    assert asked["affinity"]["lost"]
    assert {name: found["error"] for name, found in asked.items() if "error" in found} == {}
    plan = plan_of("affinity", affinity=asked["affinity"]["affinity"])
    with start_script("plain.py", "100000", sites=sites, plan=plan) as process:
        assert os.sched_getaffinity(process.ranks[0].pid) == set(AT_START)


def test_optimizers_that_take_turns_are_one_step(start_script: StartScript) -> None:
    sites = start_script.watch("gan.py", "--epochs", "100000")
    assert sites.period == (0, 1)
    assert sites.accumulation == 1, "real, made up, and the other's: three terms, none added up"
    assert {site.name for site in sites.of("model")} == {"Critic", "Sequential"}
    with start_script("gan.py", "--epochs", "100000", sites=sites) as process:
        block = block_of(process, 4)
    assert block.samples == 4 * 16, "each turn of both optimizers is one step, on one batch"
    assert len(block.losses) == 4


def test_batches_without_a_loader_and_accumulation(start_script: StartScript) -> None:
    sites = start_script.watch("get_batch.py", "--max_iters=1000000")
    assert not sites.of("loader_training")
    assert lines(sites, "batch_without_loader") == [line_of("get_batch.py", "model(X, Y)")]
    assert sites.accumulation == 4
    assert sites.seeded is False


def test_batches_that_one_step_adds_up_are_one_step(start_script: StartScript) -> None:
    sites = start_script.watch("accumulating.py", steps=8)  # of 160 samples in batches of 16: four, four and two
    assert sites.accumulation == pytest.approx(10 / 3)
    (train,), (valid,) = sites.of("loader_training"), sites.of("loader_validation")
    assert (train.file, train.calls, valid.calls) == ("accumulating_data.py", (0,), (1,))
    assert train.per_step == pytest.approx(10 / 3, rel=0.1)
    assert [site.options["enabled"] for site in sites.of("autocast")] == [False]
    with start_script("accumulating.py", sites=sites) as process:
        facts = facts_of(process)
        assert (facts.accumulation, facts.batch_size) == (4, 16)
        blocks = [block_of(process, 3) for _ in range(2)]
    assert [(block.steps, block.samples, len(block.losses)) for block in blocks] == [(3, 160, 3)] * 2
    found = placed(sites, Plan(changes=(BF16, FUSED)), REGISTRY, "cpu")
    assert [change.how for change in found.patch.changes] == ["patched", "patched"], found.patch.changes
    assert "+cfg = SimpleNamespace(epochs=100000, accumulate=4, amp=True," in found.patch.diff


def test_a_script_that_wanders_and_looks_before_it_trains(start_script: StartScript) -> None:
    sites = start_script.watch("wandering.py", steps=20)
    made = line_of("wandering.py", "train, valid =")
    (train,), (valid,) = sites.of("loader_training"), sites.of("loader_validation")
    assert (train.file, train.line, train.calls) == ("wandering.py", made, (0,))
    assert (valid.file, valid.line, valid.calls) == ("wandering.py", made, (0,))
    assert None is not train.end_column != valid.end_column is not None
    (model,) = sites.of("model")
    assert model.options["mode"] == "eval"
    with start_script("wandering.py", sites=sites, plan=WORKERS) as process:
        facts = facts_of(process)
        assert (facts.batch_size, facts.loader.num_workers, facts.max_steps) == (16, 1, 500 * 16)
        assert block_of(process, 20).samples == 20 * 16


def test_a_closure_that_is_called_several_times_is_one_step(start_script: StartScript) -> None:
    sites = start_script.watch("closures.py")
    assert [site.name for site in sites.of("optimizer")] == ["LBFGS"]
    assert sites.accumulation == 1
    assert sites.of("model")[0].function == "Fit.__init__"
    assert sites.shares.get("data", 0.0) < 0.1, "between its closures an optimizer works, and makes no batch"


@pytest.mark.parametrize(
    ("order", "period", "anchor"),
    [
        ([0] * 9, (0,), 0),
        ([0, 1] * 4, (0, 1), 1),
        ([0, 0, 0, 1] * 3 + [0], (0, 0, 0, 1), 1),
        ([0, 1, 2] * 3, (0, 1, 2), 2),
        ([0, 0, 1, 0, 1, 1, 0], (0, 1), 1),  # no turn that repeats
        ([], (), None),
    ],
)
def test_the_period_of_several_optimizers(order: list[int], period: tuple[int, ...], anchor: int | None) -> None:
    assert period_of(order) == period
    assert anchor_of(period) == anchor


def test_passes_are_counted_by_the_line_and_the_optimizer_that_they_are_for() -> None:
    shared = Passes()
    for _ in range(12):  # one loss, two optimizers; watched until the first of a last turn has stepped
        shared.backward(7)
        shared.stepped()
        shared.stepped()
    shared.backward(7)
    shared.stepped()
    assert shared.accumulation == 1
    lightning = Passes()
    for _ in range(4):  # three passes between steps and a fourth in the next one's closure
        for _ in range(3):
            lightning.backward(1)
        lightning.backward(1, within_step=True)
        lightning.stepped()
    assert lightning.accumulation == 4
    assert Passes().accumulation == 1


def tree_of(folder: Path) -> dict[str, object]:
    """All that lies in a folder: kind, mode, time of change and content by path."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, status.st_ino, content)
    return found


def test_two_loaders_two_models_and_files_left_everywhere(start_script: StartScript, folder: Path) -> None:
    (folder / "keep" / "folder").mkdir(parents=True)
    for name in ("renamed.txt", "deleted.txt", "folder/inner.txt"):
        (folder / "keep" / name).write_text(name)
    (folder / "log.txt").write_text("mine\n")
    before = tree_of(folder)
    sites = start_script.watch("untidy.py", "batch=4", steps=60)  # more than two rounds of its loops
    loaders = sites.of("loader_training")
    assert [site.line for site in loaders] == [
        line_of("untidy.py", "self.labelled ="),
        line_of("untidy.py", "self.other ="),
    ]
    assert [site.options["batch_size"] for site in loaders] == [4, 8]
    assert [site.name for site in sites.of("model")] == ["Sequential", "Linear"]
    assert {site.function for site in sites.of("model")} == {"Trainer.__init__"}
    assert sites.accumulation == 1
    assert lines(sites, "checkpoint") == [line_of("untidy.py", "torch.save")]
    with start_script("untidy.py", "batch=4", "steps=30", sites=sites, plan=WORKERS) as process:
        assert block_of(process, 20).samples == 20 * 8, "batches that belong together are one"
        with pytest.raises(TrialFailed, match="ended after 30 training steps"):
            block_of(process, 20)
    assert tree_of(folder) == before


def test_waits_for_a_device_in_each_step_are_advice() -> None:
    place = {"file": "train.py", "line": 7, "end_line": 7, "kind": "device_wait", "call": "item"}
    often = Site(**place, per_step=1.0, options={"device": "cuda"})
    seldom = Site(**place, per_step=0.02, options={"device": "cuda"})
    at_home = Site(**place, per_step=1.0, options={"device": "cpu"})
    found = advice_of(Sites(command=("train.py",), cwd="/", sites=(often, seldom, at_home)))
    assert [(item.file, item.line) for item in found] == [("train.py", 7)]


def test_garbage_that_is_collected_in_each_step_is_advice_with_its_share(
    start_script: StartScript, folder: Path
) -> None:
    collects = ("        step += 1\n", "        step += 1\n        gc.collect()\n")
    text = edited(folder, "plain.py", ("import sys\n", "import gc\nimport sys\n"), collects)
    sites = start_script.watch("plain.py", "100000", steps=18)
    (collected,) = [site for site in sites.of("forced") if site.call == "gc.collect"]
    assert collected.line == line_in(text, "gc.collect()")
    assert collected.per_step == pytest.approx(1, abs=0.1)
    (told,) = [item for item in advice_of(sites) if item.line == collected.line]
    assert "collected by force" in told.title
    assert told.share is not None
    assert told.share > 0.1, "all that torch has made is visited each time"
    assert not [item for item in advice_of(sites) if "printed" in item.title], "once an epoch is not in every step"


def test_objects_of_the_users_own_classes_are_made_where_the_class_is_called(start_script: StartScript) -> None:
    sites = start_script.watch("classes.py", "100000")
    (loader,), (optimizer,), (model,) = sites.of("loader_training"), sites.of("optimizer"), sites.of("model")
    assert (loader.line, loader.call) == (line_of("classes.py", "self.unread, self.loader = "), "MovedLoader")
    assert (optimizer.line, optimizer.call) == (line_of("classes.py", "self.optimizer = Momentum("), "Momentum")
    assert loader.takes is None, "any option, by **options"
    assert optimizer.takes == ("params", "lr", "momentum")
    assert model.options["lazy"] is True
    assert [place.line for place in model.used] == [line_of("classes.py", "(self(x), y)")]
    assert line_of("classes.py", "self.model.training_step(") in [place.line for place in model.callers[0]]

    workers = plan_of("workers", num_workers=1)
    with start_script("classes.py", "100000", sites=sites, plan=workers) as process:
        assert facts_of(process).loader.num_workers == 1
    found = placed(sites, Plan(changes=(*workers.changes, BF16, FUSED, LAYOUT)), REGISTRY, "cpu")
    changed = "MovedLoader(Bits()), MovedLoader(\n+            Bits(), batch_size=16, shuffle=True, num_workers=1\n"
    assert changed in found.patch.diff, "of two calls on its line the second"
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16):\n+                    loss = self.model.training' in (
        found.patch.diff
    )
    fused, layout = found.patch.changes[2:]
    assert fused.reason == f"Momentum of classes.py:{optimizer.line} takes no fused"
    assert "get their shapes in a first call" in layout.reason
