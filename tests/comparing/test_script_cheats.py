"""Scripts that look faster than they are, in real processes: none passes."""

from __future__ import annotations

import time
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import pytest
import torch
from torch import nn

from autoopt.comparing.ask import Ask
from autoopt.comparing.compare import Comparing, _spec, compare_sides
from autoopt.comparing.learning import IDENTICAL, Evaluating, Judge, Trials
from autoopt.comparing.sides import Side, side
from autoopt.comparing.watched import Pairs, WatchedScriptArm
from autoopt.errors import TrialFailed
from autoopt.options import Options
from autoopt.records import Plan
from autoopt.records.comparing import Learning, Requirement
from autoopt.registry import Registry, load_strategies
from autoopt.script.command import parse
from autoopt.search.trial_runner import TrialRunner
from autoopt.testing.fakes import Behaviour, fake_facts
from autoopt.trial.parent import Launcher
from tests.comparing.conftest import SLOW, slow_script
from tests.script.conftest import SCRIPTS

COMMAND = "plain.py 100000"
SCRIPT = parse(COMMAND)
STEP = "optimizer.step()"
LOSS = "loss = criterion(model(x), y)"
WIDE = "nn.Linear(12, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2)"

CHEATS = {
    "another seed": ("torch.manual_seed(3)", "torch.manual_seed(4)", "other weights"),
    "weights from before": (
        "criterion = nn.CrossEntropyLoss()",
        "criterion = nn.CrossEntropyLoss()\n[p.data.fill_(0.1) for p in model.parameters()]",
        "they differ before the first of these steps",
    ),
    "half of the samples": ("batch_size=16", "batch_size=8", "other weights"),
    "one batch again and again": (
        LOSS,
        "kept = globals().setdefault('kept', (x, y)); x, y = kept\n        " + LOSS,
        "",
    ),
    "an easier loss": (LOSS, "loss = criterion(model(x[:4]), y[:4])", ""),
    "steps without work": (STEP, f"optimizer.param_groups[0]['lr'] = 0.1 * (step % 2); {STEP}", ""),
    "a smaller model": ("nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)", "nn.Linear(12, 2)", "do not fit"),
}
FAILURES = {
    "not a number": (LOSS, LOSS + " * float('nan')", "not_finite"),
    "no loss": ("loss.backward()", "[setattr(p, 'grad', p.data * 0) for p in model.parameters()]", "no loss"),
    "an early end": (STEP, f"{STEP}; step > 4 and sys.exit()", "the script ended"),
}


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the honest script, which is the present one."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "plain.py").write_text((SCRIPTS / "plain.py").read_text())
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


def cheating(today: Side, old: str, new: str) -> Side:
    """The side with a line of its script changed."""
    path = str(today.folder / "plain.py")
    text = Path(path).read_text()
    assert old in text
    return replace(today, given="cheat", patched={path: text.replace(old, new)})


def runner(each: Side, launcher: Launcher, logs: Path, seed: int = 4711) -> TrialRunner:
    return TrialRunner(launcher, _spec(each, Options(device="cpu"), Registry(), seed), Registry(), logs)


def judge_of(runners: dict[str, TrialRunner], tmp_path: Path) -> Judge:
    return Judge(trials_of(runners, tmp_path), 4.0, fake_facts(Behaviour()))


def trials_of(runners: dict[str, TrialRunner], tmp_path: Path) -> Trials:
    plans = dict.fromkeys(("baseline", "candidate"), Plan())
    return Trials(runners, plans, tmp_path, time.monotonic, time.monotonic() + 80.0, script=True)


def learning(old: str, new: str, launcher: Launcher, tmp_path: Path) -> Learning:
    with side(".", SCRIPT) as today:
        sides = {"baseline": today, "candidate": cheating(today, old, new)}
        runners = {name: runner(each, launcher, tmp_path / name) for name, each in sides.items()}
        for each in runners.values():
            each.watched()
        return judge_of(runners, tmp_path).learning()


