"""Lines of a script that a plan leaves out or lets be done beside the training: the same training in less time."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import Plan, ScriptPatch, Site, Sites
from autoopt.records.evaluating import HeldEvaluations
from autoopt.registry import load_strategies
from autoopt.script import applying
from autoopt.testing.strategies import sample_case
from scripted import PLAIN, changed_lines, patched, sites_in
from tests.script.conftest import StartScript, edited, plan_of

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


def left_out(folder: Path, text: str, call: str) -> ScriptPatch:
    """The patch that leaves out the first call of this function."""
    sites = sites_in(folder, text, forced=(call, f"{call}("))
    (change,) = plan_of("forced_calls", calls=[f"train.py:{sites.of('forced')[0].line} {call}"]).changes
    found: ScriptPatch = patched(folder, text, change, sites=sites)[1]
    assert not found.diff or [(c.how, c.line) for c in found.changes] == [("patched", sites.of("forced")[0].line)]
    return found


COLLECT, DETECT, WITHIN = "gc.collect", "torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly"
BELOW = "        if x is not None:\n            # all of it\n            gc.collect()"


@pytest.mark.parametrize(
    ("old", "new", "call", "changed"),
    [
        ("", "", COLLECT, ["-        gc.collect()  # memory"]),
        ("        gc.collect()", BELOW, COLLECT,
         ["-            # all of it", "-            gc.collect()  # memory", "+            pass"]),
        ("    optimizer = ", f"    {DETECT}(True)\n    optimizer = ", DETECT, [f"-    {DETECT}(True)"]),
        ("        loss.backward()", f"        with {WITHIN}():\n            loss.backward()", WITHIN,
         [f"-        with {WITHIN}():", f"+        with {DETECT}(False):"]),
    ],
)  # fmt: skip
def test_the_patch_takes_the_line_out(tmp_path: Path, old: str, new: str, call: str, changed: list[str]) -> None:
    assert old in LOOP
    assert changed_lines(left_out(tmp_path, LOOP.replace(old, new, 1), call).diff) == changed


@pytest.mark.parametrize(
    ("old", "new", "call", "reason"),
    [
        ("gc.collect()", "freed = gc.collect()", COLLECT, "does something with what"),
        *(("    optimizer = ", f"    {asks}\n    optimizer = ", DETECT, "your own setting")
          for asks in (f"{DETECT}(DEBUG)", f"if DEBUG:\n        {DETECT}(True)")),
    ],
)  # fmt: skip
def test_what_is_used_or_is_an_option_of_the_users_stays(
    tmp_path: Path, old: str, new: str, call: str, reason: str
) -> None:
    patch = left_out(tmp_path, LOOP.replace(old, new, 1), call)
    assert not patch.diff
    assert reason in patch.changes[0].reason


COUNTED = "collected = []\ngc.disable()\ngc.callbacks.append(lambda phase, info: collected.append(1))\nstep = 0\n"
COLLECTING = (
    ("import sys\n", "import gc\nimport sys\n"),
    ("step = 0\n", COUNTED),
    ("criterion(model(x), y)\n", "criterion(model(x), y) + (1000 if collected else 0)\n        collected.clear()\n"),
    ("        step += 1\n", "        step += 1\n        gc.collect()\n"),
)
DETECTING = (
    ("step = 0\n", "torch.autograd.set_detect_anomaly(True)\nstep = 0\n"),
    ("criterion(model(x), y)\n", "criterion(model(x), y) + (1000 if torch.is_anomaly_enabled() else 0)\n"),
)


@pytest.mark.slow
@pytest.mark.parametrize("edits", [COLLECTING, DETECTING], ids=["collecting", "detecting anomalies"])
def test_a_script_trains_the_same_without_them(
    start_script: StartScript, folder: Path, edits: tuple[tuple[str, str], ...]
) -> None:
    edited(folder, "plain.py", *edits)
    sites = start_script.watch("plain.py", "100000", steps=17)
    case = case_of(*sites.sites, step=sites.step_seconds)
    assert STRATEGY.applies(case)
    (setting,) = STRATEGY.settings(case)
    plans = (Plan(), plan_of("forced_calls", **setting))
    now, then = (start_script.losses("plain.py", "100000", steps=9, sites=sites, plan=plan) for plan in plans)
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
    for plan in (Plan(), plan_of("checkpoints", **setting)):
        with start_script("walked.py", sites=sites, plan=plan) as process:
            told = process.call(
                "autoopt.benchmark.tasks:evaluations", timeout=120.0, count=2, seconds=60.0, stage="checkpoint"
            )
        found.append(HeldEvaluations.model_validate(told))
    now, beside = found
    assert len(now.seconds) == len(beside.seconds) == 2
    assert now.value == beside.value == 1.0, "the file holds what was saved"
    assert now.metric == beside.metric
