"""Between steps: evaluation loops with larger batches of the same samples, and checkpoints written during training."""

from __future__ import annotations

import importlib
import threading
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from autoopt.benchmark import saving
from autoopt.records import Change, Evaluated, Plan, RunParts, Site, Sites
from autoopt.setup import Setup
from autoopt.strategy import Case
from autoopt.testing.strategies import sample_case
from autoopt_strategies.compute.rewriting.source import Refused, edited
from autoopt_strategies.input.prepared_samples import _evaluation_left
from autoopt_strategies.training.validation_loader import (
    EvaluationLoop,
    in_batches_of,
    loop_around,
    loop_without_gradients,
    statements,
)
from scripted import PLAIN, REGISTRY, changed_lines, patched, sites_in
from tests.strategies.stand_ins import promised, with_stages

SCRIPT = """\
import torch
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def test(model, loader):
    model.eval()
    right = 0
    for x, y in loader:
        right += int((model(x).argmax(1) == y).sum())
    return right / len(loader.dataset)


class Runner:
    def check(self, model):
        for n, (x, y) in enumerate(self.loader):
            model(x)
"""
AT = 10  # where the model is called
STRATEGY = REGISTRY["validation_loader"]


def after(case: Case, setting: Any) -> Case:
    """The case where a setting was kept."""
    plan = Plan(changes=(Change(strategy=STRATEGY.name, setting=setting),))
    return replace(case, plan=plan, setup=STRATEGY.apply(case.setup, setting))


def patch_of(folder: Path, text: str, setting: Any) -> tuple[str, str]:
    """The patched script, and its diff."""
    sites = Sites(command=("python", "train.py"), cwd=str(folder))
    made, patch = patched(folder, text, Change(strategy=STRATEGY.name, setting=setting), sites=sites)
    assert [each.how for each in patch.changes] == ["patched"], patch.changes
    return made, patch.diff


def test_the_loop_around_a_call_is_found(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    assert loop_around(path, AT) == {"function": "test", "line": 9}
    assert loop_around(path, 17) == {"function": "Runner.check", "line": 16}
    assert loop_around(path, 7) is None, "no loop stands there"
    path.write_text("for x in loader:\n    model(x)\n")
    assert loop_around(path, 2) is None, "no function has it"
    path.write_text("def f():\n    for x in range(3):\n        model(x)\n")
    assert loop_around(path, 3) is None, "it goes over no loader"
    assert loop_around(tmp_path / "gone.py", 1) is None


def test_its_header_is_all_that_changes() -> None:
    text = edited(SCRIPT, statements(SCRIPT, "test", 9, 256))
    changed = [(a, b) for a, b in zip(SCRIPT.splitlines(), text.splitlines(), strict=True) if a != b]
    assert changed == [("    for x, y in loader:", "    for x, y in in_batches_of(loader, 256):")]
    text = edited(SCRIPT, statements(SCRIPT, "Runner.check", 16, 64))
    assert "enumerate(in_batches_of(self.loader, 64)):" in text
    with pytest.raises(Refused):
        statements(SCRIPT, "test", 8, 256)


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> int:
        return index * index


def drawn(loader: Any) -> tuple[list[int], float]:
    torch.manual_seed(3)
    return [int(value) for batch in loader for value in batch], float(torch.rand(1))


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "drop_last": True, "batch_size": 5}])
def test_the_same_samples_come_with_the_same_draws(options: dict[str, Any]) -> None:
    loader = DataLoader(Squares(), **{"batch_size": 8, **options})
    larger = in_batches_of(loader, 32)
    assert len(list(larger)) == 2
    assert drawn(larger) == drawn(loader)
    assert drawn(loader) == drawn(larger), "what trains on it next draws as before"


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1, 2])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Endless(), batch_size=2),
        DataLoader(Squares(), batch_size=None),
        DataLoader(Squares(), batch_size=64),
        DataLoader(Squares(), batch_size=8, drop_last=True),
        Own(Squares(), batch_size=8),
        [1, 2, 3],
    ],
    ids=["iterable", "no batches", "large already", "drops samples", "its own batches", "no loader"],
)
def test_what_makes_its_batches_otherwise_stays_as_it_is(loader: Any) -> None:
    assert in_batches_of(loader, 32) is loader


