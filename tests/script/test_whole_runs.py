"""The parts of a script's whole run, the steps that it plans, and its profile."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sklearn.model_selection import KFold
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, TensorDataset
from tqdm import tqdm

from autoopt.records import Plan, RunParts, Sites
from autoopt.records.evaluating import HeldEvaluations
from autoopt.records.protocol import ScriptSpec
from autoopt.script.applicable import advice_of
from autoopt.script.loops import ends_by_result, planned_steps, steps_per_epoch
from autoopt.script.session import Interruption, steps_between
from autoopt.script.whole_run import Command, WholeRun, run_time_sliced, saw_one_machine, whole_runs
from modules import run_python
from tests.script.conftest import StartScript, plan_of

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(160, 8)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
train = DataLoader(data, batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(inputs[:90], data.tensors[1][:90]), batch_size=1)
model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def accuracy(loader):
    hits = 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
    return hits / len(loader.dataset)
for epoch in range(1000):
    model.train()
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PRINTS = 'print(f"epoch {epoch} val acc {accuracy(valid):.4f}")\n'
EVALUATES = "    model.eval()\n    with torch.no_grad():\n"
WITHOUT_GRADIENTS = f"{EVALUATES}        {PRINTS}"
WITH_NOISE = f"""{EVALUATES}        losses = [(model(x + torch.randn_like(x)) - 1).square().mean() for x, _ in valid]
        print(f"epoch {{epoch}} val acc {{torch.stack(losses).mean():.4f}}")
"""
BY_ITS_PARTS = """\
    model.eval()
    hits = []
    for loader in (valid, DataLoader(valid.dataset, batch_size=1)):
        for x, y in loader:
            with torch.no_grad():
                hits.append((model[3](model[2](model[0](x))).argmax(1) == y).float().mean())
    print(f"epoch {epoch} val acc {torch.stack(hits).mean():.4f}")
"""
WITH_GRADIENTS = f"    model.eval()\n    {PRINTS}"
IN_TRAINING_MODE = f"    with torch.no_grad():\n        {PRINTS}"
WITHOUT_A_LOADER = f"""\
{EVALUATES}\
        hits = (model(inputs[:90]).argmax(1) == data.tensors[1][:90]).float().mean()
        print(f"epoch {{epoch}} val acc {{hits:.4f}}")
"""
OVER_THE_TRAINING_DATA = (
    f"{EVALUATES}        {PRINTS.replace('val acc', 'train acc').replace('valid', 'train')}        {PRINTS}"
)
OVER_THE_TRAINING_DATA_BATCH_BY_BATCH = """\
    model.eval()
    seen = 0
    for x, y in train:
        with torch.no_grad():
            seen += (model(x).argmax(1) == y).sum().item()
    print(f"epoch {epoch} train acc {seen / 160:.4f}")
"""
BETWEEN_STEPS = """\
        steps = globals().get("steps", 0) + 1
        if steps % 8 == 1:
            model.eval()
            with torch.no_grad():
                model(inputs[:90])
            model.train()
"""
SAVES_IN_IT = f'{WITHOUT_GRADIENTS}        torch.save(model.state_dict(), "model.pt")\n'


def watched(start_script: StartScript, folder: Path, evaluation: str, head: str = HEAD, **how: int) -> Sites:
    (folder / "evaluates.py").write_text(head + evaluation)
    return start_script.watch("evaluates.py", **{"steps": 24, **how})


@pytest.mark.parametrize(("data", "calls"), [("valid.dataset", (0,)), ("TensorDataset(inputs[:90])", (0, 1))])
def test_a_loader_that_is_made_again_of_the_same_data_counts_once(
    start_script: StartScript, folder: Path, data: str, calls: tuple[int, ...]
) -> None:
    evaluation = f"""\
    model.eval()
    with torch.no_grad():
        hits = [(model(x).argmax(1) == 1).float().mean() for x, *_ in DataLoader({data}, batch_size=30)]
    print(f"epoch {{epoch}} val acc {{torch.stack(hits).mean():.4f}}")