@pytest.mark.slow
@pytest.mark.parametrize("cheat", CHEATS)
def test_another_training_of_a_script_is_not_called_the_same(
    cheat: str, scripts: Path, launcher: Launcher, tmp_path: Path
) -> None:
    old, new, told = CHEATS[cheat]
    found = learning(old, new, launcher, tmp_path)
    assert found.level == "undecided"
    assert told in found.detail


@pytest.mark.slow
@pytest.mark.parametrize("cheat", FAILURES)
def test_a_script_that_fails_its_trainings_failed(
    cheat: str, scripts: Path, launcher: Launcher, tmp_path: Path
) -> None:
    old, new, told = FAILURES[cheat]
    with pytest.raises(TrialFailed) as failed:
        learning(old, new, launcher, tmp_path)
    assert failed.value.where == "candidate"
    assert told in failed.value.reason


@pytest.mark.slow
def test_a_script_that_hangs_failed(
    scripts: Path, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does not answer to the end of the budget has failed; waiting longer would never end."""
    with side(".", SCRIPT) as today:
        hanging = cheating(today, STEP, f"{STEP}; step > 4 and __import__('threading').Event().wait()")
        runners = {
            name: runner(each, launcher, tmp_path / name)
            for name, each in {"baseline": today, "candidate": hanging}.items()
        }
        runners["candidate"].knows(runners["baseline"].watched())
        judge = judge_of(runners, tmp_path)
        judge.fix_baseline()
        monkeypatch.setattr("autoopt.comparing.learning.PATIENCE", 1.0)
        judge.trials.deadline = time.monotonic()
        with pytest.raises(TrialFailed) as failed:
            judge.learning()
    assert (failed.value.kind, failed.value.where) == ("timeout", "candidate")


@pytest.mark.slow
@pytest.mark.parametrize("tampered", [False, True])
def test_what_a_scripts_evaluation_reads_is_pinned(
    tampered: bool, scripts: Path, launcher: Launcher, tmp_path: Path
) -> None:
    """The baseline's own evaluation of both sides' weights, and data that became easier between the two."""
    text = (scripts / "plain.py").read_text()
    stored = "TensorDataset(*torch.load('valid.pt'))"
    (scripts / "plain.py").write_text(text.replace("DataLoader(data, batch_size=64)", f"DataLoader({stored})"))
    torch.save((torch.randn(32, 12), torch.zeros(32).long()), scripts / "valid.pt")
    weights = tmp_path / "weights.pt"
    torch.save(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)).state_dict(), weights)
    with side(".", SCRIPT) as today:
        runners = {"baseline": runner(today, launcher, tmp_path / "logs")}
        runners["baseline"].watched()
        evaluating = Evaluating(trials_of(runners, tmp_path), fake_facts(Behaviour()), 60.0)
        evaluating.baseline(str(weights))
        assert evaluating.pinned is not None
        assert evaluating.metric == "val acc"
        if tampered:
            torch.save((torch.zeros(32, 12), torch.zeros(32).long()), scripts / "valid.pt")
        evaluating.candidate(str(weights), str(weights))
    assert bool(evaluating.tampered) == tampered
    if not tampered:
        assert evaluating.values["baseline"] is not None
        assert evaluating.values["candidate"] == evaluating.values["baseline"]
        assert evaluating.loss("candidate") == evaluating.loss("baseline")


@pytest.mark.slow
def test_a_script_that_trains_honestly_as_long_as_it_is_checked(scripts: Path, tmp_path: Path) -> None:
    """Later steps count without any work, after as many as the weights are compared over."""
    text = (scripts / "plain.py").read_text().replace("nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)", WIDE)
    (scripts / "plain.py").write_text(text)
    honest = "        loss = criterion(model(x), y)\n        loss.backward()\n"
    assert honest in text
    lazy = "        if step < 2 * 64 + 8:\n" + "".join(f"    {line}\n" for line in honest.splitlines())
    (scripts / "lazy.py").write_text(text.replace(honest, lazy))
    options = Options(budget_seconds=45.0, device="cpu")
    ask = Ask(COMMAND, COMMAND.replace("plain", "lazy"), Requirement(kind="faster"))
    found = compare_sides(ask, None, options)
    assert found.answer not in ("faster", "not_slower"), found.reason
    assert not found.requirement.holds


def arm_of(cheat: Side, launcher: Launcher, tmp_path: Path, began: float) -> WatchedScriptArm:
    """An arm whose looks at the judge's clock are a second apart."""
    trials, looks, pairs = runner(cheat, launcher, tmp_path / "logs"), iter(range(1000)), Pairs(1.0, 16.0)
    trials.watched()
    return WatchedScriptArm(
        lambda: trials.launch(Plan(), "candidate"), Plan(), clock=lambda: float(next(looks)), began=began,
        side="candidate", label="candidate", pair=pairs.joined("candidate"), pairs=pairs,
    )  # fmt: skip


@pytest.mark.slow
def test_work_that_is_moved_to_a_scripts_start_is_charged(scripts: Path, launcher: Launcher, tmp_path: Path) -> None:
    """The start is taken on the judge's clock, from before its imports to its steady state."""
    with side(".", SCRIPT) as today:
        arm = arm_of(today, launcher, tmp_path, began=-1000.0)
        try:
            arm.ready()
            startup = arm.warm_up(0.2)
        finally:
            arm.close()
    assert startup.fixed_seconds > 1000.0 - startup.warmup_steps - 10


def test_a_script_that_stops_its_clock_is_timed_from_outside(scripts: Path, launcher: Launcher, tmp_path: Path) -> None:
    """Two looks at the judge's clock are a second apart, whatever the script says of its own time."""
    with side(".", SCRIPT) as today:
        stopped = "import time\ntime.perf_counter = time.monotonic = lambda: 0.0\n"
        text = (scripts / "plain.py").read_text().replace("import sys\n", f"import sys\n{stopped}", 1)
        assert stopped in text
        arm = arm_of(replace(today, patched={str(scripts / "plain.py"): text}), launcher, tmp_path, began=0.0)
        try:
            arm.ready()
            block = arm.block(4.0, 4, 0.0)
        finally:
            arm.close()
    assert (block.steps, block.samples, block.seconds, block.late_seconds) == (4, 64, 1.0, 0.0)


@pytest.mark.slow
def test_a_script_before_and_after_a_patch(scripts: Path, tmp_path: Path) -> None:
    """Each sample is read one number at a time; the patch takes that out."""
    text = slow_script()
    (scripts / "plain.py").write_text(text)
    lines = text.splitlines(keepends=True)
    lean = [line for line in lines if line != SLOW]
    (scripts / "lean.diff").write_text("".join(unified_diff(lines, lean, "a/plain.py", "b/plain.py")))
    ask = Ask(".", "lean.diff", Requirement(kind="faster"), tmp_path / "asks.jsonl")
    found = compare_sides(ask, SCRIPT, Options(budget_seconds=60.0, device="cpu"))
    assert (found.baseline.kind, found.candidate.kind) == ("script", "patch")
    assert found.learning.level == "identical", found.learning.detail
    assert found.answer in ("faster", "undecided"), found.reason
    assert found.throughput is None or found.throughput.value > 1.0
    assert found.ledger.ask == 1


@pytest.mark.slow
def test_a_plan_that_rounds_is_equivalent(
    scripts: Path, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoopt.comparing.compare.secrets.randbelow", lambda most: 4711)
    Path("plan.json").write_text(
        '{"schema_version": 1, "changes": [{"strategy": "amp", "setting": {"dtype": "bfloat16"}}]}'
    )
    options = Options(budget_seconds=20.0, device="cpu")
    with side(".", SCRIPT) as today, side("plan.json", SCRIPT) as planned:
        sides = {"baseline": today, "candidate": planned}
        comparing = Comparing(
            sides, options, load_strategies([]), launcher, tmp_path, time.monotonic() + 20.0, say=print
        )
        comparing._describe()
        with comparing._first_run("candidate"):
            pass
        found = comparing._judge().learning()
    assert found.apart > IDENTICAL
    assert found.level == "equivalent", found.detail
    assert found.gradient_error is not None