def test_a_trial_runs_the_loop_as_the_patch_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("user_script")
    sizes = list[int]()

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().forward(x)

    torch.manual_seed(0)
    model, data = Model(4, 3), TensorDataset(torch.randn(100, 4), torch.randint(3, (100,)))
    before = module.test(model, DataLoader(data, batch_size=10))
    change = EvaluationLoop("user_script.py", "test", 9, 40)
    for _ in range(2):
        assert change(model) is model
    assert module.test(model, DataLoader(data, batch_size=10)) == before
    assert sizes == [10] * 10 + [40, 40, 20]
    with pytest.raises(Refused):
        EvaluationLoop("user_script.py", "gone", 9, 40)(model)


def test_the_patch_edits_the_loop_and_holds_the_function(tmp_path: Path) -> None:
    loop = {"file": "train.py", "function": "test", "line": 9}
    (tmp_path / "train.py").write_text(SCRIPT)
    made, diff = patch_of(tmp_path, SCRIPT, {"batch_size": 256, "loop": loop})
    assert "    for x, y in in_batches_of(loader, 256):\n" in made
    assert "from prepared import in_batches_of" in made
    assert "def in_batches_of(" in diff


RECORDING = """\
import torch


def train(model, loader, optimizer):
    for epoch in range(3):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
        for x in loader:

            print(model(x))


class Ranker:
\tdef ranks(self, model, users):
\t\tfor user in users:
\t\t\tfor item in user:
\t\t\t\tself.found += model(item)
\t\treturn self.found


def told(model, loader):
    for x in loader:
        print('''text
  over lines''', model(x))
"""