"""
    (site,) = watched(start_script, folder, evaluation, steps=25).of("loader_validation")
    assert site.calls == calls


def test_the_line_that_takes_most_of_an_evaluation_is_seen(start_script: StartScript, folder: Path) -> None:
    slow = "        nearest = [sum(range(3000)) for _ in range(4000)]\n"
    sites = watched(start_script, folder, f"{WITHOUT_GRADIENTS}{slow}")
    last = run_of(sites).evaluations[-1]
    text = (folder / "evaluates.py").read_text().splitlines()
    assert last.busiest == ("evaluates.py", text.index(slow.rstrip("\n")) + 1)
    assert (last.busiest_share or 0.0) > 0.5


def run_of(sites: Sites) -> RunParts:
    assert sites.run is not None
    return sites.run


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (WITHOUT_GRADIENTS, {"samples": 90, "batches": 90, "gradients": False, "training_mode": False, "draws": False}),
        (WITH_NOISE, {"samples": 90, "draws": True}),
        (BY_ITS_PARTS, {"samples": 180, "batches": 180, "gradients": False, "training_data": False}),
        (WITH_GRADIENTS, {"gradients": True, "training_mode": False}),
        (IN_TRAINING_MODE, {"gradients": False, "training_mode": True}),
        (WITHOUT_A_LOADER, {"samples": None, "batches": None, "training_data": False}),
        (OVER_THE_TRAINING_DATA, {"samples": 250, "training_data": True}),
        (OVER_THE_TRAINING_DATA_BATCH_BY_BATCH, {"training_data": True, "gradients": False}),
    ],
)
def test_an_evaluation_is_seen_as_it_is_made(
    start_script: StartScript, folder: Path, evaluation: str, expected: dict[str, object]
) -> None:
    sites = watched(start_script, folder, evaluation)
    run = run_of(sites)
    first, last = run.evaluations[0], run.evaluations[-1]
    assert {name: getattr(last, name) for name in expected} == expected
    assert first.step == 10, "after the first epoch"
    assert last.seconds > 0
    assert last.file == "evaluates.py"
    assert (run.evaluate_every, run.steps_per_epoch, run.steps) == (10, 10, 10_000)
    told = [advice.title for advice in advice_of(sites) if "training mode" in advice.title]
    assert bool(told) is expected.get("training_mode", False)
    if expected.get("training_data"):
        assert 0 < (last.training_data_seconds or 0) <= last.seconds
        assert len(sites.of("loader_training")) == 1


def test_epochs_after_passes_over_the_training_data_are_trained_on(start_script: StartScript, folder: Path) -> None:
    """Iterators of later epochs are given addresses that earlier ones had."""
    head = HEAD.replace("batch_size=16", "batch_size=40")
    run = run_of(watched(start_script, folder, OVER_THE_TRAINING_DATA_BATCH_BY_BATCH, head, steps=400))
    assert {each.batches for each in run.evaluations} == {4}
    assert len(run.evaluations) >= 99


OF_A_PART = HEAD.replace("model = nn.Sequential(", "body = nn.Sequential(").replace(
    "optimizer =",
    """\
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = body
    def forward(self, x):
        return self.body(x)
    def loss(self, x, y):
        return nn.functional.cross_entropy(self.body(x), y)
model = Tagger()
optimizer =""",
)
"""Trained by a method that calls a part of the model, evaluated by a call of the whole."""


def test_the_place_of_an_evaluation_is_the_line_that_calls_the_whole_model(
    start_script: StartScript, folder: Path
) -> None:
    """It is in a loop, which can be edited; the line of the part is in the model's own class."""
    text = OF_A_PART.replace("loss = nn.functional.cross_entropy(model(x), y)", "loss = model.loss(x, y)")
    last = run_of(watched(start_script, folder, WITH_GRADIENTS, text)).evaluations[-1]
    assert last.gradients
    assert text.splitlines()[(last.line or 0) - 1].strip() == "hits += (model(x).argmax(1) == y).sum().item()"


