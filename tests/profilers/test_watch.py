"""``profile --watch``: why a run grows slower, from windows made up and from scripts that do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from autoopt.options import Options
from autoopt.profilers.growing import Growing
from autoopt.profilers.tools import watched
from autoopt.profilers.watch import Window, judged
from autoopt.records.drift import Drift
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.script.command import read
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher

SCRIPT = Path(__file__).parents[1] / "scripts" / "drifting.py"
STAGES = {"data": 1.0, "forward": 2.0, "backward": 3.0, "optimizer": 1.0}
Change = Callable[[int, Window], None]


def windows(change: Change, count: int = 12) -> list[Window]:
    """Of ten steps, whose stages take so many milliseconds with a jitter of a percent; ``change`` alters each."""
    found = []
    for at in range(count):
        jitter = 1 + 0.01 * (at * 7 % 5 - 2)
        stages = {name: 10 * 1e-3 * each * jitter for name, each in STAGES.items()}
        window = Window(10, 0.0, stages, {"garbage collection": 0.0, "host memory": 500.0}, {}, {})
        window.added["garbage collection"] = 0.1
        change(at, window)
        window.seconds = sum(window.stages.values())
        found.append(window)
    return found


def slower(stage: str, at: int, window: Window) -> None:
    window.stages[stage] *= 1 + 0.1 * at


def steady(at: int, window: Window) -> None:
    """Nothing grows."""


def leaks(at: int, window: Window) -> None:
    window.levels["host memory"] += 10.0 * at


def collects(at: int, window: Window) -> None:
    slower("backward", at, window)
    window.added["garbage collection"] = 3.0 * at  # all that backward takes longer


def hot(at: int, window: Window) -> None:
    for stage in window.stages:
        slower(stage, at, window)


def misses(stage: str, at: int, window: Window) -> None:
    slower(stage, at, window)
    window.levels["storage read"] = 0.0
    window.added["storage read"] = 100.0 * at


def found(change: Change) -> Drift:
    return judged(windows(change), 120, 1.0)


@pytest.mark.parametrize(
    ("change", "slowed", "causes", "says"),
    [
        (steady, None, (), ["no drift: 6.965 ms a step early, 6.965 ms late, within noise"]),
        pytest.param(leaks, None, (), ["no drift", "host memory grows by 1 MiB a step"],
                     id="what grows next to steady steps is no cause"),
        (collects, "backward", ("garbage collection",),
         ["most of it in backward; the likeliest cause: garbage collection grows by 0.03 ms a step"]),
        pytest.param(hot, None, (), ["the machine grew slower"], id="a machine that slows every stage"),
        pytest.param(partial(misses, "data"), "data", ("storage read",), [""], id="storage slows the wait for data"),
        pytest.param(partial(misses, "forward"), "forward", (), ["no counter grows with it"], id="and no other stage"),
    ],
)  # fmt: skip
def test_the_stage_and_its_cause_are_named(
    change: Change, slowed: str | None, causes: tuple[str, ...], says: list[str]
) -> None:
    drift = found(change)
    assert (drift.slowed, drift.causes) == (slowed, causes)
    assert all(text in line for text, line in zip(says, drift.summary(), strict=False))
    assert len(drift.summary()) >= len(says)


def test_a_container_that_nothing_reads_comes_after_one_that_is_read(tmp_path: Path) -> None:
    source = tmp_path / "job.py"
    source.write_text(
        "class Job:\n    def train(self):\n        for x in range(9):\n            self.kept.append(x)\n"
        "            self.seen['all'] += [x]\n            total = sum(self.seen['all'])\n"
    )

    def keeps(at: int, window: Window) -> None:
        slower("optimizer", at, window)
        for name, word in (("job.kept", "kept"), ("job.seen['all']", "all")):
            window.growing[(str(source), name)] = Growing(name, word, str(source), 10 * at, "", False)

    drift = found(keeps)
    assert drift.causes[0] == "job.seen['all']"
    lines = {each.name: each.line for each in drift.counters if each.file}
    assert lines == {"job.seen['all']": 5, "job.kept": 4}
    assert "all of it is read again at" in drift.summary()[0]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which holds the script."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SCRIPT, tmp_path)
    return tmp_path


def in_a_script(kind: str, steps: int, folder: Path, seconds: float = 8.0) -> Drift:
    workload, options = read("drifting.py", (str(steps), kind)), Options()
    registry = registry_of(options)
    with workload.alone(), Launcher() as launcher:
        runner = TrialRunner(
            launcher, baseline_spec(workload, options, registry, str(folder)), registry, folder / "logs"
        )
        runner.watched()
        return watched(runner, seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "line", "says"),
    [
        ("graphs", "losses", 26, "keep loss.item() or loss.detach()"),
        ("list", "history", 29, "all of it is read again at drifting.py:30"),
    ],
)
def test_a_script_that_grows_slower_names_its_line(kind: str, name: str, line: int, says: str, here: Path) -> None:
    drift = in_a_script(kind, 1_000_000, here)
    assert drift.slowed == "other"
    told = drift.summary()[0]
    assert f"the length of {name} (list) grows by" in told
    assert f"at drifting.py:{line}" in told
    assert says in told


@pytest.mark.slow
def test_a_script_without_drift_is_not_blamed(here: Path) -> None:
    drift = in_a_script("none", 1_000_000, here)
    assert drift.slowed is None
    assert not any(each.file for each in drift.counters)


@pytest.mark.slow
def test_a_run_that_ends_before_two_windows_is_told_so(here: Path) -> None:
    (told,) = in_a_script("none", 40, here).summary()
    assert told.startswith("drift: only 39 steps were watched, and two windows to compare need at least 56")


@pytest.mark.slow
def test_the_command_tells_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from autoopt.cli import main

    words = ["profile", "drifting.py", "--watch", "--budget", "1m", "--out", "run", "--quiet", "--", "1000000", "list"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "history (list) grows by 500 a step" in " ".join(told.split())
    assert "autoopt optimize drifting.py -- 1000000 list" in told
    document = json.loads((here / "run" / "profile.json").read_text())
    assert document["drift"]["causes"][0] == "the length of history (list)"
    assert "history (list)" in (here / "run" / "profile.html").read_text(encoding="utf-8")
