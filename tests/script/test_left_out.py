"""Lines of a script that a plan leaves out or lets be done beside the training: the same training in less time."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import Change, Plan, Site, Sites
from autoopt.records.evaluating import HeldEvaluations
from autoopt.registry import load_strategies
from autoopt.script import applying
from autoopt.testing.strategies import sample_case
from scripted import PLAIN, changed_lines, patched, sites_in
from tests.script.conftest import StartScript

STRATEGY = load_strategies()["forced_calls"]
LOOP = PLAIN.replace("        optimizer.step()\n", "        optimizer.step()\n        gc.collect()  # memory\n")


def forced(line: int, **changed: object) -> Site:
    seen = {"per_step": 1.0, "seconds_per_step": 0.05, "options": {"alone": True}, "call": "gc.collect", **changed}
    return Site.model_validate({"kind": "forced", "file": "train.py", "line": line, "end_line": line, **seen})


def case_of(*sites: Site, step: float | None = 0.1) -> object:
    found = Sites(command=("train.py",), cwd="/", sites=sites, step_seconds=step)
    return replace(sample_case(), sites=found)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often garbage was collected by a call of ``gc.collect``."""
    calls: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda *generation: calls.append(1) or 7)
    return calls


def test_a_call_does_nothing_at_its_line_and_is_itself_elsewhere(counted: list[int]) -> None:
    file, line = applying.shown(__file__), sys._getframe().f_lineno + 2
    applying.leave_out([f"{file}:{line} gc.collect"])
    gc.collect()
    assert not counted
    assert gc.collect() == 7
    with pytest.raises(ValueError, match="print cannot be left out"):
        applying.leave_out(["train.py:1 print"])


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("        gc.collect()  # now", True),
        ("torch.cuda.synchronize( )", True),
        ("freed = gc.collect()", False),
        ("gc.collect(1)", False),
        ("if step: gc.collect()", False),
        ("gc.collect(); x = 1", False),
    ],
)
def test_a_line_that_is_a_call_and_nothing_else(text: str, alone: bool, tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(f"\n{text}\n")
    assert applying.stands_alone(str(tmp_path / "lines.py"), 2) is alone


def test_it_applies_where_they_take_a_share_of_every_step() -> None:
    assert STRATEGY.applies(case_of(forced(9)))
    assert list(STRATEGY.settings(case_of(forced(9), forced(12, call="print")))) == [
        {"calls": ["train.py:9 gc.collect"]}
    ]
    assert STRATEGY.predict(case_of(forced(9)), {}).value == pytest.approx(2.0)
    assert "0.0%" in STRATEGY.applies(case_of(forced(9, seconds_per_step=1e-6))).reason
    assert "not known" in STRATEGY.applies(case_of(forced(9), step=None)).reason
    for other in (
        forced(9, call="print"),
        forced(9, per_step=0.01),
        forced(9, options={"alone": False}),
        forced(9, direct=False),
        forced(9, file="/elsewhere/train.py"),
    ):
        assert "no such call" in STRATEGY.applies(case_of(other)).reason
    assert "advice" in STRATEGY.applies(sample_case()).reason


def test_anomaly_detection_is_left_out_by_what_it_takes_of_both_passes() -> None:
    call = "torch.autograd.set_detect_anomaly"
    detecting = forced(3, call=call, per_step=0.1, seconds_per_step=0.0, options={})
    tried = sample_case(inspected={"forced_calls": {"without": 0.5}})
    case = replace(tried, sites=case_of(detecting).sites)
    assert STRATEGY.applies(case)
    assert list(STRATEGY.settings(case)) == [{"calls": [f"train.py:3 {call}"]}]
    alone = STRATEGY.predict(case, {})
    assert 1.05 < alone.value <= 2.0
    both = STRATEGY.predict(replace(case, sites=case_of(detecting, forced(9)).sites), {})
    assert both.value == pytest.approx(2 * alone.value)
    assert STRATEGY.predict(case_of(detecting), {}) is None, "nobody tried it"
    for other in (forced(3, call=call, direct=False), forced(3, call=call, file="/elsewhere/train.py")):
        assert "no such call" in STRATEGY.applies(case_of(other)).reason


def test_a_wait_for_the_device_is_at_most_what_it_takes() -> None:
    told = STRATEGY.predict(case_of(forced(9), forced(12, call="torch.cuda.synchronize", seconds_per_step=0.03)), {})
    assert told.value == pytest.approx(2.0)
    assert told.high == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (LOOP, ["-        gc.collect()  # memory"]),
        (
            LOOP.replace(
                "        gc.collect()", "        if x is not None:\n            # all of it\n            gc.collect()"
            ),
            ["-            # all of it", "-            gc.collect()  # memory", "+            pass"],
        ),
    ],
)
def test_the_patch_takes_the_line_out(text: str, taken: list[str], tmp_path: Path) -> None:
    sites = sites_in(tmp_path, text, forced=("gc.collect", "gc.collect("))
    (site,) = sites.of("forced")
    change = Change(strategy="forced_calls", setting={"calls": [f"train.py:{site.line} gc.collect"]})
    _, patch = patched(tmp_path, text, change, sites=sites)
    assert changed_lines(patch.diff) == taken
    assert [(c.how, c.line) for c in patch.changes] == [("patched", site.line)]