RESUMED = HEAD.replace(
    "for x, y in train:", "for i, (x, y) in enumerate(train):\n        if epoch == 0 and i < 6:\n            continue"
)


@pytest.mark.slow
def test_batches_that_a_resumed_run_reads_in_vain_are_counted(start_script: StartScript, folder: Path) -> None:
    for text, unused in ((RESUMED, 6), (HEAD, 0)):
        run = run_of(watched(start_script, folder, WITHOUT_GRADIENTS, text, fresh=True, steps=8))
        assert run.passed_over == unused
        assert (run.passed_over_seconds > 0) is bool(unused)


def test_an_evaluation_between_steps_reads_no_batch_that_was_trained_on(
    start_script: StartScript, folder: Path
) -> None:
    run = run_of(watched(start_script, folder, BETWEEN_STEPS))
    assert [each.step for each in run.evaluations] == [1, 9, 17]
    assert not any(each.training_data or each.batches or each.samples for each in run.evaluations)
    assert run.evaluate_every == 8


@pytest.mark.parametrize(
    ("steps", "trained", "every"),
    [
        ((), 100, None),
        ((0,), 100, None),
        ((10,), 12, 10),
        ((1,), 140, None),
        ((10,), 31, None),
        ((0, 250), 260, 250),
        ((1, 501), 600, 500),
    ],
)
def test_steps_between_evaluations(steps: tuple[int, ...], trained: int, every: float | None) -> None:
    """One at the first step alone does not come at every step, nor every 22 of 4,000, of which 23 were seen."""
    assert steps_between([Interruption("evaluate", step, began=0.0) for step in steps], trained) == every


def test_a_checkpoint_within_an_evaluation_is_one_by_itself(start_script: StartScript, folder: Path) -> None:
    run = run_of(watched(start_script, folder, SAVES_IN_IT))
    assert run.checkpoint_every == run.evaluate_every == 10
    assert run.checkpoint_seconds
    assert run.evaluation_seconds


def test_a_run_without_an_evaluation_has_none(start_script: StartScript, folder: Path) -> None:
    run = run_of(watched(start_script, folder, ""))
    assert run.evaluation_seconds is run.evaluate_every is None
    assert None not in (run.build_seconds, run.first_batch_seconds)


def test_evaluations_at_held_weights_are_the_same_in_other_batches(start_script: StartScript, folder: Path) -> None:
    sites = watched(start_script, folder, WITHOUT_GRADIENTS)
    found = []
    for plan in (Plan(), plan_of("validation_loader", batch_size=90)):
        with start_script("evaluates.py", sites=sites, plan=plan) as process:
            told = process.call("autoopt.benchmark.tasks:evaluations", timeout=120.0, count=3, seconds=60.0)
            found.append(HeldEvaluations.model_validate(told))
    before, after = found
    assert len(before.seconds) == len(after.seconds) == 3
    assert before.samples == after.samples == 90
    assert before.value == after.value
    assert before.metric is not None


# How many steps a script plans, where batches are added up and their number is no multiple of a step's.

STEPS = """\
def train(loader, accelerator, step, k=4):
    taken = 0
    for epoch in range(3):
        for i, batch in enumerate(loader):
"""


def ran(folder: Path, text: str, **names: object) -> None:
    """A script's lines, run where they can be read."""
    file = folder / "train.py"
    file.write_text(text)
    exec(compile(text, str(file), "exec"), names)


