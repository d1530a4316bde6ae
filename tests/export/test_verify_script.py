"""``autoopt verify`` of a script: whole runs of both sides, and what is said of them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sample
from autoopt.errors import TrialFailed, UsageError
from autoopt.export.verify import FILE, PATCHED, UNTOUCHED, measured, verify_run
from autoopt.records import Estimate, Objective, Result, Sites, Speedup
from autoopt.records.headline import Headline, Sessions
from autoopt.records.script import PatchedChange, ScriptPatch
from autoopt.script.whole_run import WholeRun

SCRIPT = textwrap.dedent("""\
    import pathlib
    import time

    WAIT = 1.5
    time.sleep(WAIT)
    pathlib.Path("written.txt").write_text("by the script")
    print("val loss: 0.5")
    """)
PATCH = textwrap.dedent("""\
    --- a/train.py
    +++ b/train.py
    @@ -1,7 +1,7 @@
     import pathlib
     import time
     
    -WAIT = 1.5
    +WAIT = 0.1
     time.sleep(WAIT)
     pathlib.Path("written.txt").write_text("by the script")
     print("val loss: 0.5")
    """)


def ran(folder: Path, value: float = 2.0, diff: str = PATCH) -> Result:
    """The result of a run on the script in the folder, which claims so much for the same steps."""
    point = Estimate(value=value, low=value, high=value, n=1, confidence=None)
    headline = Headline(
        kind="same_steps",
        value=value,
        n=1,
        step_ratio=point,
        baseline_seconds=value,
        best_seconds=1.0,
        source="trained",
    )
    good = sample.win()
    return good.model_copy(
        update={
            "workload": good.workload.model_copy(update={"spec": "train.py"}),
            "sites": Sites(command=("python", "train.py"), cwd=str(folder)),
            "patch": ScriptPatch(diff=diff, changes=(PatchedChange(strategy="workers", how="patched"),)),
            "speedup": Speedup(headline=headline),
            "objective": Objective(
                metric="val loss", mode="min", target=None, target_source="baseline", tolerance=0.01, min_gain=0.02
            ),
        }
    )


@pytest.mark.slow
def test_whole_runs_of_a_patch_are_measured_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "run"
    run.mkdir()
    days = iter([datetime(2026, 1, day, hour, tzinfo=UTC) for day in (1, 2) for hour in (9, 10)])
    for number in (1, 2):
        found = verify_run(run, ran(tmp_path), seconds=20.0, now=lambda: next(days))
        assert found.kind == "whole_runs"
        assert found.headline_measured.value > 1.0
        assert "val loss 0.5 to 0.5, mean of" in found.detail
        assert len(found.sessions) == number
    assert found.next_session is not None
    assert [each.kind for each in Sessions.model_validate_json((run / FILE).read_bytes()).sessions] == [
        "whole_runs"
    ] * 2
    assert not (tmp_path / "written.txt").exists()
    assert (tmp_path / "train.py").read_text() == SCRIPT


def test_a_patch_that_no_longer_fits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("1.5", "1.7"))
    with pytest.raises(UsageError):
        verify_run(tmp_path, ran(tmp_path), seconds=5.0)


def test_a_run_that_outlasts_the_time_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with pytest.raises(UsageError, match="do not hold a pair of whole runs"):
        verify_run(tmp_path, ran(tmp_path), seconds=0.2)


class Machine:
    """Whole runs of known seconds on a clock of their own."""

    def __init__(self, before: float, after: float, **metric: float) -> None:
        self.seconds = {UNTOUCHED: before, PATCHED: after}
        self.metric, self.now, self.asked = metric, 0.0, list[str]()

    def runs(self, order: Sequence[str], timeout: float) -> list[WholeRun]:
        return [self.run(side, timeout) for side in order]

    def run(self, side: str, timeout: float) -> WholeRun:
        self.asked.append(side)
        self.now += self.seconds[side]
        if self.seconds[side] > timeout:
            raise TrialFailed("timeout", "not at its end")
        return WholeRun(self.seconds[side], tuple(value for name, value in self.metric.items() if name == side))

    def verify(self, reported: float, seconds: float = 100.0) -> Any:
        return measured(
            self.runs,
            ran(Path(), reported),
            seconds=seconds,
            clock=lambda: self.now,
            rng=np.random.default_rng(0),
        )


@pytest.mark.parametrize(
    ("machine", "reported", "holds", "said"),
    [
        (Machine(10.0, 5.0), 2.0, True, "inside the reported interval"),
        (Machine(10.0, 9.0), 2.0, False, "outside it"),
        (Machine(10.0, 11.0), 1.3, False, "outside it"),
        (Machine(10.0, 5.0, untouched=1.0, patched=1.2), 2.0, False, "worse than the tolerance"),
        (Machine(10.0, 5.0, untouched=1.0, patched=1.005), 2.0, True, "within the tolerance"),
        (Machine(10.0, 5.0, untouched=1.0), 2.0, True, "whole runs"),
    ],
)
def test_what_whole_runs_say_of_a_claim(machine: Machine, reported: float, holds: bool, said: str) -> None:
    found = machine.verify(reported)
    assert found.holds is holds, found.detail
    assert said in found.detail
    assert machine.asked.count(UNTOUCHED) == machine.asked.count(PATCHED)


def test_pairs_are_made_while_they_fit(tmp_path: Path) -> None:
    machine = Machine(10.0, 5.0)
    found = machine.verify(2.0, seconds=50.0)
    assert found.headline_measured.n == 3
    assert machine.now <= timedelta(seconds=50).total_seconds()


def test_a_side_that_fails_is_named() -> None:
    class Broken(Machine):
        def runs(self, order: Sequence[str], timeout: float) -> list[WholeRun]:
            failure = TrialFailed("error", "the run ended with exit code 1: NameError")
            failure.side = order.index(PATCHED)
            raise failure

    found = Broken(1.0, 1.0).verify(2.0)
    assert not found.holds
    assert "the patched script failed" in found.detail