def test_a_call_whose_value_is_used_stays(tmp_path: Path) -> None:
    text = LOOP.replace("gc.collect()", "freed = gc.collect()")
    sites = sites_in(tmp_path, text, forced=("gc.collect", "gc.collect("))
    change = Change(strategy="forced_calls", setting={"calls": [f"train.py:{sites.of('forced')[0].line} gc.collect"]})
    _, patch = patched(tmp_path, text, change, sites=sites)
    assert not patch.diff
    assert "does something with what" in patch.changes[0].reason


DETECTING = LOOP.replace("        gc.collect()  # memory\n", "")


@pytest.mark.parametrize(
    ("before", "after", "call"),
    [
        (
            ("    optimizer = ", "    torch.autograd.set_detect_anomaly(True)\n    optimizer = "),
            ["-    torch.autograd.set_detect_anomaly(True)"],
            "torch.autograd.set_detect_anomaly",
        ),
        (
            ("        loss.backward()", "        with torch.autograd.detect_anomaly():\n            loss.backward()"),
            [
                "-        with torch.autograd.detect_anomaly():",
                "+        with torch.autograd.set_detect_anomaly(False):",
            ],
            "torch.autograd.detect_anomaly",
        ),
    ],
)
def test_the_patch_detects_no_anomalies(before: tuple[str, str], after: list[str], call: str, tmp_path: Path) -> None:
    assert before[0] in DETECTING
    text = DETECTING.replace(*before, 1)
    sites = sites_in(tmp_path, text, forced=(call, f"{call}("))
    (site,) = sites.of("forced")
    change = Change(strategy="forced_calls", setting={"calls": [f"train.py:{site.line} {call}"]})
    _, patch = patched(tmp_path, text, change, sites=sites)
    assert changed_lines(patch.diff) == after


@pytest.mark.parametrize(
    "asks",
    ["torch.autograd.set_detect_anomaly(DEBUG)", "if DEBUG:\n        torch.autograd.set_detect_anomaly(True)"],
)
def test_detection_by_an_option_of_the_users_stays(tmp_path: Path, asks: str) -> None:
    text = DETECTING.replace("    optimizer = ", f"    {asks}\n    optimizer = ", 1)
    call = "torch.autograd.set_detect_anomaly"
    sites = sites_in(tmp_path, text, forced=(call, f"{call}("))
    change = Change(strategy="forced_calls", setting={"calls": [f"train.py:{sites.of('forced')[0].line} {call}"]})
    _, patch = patched(tmp_path, text, change, sites=sites)
    assert not patch.diff
    assert "your own setting" in patch.changes[0].reason


COLLECTING = """
import gc
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

collected = []
gc.disable()
gc.callbacks.append(lambda phase, info: collected.append(1))
loader = DataLoader(TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,))), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) + (1000 if collected else 0)
        collected.clear()
        loss.backward()
        optimizer.step()
        gc.collect()
"""


CHECKED = (
    COLLECTING.replace("import torch\n", "import torch\ntorch.autograd.set_detect_anomaly(True)\n", 1)
    .replace("        gc.collect()\n", "")
    .replace("if collected", "if torch.is_anomaly_enabled()")
)


@pytest.mark.slow
@pytest.mark.parametrize("text", [COLLECTING, CHECKED], ids=["collecting", "detecting anomalies"])
def test_a_script_trains_the_same_without_them(start_script: StartScript, folder: Path, text: str) -> None:
    (folder / "collecting.py").write_text("import torch\ntorch.manual_seed(0)\n" + text)
    sites = start_script.watch("collecting.py", steps=17)
    case = case_of(*sites.sites, step=sites.step_seconds)
    assert STRATEGY.applies(case)
    (setting,) = STRATEGY.settings(case)
    plan = Plan(changes=(Change(strategy="forced_calls", setting=setting),))
    losses = []
    for each in (Plan(), plan):
        with start_script("collecting.py", sites=sites, plan=each) as process:
            losses.append(
                process.call("autoopt.benchmark.tasks:run_block", timeout=60.0, seconds=0.0, min_steps=9)["losses"]
            )
    now, then = losses
    assert len(then) == 9
    assert max(then) < 1000, "nothing was collected, or looked for"
    assert [loss - 1000 for loss in now] == pytest.approx(then, abs=1e-3), "and the training is the same"


@pytest.mark.slow
def test_the_same_file_comes_without_waiting_for_it(start_script: StartScript, folder: Path) -> None:
    sites = start_script.watch("walked.py", steps=17)
    (site,) = sites.of("checkpoint")
    (setting,) = load_strategies()["checkpoints"].settings(
        replace(sample_case(), sites=sites.model_copy(update={"cwd": str(folder)}))
    )
    assert setting == {"lines": [f"walked.py:{site.line}"], "loads": []}
    found = []
    for plan in (Plan(), Plan(changes=(Change(strategy="checkpoints", setting=setting),))):
        with start_script("walked.py", sites=sites, plan=plan) as process:
            told = process.call(
                "autoopt.benchmark.tasks:evaluations", timeout=120.0, count=2, seconds=60.0, stage="checkpoint"
            )
        found.append(HeldEvaluations.model_validate(told))
    now, beside = found
    assert len(now.seconds) == len(beside.seconds) == 2
    assert now.value == beside.value == 1.0, "the file holds what was saved"
    assert now.metric == beside.metric