@pytest.mark.parametrize(
    ("lines", "planned", "epoch"),
    [
        (("if (i + 1) % k == 0 or i + 1 == len(loader):", "    step()"), 9, 3),
        (("if (i + 1) % k and i != len(loader) - 1:", "    continue", "step()"), 9, 3),
        (("with accelerator.accumulate(loader):", "    step()"), 9, 3),
        (("if (i + 1) % k == 0:", "    step()"), 6, 2),
        (("if (i + 1) % k != 0:", "    continue", "step()"), 6, 2),
        (("taken += 1", "if taken % k == 0:", "    step()"), 7, 2),
        (("if i % 100 == 99:", "    print(i)", "step()"), 7, 2),
    ],
)
def test_a_last_group_that_is_not_full_counts_as_the_script_treats_it(
    tmp_path: Path, lines: tuple[str, ...], planned: int, epoch: int
) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(10, 1)), batch_size=1)
    told: list[tuple[int | None, int]] = []

    class Accelerator:
        def accumulate(self, model: object) -> Accelerator:
            return self

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def step() -> None:
        told.append((planned_steps(4), steps_per_epoch(len(loader), 4)))

    text = STEPS + "".join(f"            {line}\n" for line in lines) + "train(loader, accelerator, step)\n"
    ran(tmp_path, text, loader=loader, accelerator=Accelerator(), step=step)
    assert set(told) == {(planned, epoch)}


@pytest.mark.parametrize(
    ("lines", "planned"),
    [
        ("step = 0\nwhile True:\n    train()\n    step += 1\n    if most >= 0 and step >= most:\n        break", 12),
        ("step = 0\nwhile step < most:\n    train()\n    step += 1", 12),
        ("step = 1\nwhile step <= most:\n    train()\n    step += 1", 12),
        ("step = 0\nwhile True:\n    if step == most:\n        break\n    train()\n    step += 1", 12),
        ("step = 0\nwhile True:\n    train()\n    if step > most:\n        break\n    step += 1", 14),
        ("seen = 0\nwhile seen < 30:\n    train()\n    seen += 4", 8),
        ("epoch = 0\nwhile epoch < 3:\n    for batch in loader:\n        train()\n    epoch += 1", 30),
        (
            "step = 0\nfor epoch in range(5):\n    for batch in loader:\n        train()\n        step += 1\n"
            "        if step >= most:\n            break\n    if step >= most:\n        break",
            12,
        ),
        (
            "for epoch in range(5):\n    for i, batch in enumerate(loader):\n        if i >= 3:\n            break\n"
            "        train()",
            15,
        ),
        ("for epoch in range(2):\n    for i in range(0, data.size(0) - 1, 3):\n        train()", 6),
        ("for i in range(0, data.shape[0], 4):\n    train()", 3),
        ("for i in range(len(data) // 3):\n    train()", 3),
        ("for i in range(int(math.ceil(len(data) / 3))):\n    train()", 4),
        ("for batch, rows in enumerate(torch.randperm(len(data)).split(4)):\n    train()", 3),
        ("for rows, more in zip(data.split(3), range(9)):\n    train()", 4),
        ("for row in data:\n    train()", 10),
        ("for epoch in range(2):\n    for batch in DataLoader(loader.dataset, 4, shuffle=True):\n        train()", 6),
        ("for i, batch in enumerate(DataLoader(rows, batch_size=4, drop_last=True)):\n    train()", 2),
        ("for batch in DataLoader(rows, batch_size=5, sampler=some):\n    train()", None),
        (
            "folds = KFold(5)\nfor k, (some, _) in enumerate(folds.split(data)):\n    for _ in some:\n        train()",
            40,
        ),
        ("for epoch in range(2):\n    seen = []\n    for batch in loader:\n        train()\n        seen += [1]", 20),
        ("bar = tqdm(enumerate(loader), total=len(loader))\nfor i, batch in bar:\n    train()", 10),
        ("bar = tqdm(loader)\nfor epoch in range(2):\n    for batch in bar:\n        train()", 20),
        (
            "for epoch in range(2):\n    for phase in ['train', 'val']:\n        for batch in loaders[phase]:\n"
            "            if phase == 'train':\n                train()",
            20,
        ),
        (
            "splits = ('train', 'val', 'test')\nfor split in splits:\n    for batch in loader:\n"
            "        if split == splits[0]:\n            train()",
            10,
        ),
        ("for rows, more in zip(stream, range(3)):\n    train()", None),
        ("while True:\n    train()\n    if stop():\n        break", None),
        ("step = 0\nwhile True:\n    train()\n    step += 1\n    if step >= 0 - most:\n        break", None),
    ],
)
def test_a_counter_that_ends_the_loops_tells_their_steps(tmp_path: Path, lines: str, planned: int | None) -> None:
    told, trained = set[int | None](), [0]

    class EnoughError(Exception):
        pass

    def train() -> None:
        told.add(planned_steps(1))
        trained[0] += 1
        if planned is None:
            raise EnoughError

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(8))

    data = torch.zeros(10, 2)
    known = {"math": math, "torch": torch, "data": data, "stream": DataLoader(Stream())}
    loader = DataLoader(TensorDataset(data), batch_size=1)
    known |= {"loaders": {"train": loader, "val": loader}, "tqdm": tqdm, "KFold": KFold}
    known |= {"DataLoader": DataLoader, "rows": TensorDataset(data), "some": SequentialSampler(data)}
    with contextlib.suppress(EnoughError):
        ran(tmp_path, lines, train=train, loader=loader, most=12, stop=bool, **known)
    assert told == {planned}
    assert planned is None or trained[0] == planned  # what it does is the truth