def test_the_outermost_loop_that_trains_nothing_keeps_no_gradients(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(RECORDING)
    inner, outer = {"function": "train", "line": 9}, {"function": "Ranker.ranks", "line": 16}
    assert loop_without_gradients(path, 11) == inner, "the loop of epochs trains"
    assert loop_without_gradients(path, 18) == outer
    assert loop_without_gradients(path, 7) is None
    assert loop_without_gradients(path, 25) is None, "the text would be another one"
    path.write_text(RECORDING.replace("print(model(x))", "yield model(x)"))
    assert loop_without_gradients(path, 11) is None, "what it yields may be trained on"
    path.write_text(RECORDING.replace("import torch", "import numpy"))
    assert loop_without_gradients(path, 11) is None, "nothing is called torch"
    text = RECORDING.replace("import torch", "import torch as th")
    changed = edited(text, statements(text, inner["function"], inner["line"], no_grad=True))
    assert "        with th.no_grad():\n            for x in loader:\n\n                print(model(x))\n" in changed
    changed = edited(RECORDING, statements(RECORDING, outer["function"], outer["line"], no_grad=True))
    assert "\t\twith torch.no_grad():\n\t\t\tfor user in users:\n\t\t\t\tfor item in user:\n\t\t\t\t\tself" in changed


def test_an_evaluation_that_keeps_gradients_is_offered_to_keep_none(tmp_path: Path) -> None:
    """In front of what else may shorten it, in a trial as in the patch."""
    (tmp_path / "train.py").write_text(RECORDING)
    seen = EVALUATED.model_copy(update={"gradients": True, "file": "train.py", "line": 11})
    run = RUN.model_copy(update={"evaluations": (seen,)})
    case = evaluating(run, {"batch_size": 1024}, evaluate=1.5, forward=0.1)
    case = replace(case, sites=case.sites and case.sites.model_copy(update={"cwd": str(tmp_path)}))
    assert STRATEGY.applies(case)
    (setting, *_) = STRATEGY.settings(case)
    assert setting == {"no_grad": {"file": "train.py", "function": "train", "line": 9}}
    predicted = STRATEGY.predict(case, setting)
    assert predicted.value > 1
    made, diff = patch_of(tmp_path, RECORDING, setting)
    assert "        with torch.no_grad():\n            for x in loader:\n" in made
    assert "prepared" not in diff


def test_what_was_kept_of_the_loader_stays_beside_what_is_tried_next() -> None:
    slow = {"batch_size": 64, "num_workers": 2, "sample_seconds": 1e-2}
    case = sample_case(inspected={"validation_loader": slow})
    tried = list(STRATEGY.settings(after(case, {"batch_size": 256})))
    assert tried
    assert all(setting["batch_size"] == 256 and len(setting) > 1 for setting in tried)


def evaluating(run: RunParts, options: dict[str, int], **seconds: float) -> Case:
    """A script that evaluates with one loader of these options, with so many seconds of its stages."""
    loader = Site(
        file="train.py", line=9, end_line=9, function="main", kind="loader_validation", call="DataLoader",
        options=options,
    )  # fmt: skip
    sites = Sites(command=("python", "train.py"), cwd=".", sites=(loader,))
    return with_stages(replace(sample_case(run=run), sites=sites), **seconds)


@pytest.mark.parametrize(("wait", "workers"), [(1e-4, False), (1e-2, True)])
def test_workers_that_start_for_each_evaluation_are_charged_for_it(wait: float, workers: bool) -> None:
    """Eight of them started for 200 quick samples, and stayed: an evaluation of 0.18 s read for 0.02 s."""
    evaluated = Evaluated(step=50, seconds=0.7, samples=200, batches=200)
    run = RunParts(
        steps=1000, step_seconds=0.01, evaluation_seconds=14.0, evaluate_every=50.0, evaluations=(evaluated,)
    )
    case = evaluating(run, {"batch_size": 1, "num_workers": 8}, preparation=wait * 32, evaluate=0.7 / 50)
    (setting, *_) = STRATEGY.settings(case)
    assert bool(setting["num_workers"]) == workers
    kept = {"batch_size": 200, "num_workers": 8, "persistent_workers": True}
    without = [each for each in STRATEGY.settings(after(case, kept)) if each.get("num_workers") == 0]
    assert all("persistent_workers" not in each for each in without)
    assert without, "in one batch they share out nothing"


def test_an_evaluation_that_draws_numbers_for_each_batch_keeps_its_batches() -> None:
    """Larger batches were timed for 42 s, and refused by a metric of other noise."""
    case = evaluating(RUN, {"batch_size": 64, "num_workers": 4}, evaluate=1.5)
    run = RUN.model_copy(update={"evaluations": (EVALUATED.model_copy(update={"draws": True}),)})
    drawing = evaluating(run, {"batch_size": 64, "num_workers": 4}, evaluate=1.5)
    offered = [list(STRATEGY.settings(each)) for each in (case, drawing)]
    assert ["batch_size" in {*chain(*each)} for each in offered] == [True, False]
    assert all(offered)


EVALUATED = Evaluated(step=10, seconds=15.0, samples=640, batches=10)
RUN = RunParts(steps=1000, step_seconds=0.2, evaluation_seconds=15.0, evaluate_every=10.0, evaluations=(EVALUATED,))


@pytest.mark.parametrize(("wait", "first"), [(0.02, "batch_size"), (20.0, "num_workers")])
def test_what_a_sample_waits_for_decides_whether_workers_or_large_batches_come_first(wait: float, first: str) -> None:
    """A reader that waits for each sample was offered large batches, which wait as long."""
    case = evaluating(RUN, {"batch_size": 64, "num_workers": 0}, storage=wait, evaluate=1.5)
    (setting, *_) = STRATEGY.settings(case)
    assert first in setting
    estimate = STRATEGY.predict(case, setting)
    assert estimate.value > 1.0
    later = list(STRATEGY.settings(after(case, setting)))
    assert all(each.keys() >= setting.keys() for each in later), "what was kept stays"
    large = [each for each in later if first == "num_workers" and "batch_size" in each]
    assert not large, "one batch leaves workers nothing to share out"


SAME = {"deterministic": True, "sample_seconds": 0.02, "sample_bytes": 1000, "hit": 0.01, "handing_seconds": 1e-4}


@pytest.mark.parametrize(
    ("found", "training", "kind", "calls", "offered"),
    [
        (SAME, {}, "Others", (), True),
        ({**SAME, "loaders": 2}, {}, "Others", (1, 2), True),
        (SAME, {"reason": "random"}, "Pictures", (0,), True),
        (SAME, {"deterministic": True}, "Pictures", (), False),
        (SAME, {"deterministic": True}, "Others", (), True),
        (SAME, {}, "Others", (0, 1, 2), False),
        ({"sample_seconds": 0.02}, {}, "Others", (), False),
    ],
    ids=["another class", "two loaders", "augmented training", "kept with the training's", "other class than kept",
         "made each time", "random"],
)  # fmt: skip
def test_validation_samples_that_are_the_same_every_time_are_offered_to_be_kept(
    found: dict[str, Any], training: dict[str, Any], kind: str, calls: tuple[int, ...], offered: bool
) -> None:
    loaders = (
        Site(
            file="train.py", line=line, end_line=line, function="main", kind=role, call="DataLoader", calls=made,
            options={"batch_size": 64, "num_workers": 0, "dataset": name},
        )
        for line, role, name, made in (
            (8, "loader_training", "Pictures", ()), (9, "loader_validation", kind, calls)
        )
    )  # fmt: skip
    case = sample_case(run=RUN, inspected={"validation_loader": found, "prepared_samples": {"kept": training}})
    sites = Sites(command=("python", "train.py"), cwd=".", sites=tuple(loaders))
    case = with_stages(replace(case, sites=sites), preparation=1.28, evaluate=1.5)
    (first, *others) = STRATEGY.settings(case)
    assert ("samples" in first) is offered
    if offered:
        assert (first["samples"]["where"], first["num_workers"]) == ("memory", 0)
        plain = promised(STRATEGY, case, {"batch_size": 256})
        assert promised(STRATEGY, case, first).value > 1.5 * plain.value
        assert all("samples" not in each for each in others if each.get("num_workers"))
    else:
        assert not any("samples" in each for each in others)


def test_validation_samples_are_kept_by_what_keeps_them_alone() -> None:
    """Threads that read a sample sooner were handed to the class that keeps them, which has none."""
    loader = DataLoader(Squares(), batch_size=4)
    other = DataLoader(Squares(), batch_size=2)
    live = SimpleNamespace(
        training=SimpleNamespace(validation_data=(loader, other)), workload=SimpleNamespace(batch_size=4)
    )
    found = {**STRATEGY.inspect(live), "sample_seconds": 0.02}
    assert (found["deterministic"], found["loaders"], found["batch_size"]) == (True, 2, 4)
    (first, *_) = STRATEGY.settings(sample_case(inspected={"validation_loader": found}))
    made = STRATEGY.apply(Setup(), {**first, "samples": {**first["samples"], "workers": 0}}).evaluation["dataset"]
    assert list(DataLoader(made(Squares()), batch_size=None))[:3] == list(DataLoader(Squares(), batch_size=None))[:3]


@pytest.mark.parametrize(("kind", "less"), [("Pictures", True), ("Others", False)])
def test_kept_samples_shorten_evaluations_that_read_the_same_class(kind: str, less: bool) -> None:
    """What they save was promised once more, by workers for an evaluation that reads nothing any more."""
    both = [
        Site(
            file="train.py", line=line, end_line=line, function="main", kind=role, call="DataLoader",
            options={"batch_size": 64, "num_workers": 0, "dataset": name},
        )
        for line, role, name in ((8, "loader_training", "Pictures"), (9, "loader_validation", kind))
    ]  # fmt: skip
    kept = {"deterministic": True, "sample_seconds": 0.02, "sample_bytes": 1000}
    case = sample_case(run=RUN, inspected={"prepared_samples": {"kept": kept}})
    sites = Sites(command=("python", "train.py"), cwd=".", sites=tuple(both))
    case = with_stages(replace(case, sites=sites), preparation=1.28, evaluate=1.5)  # 20 ms a sample
    left = _evaluation_left(case, {"preparation": 0.0})
    assert ("evaluate" in left) is less
    assert left.get("evaluate", 1.5) == pytest.approx(0.22 if less else 1.5, abs=0.1)
    prepared = Change(strategy="prepared_samples", setting={"form": "samples", "where": "memory", "workers": 0})
    planned = replace(case, plan=Plan(changes=(prepared,)))
    offered = [any(each.get("num_workers") for each in STRATEGY.settings(one)) for one in (case, planned)]
    assert offered == [True, not less]
    workers = {"num_workers": 2, "persistent_workers": True}
    assert promised(STRATEGY, case, workers).value > 1.1
    assert (promised(STRATEGY, planned, workers).value > 1.1) is not less


# Checkpoints: the same files, found in a script, and in its patch.

CHECKPOINTS = REGISTRY["checkpoints"]
SAVE = "torch.save(model.state_dict(), 'a.pt')"
SAVING = PLAIN.replace("        optimizer.step()\n", f"        optimizer.step()\n        {SAVE}\n")
RESUMING = SAVING.replace("    # the data\n", "    torch.load('a.pt')\n")


def test_what_is_written_is_what_was_there_at_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, go_on, save = torch.ones(3, requires_grad=True), threading.Event(), torch.save
    monkeypatch.setattr(torch, "save", lambda *args: (go_on.wait(30), save(*args)))
    shared = {"a": weight, "b": weight, "step": 1}
    saving.save_in_background(shared, tmp_path / "a.pt")
    with torch.no_grad():
        weight.zero_()
    assert not (tmp_path / "a.pt").exists(), "a reader finds the whole file or none"
    go_on.set()
    found = saving.load_saved(tmp_path / "a.pt")
    assert found["a"].tolist() == [1.0, 1.0, 1.0]
    assert found["a"].data_ptr() == found["b"].data_ptr(), "what was one tensor is one"
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_what_cannot_be_copied_is_saved_at_once(tmp_path: Path) -> None:
    within_graph = torch.ones(2, requires_grad=True) * 2
    saving.save_in_background(within_graph, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt").tolist() == [2.0, 2.0]
    with (tmp_path / "b.pt").open("wb") as file:
        saving.save_in_background(torch.ones(1), file)
        assert file.tell() > 0


def test_a_write_that_fails_is_told_at_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    saving.save_in_background(torch.ones(1), tmp_path / "nowhere" / "a.pt")
    with pytest.raises((OSError, RuntimeError), match="nowhere"):
        saving.save_in_background(torch.ones(1), tmp_path / "a.pt")
    saving.save_in_background(torch.ones(1), tmp_path / "a.pt")
    assert saving.load_saved(tmp_path / "a.pt").tolist() == [1.0]


def case_of(folder: Path, *sites: Site, run: RunParts | None = None) -> Case:
    found = Sites(command=("train.py",), cwd=str(folder), sites=sites)
    case = sample_case()
    return replace(case, sites=found, workload=case.workload.model_copy(update={"run": run}))


def site(line: int = 3, **changed: Any) -> Site:
    seen = {"kind": "checkpoint", "file": "train.py", "line": line, "end_line": line, "call": "torch.save", **changed}
    return Site.model_validate(seen)


@pytest.mark.parametrize(
    ("text", "sites", "reason"),
    [
        ("torch.save(a, b)\n", (site(),), ""),
        ("torch.save(a, b)\n", (), "not seen to save"),
        ("torch.save(a, b)\n", (site(direct=False),), "a library saves"),
        ("import shutil\nshutil.copy('a.pt', 'b.pt')\n", (site(),), "works on files"),
        ("os.replace('a.pt', 'b.pt')\n", (site(),), "works on files"),
        ("def (", (site(),), "works on files"),
    ],
)
def test_it_applies_to_the_script_s_own_lines(text: str, sites: tuple[Site, ...], reason: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    told = CHECKPOINTS.applies(case_of(tmp_path, *sites))
    assert bool(told) is not bool(reason), told.reason
    assert reason in told.reason


def test_a_copy_is_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("torch.save(a, b)\n")
    case = case_of(tmp_path, site(), run=RunParts(checkpoint_seconds=2.0, checkpoint_every=200.0))
    (setting,) = CHECKPOINTS.settings(case)
    assert setting == {"lines": ["train.py:3"], "loads": []}
    told = promised(CHECKPOINTS, case, setting)
    assert told.value > 1.0
    assert told.kind == "declared"


def test_the_patch_saves_beside_and_waits_where_it_loads(tmp_path: Path) -> None:
    sites = sites_in(tmp_path, RESUMING, checkpoint="torch.save(")
    (setting,) = CHECKPOINTS.settings(replace(sample_case(), sites=sites))
    _, patch = patched(tmp_path, RESUMING, Change(strategy="checkpoints", setting=setting), sites=sites)
    assert [change.how for change in patch.changes] == ["patched"], patch.changes[0].reason
    lines = changed_lines(patch.diff)
    assert "+        save_in_background(model.state_dict(), 'a.pt')" in lines
    assert "+    load_saved('a.pt')" in lines
    assert "+def wait_until_saved():" in lines
    assert "autoopt" not in "".join(line for line in lines if line.startswith("+"))