EPOCHS = "for epoch in range(3):\n    for batch in range(2):\n        step()\n"
ENDS = {
    "nothing ends it": (EPOCHS, False),
    "a metric is at its target": (f"{EPOCHS}    if 0.9 >= target:\n        break\n", True),
    "a loss falls below one": ("loss = 2.0\nwhile loss > target:\n    step()\n    loss -= 1.5\n", True),
    "nothing has improved for long": (f"best = 0.0\n{EPOCHS}    if best + 0.1 < target:\n        break\n", True),
    "a counter": ("number = 0\nwhile number < 3:\n    step()\n    number += 1\n", False),
    "a counter within": (f"{EPOCHS}        if batch >= 1:\n            break\n", False),
    "a switch": (f"dry = True\n{EPOCHS}    if dry:\n        break\n", False),
    "a comparison that ends nothing": (f"{EPOCHS}    if 0.9 >= target:\n        best = epoch\n", False),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_loop_that_its_result_may_end_is_known_by_its_lines(tmp_path: Path, name: str) -> None:
    (text, ends), found = ENDS[name], list[bool]()
    within = f"def main():\n    target = 0.5\n    {text.replace(chr(10), chr(10) + '    ')}\nmain()\n"
    ran(tmp_path, within, step=lambda: found.append(ends_by_result()))
    assert set(found) == {ends}


# Whole runs by turns: each comes to its end, and what fails or takes too long is distinguished.


COUNTS = "for i in range(3_000_000): pass\nprint('counted')"
FAILS = "print('no data'); raise SystemExit(3)"
FOR_EVER = "print('here', flush=True)\nwhile True: pass"
WITH_A_CHILD = (
    "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(7)'], capture_output=True).stdout)"
)


def python(code: str, text: str = "") -> Command:
    return Command((sys.executable, "-c", code), text=text)


@pytest.mark.parametrize("turn", [0.01, float("inf")])
def test_runs_that_take_turns_come_to_their_ends(turn: float) -> None:
    found = run_time_sliced([python(COUNTS), python(WITH_A_CHILD)], timeout=60, shares=[1.0, 3.0], turn=turn)
    assert [(run.code, run.last) for run in found] == [(0, "counted"), (0, "b'7\\n'")]
    for run in found:
        assert 0 < run.lines[-1][0] <= run.seconds
        assert run.own_cpu_seconds > 0


@pytest.mark.parametrize(("all_of_them", "other"), [(False, None), (True, 0)])
def test_one_that_fails_ends_the_others_where_nobody_asks_for_all(all_of_them: bool, other: int | None) -> None:
    found = run_time_sliced([python(FAILS), python(COUNTS)], timeout=60, all_of_them=all_of_them)
    assert (found[0].code, found[0].last, found[1].code) == (3, "no data", other)


def test_one_that_takes_too_long_is_ended() -> None:
    found = run_time_sliced([python(FOR_EVER), python(FOR_EVER)], timeout=0.5, turn=0.1)
    assert None in {run.code for run in found}
    assert all(run.code is None for run in found)


@pytest.mark.parametrize("turn", [0.05, float("inf")])
def test_one_that_takes_several_times_as_long_as_the_first_is_ended(turn: float) -> None:
    """How long a run takes is known once it was at its end, and not before."""
    found = run_time_sliced([python(COUNTS), python(FOR_EVER)], timeout=600, turn=turn, within=(0, 2.0))
    assert (found[0].code, found[1].code) == (0, None)
    assert found[1].seconds >= 2.0 * found[0].seconds


def test_a_child_that_stands_still_holds_no_run_up() -> None:
    """A worker was made as its run was stopped, and stood still when the run went on, which waited for it for ever."""
    stands = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print(7)"
    child = f"subprocess.run([sys.executable, '-c', {stands!r}], capture_output=True).stdout"
    (found,) = run_time_sliced([python(f"import subprocess, sys\nprint({child})")], timeout=60)
    assert (found.code, found.last) == (0, "b'7\\n'")


def test_one_that_ends_before_it_is_ready_was_not_begun() -> None:
    (found,) = run_time_sliced([python(FAILS, text="{}")], timeout=60)
    assert (found.begun, found.code, found.last) == (False, 3, "no data")


def test_seconds_count_from_where_a_process_stops_itself() -> None:
    waits = "import os, signal, sys; sys.stdin.read(); os.kill(os.getpid(), signal.SIGSTOP); print('on')"
    (found,) = run_time_sliced([python(waits, text="{}")], timeout=60)
    assert (found.begun, found.code, found.last) == (True, 0, "on")


SEEDS = """\
import random
import sys
import numpy as np
import torch
random.seed(5)
np.random.seed(seed=5)
torch.manual_seed(5)
print(random.random(), np.random.rand(), torch.rand(1).item(), "numpy" in sys.modules)
"""


@pytest.mark.slow
def test_whole_runs_of_a_pair_mix_one_seed_into_those_that_the_script_sets(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(SEEDS)
    script = ScriptSpec(command=(sys.executable, "draws.py"), folders=(str(tmp_path),))

    def drawn(seed: int | None) -> list[str]:
        return [run.output for run in whole_runs([script, script], str(tmp_path), timeout=60.0, seed=seed)]

    own, one, other = drawn(None), drawn(1), drawn(2)
    assert own == [run_python("draws.py", cwd=tmp_path).stdout] * 2
    assert one[0] == one[1]
    numbers = [set(each[0].split()[:3]) for each in (own, one, other)]
    assert not numbers[0] & numbers[1], "each of the three generators"
    assert not numbers[1] & numbers[2]


@pytest.mark.parametrize(
    ("foreign", "turn", "one"),
    [((0.0, 0.1), 1.0, True), ((None, None), 1.0, True), ((0.0, 1.0), 1.0, False), ((0.0, 0.0), math.inf, False)],
)
def test_runs_that_took_turns_saw_one_machine_unless_others_took_its_cores(
    foreign: tuple[float | None, float | None], turn: float, one: bool
) -> None:
    """Beside one busy core, `make demo` said 2.86 [2.73, 2.98] where later runs showed 2.57 [2.38, 2.77]."""
    assert saw_one_machine([WholeRun(10.0, foreign_cores=cores) for cores in foreign], turn) is one
