"""Changes that were chosen from a profile: put into the script's lines, and taken off again."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.cli.entry import run
from autoopt.records import Change, PlanDocument, Prediction, Profile
from autoopt.registry import load_strategies
from autoopt.running.profile import placed_prediction
from sample import profile
from tests.export.test_script_patch import PLAIN, WORKERS, sites_in


@pytest.fixture
def profiled(tmp_path: Path) -> Profile:
    """A profile of a script, beside it."""
    found = profile().model_copy(update={"sites": sites_in(tmp_path, PLAIN)})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile.json").write_text(found.model_dump_json())
    return found


def plan(folder: Path, *changes: Change) -> str:
    path = folder / "run" / "plan.json"
    path.write_text(PlanDocument(changes=changes).model_dump_json())
    return str(path)


def test_a_chosen_change_is_put_on_and_taken_off(
    profiled: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--plan", plan(tmp_path, WORKERS), str(tmp_path / "run")]
    assert run(["apply", *words]) == 0
    assert capsys.readouterr().out == "train.py\n"
    assert "num_workers=2" in (tmp_path / "train.py").read_text()
    assert run(["apply", *words]) == 2, "the lines are no longer those that the profile saw"
    assert run(["revert", *words]) == 0
    assert (tmp_path / "train.py").read_text() == PLAIN


def test_what_no_line_says_is_told_and_nothing_is_changed(
    profiled: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand = Change(strategy="batch_size", setting={"size": 16, "learning_rate_factor": 2.0, "warmup_steps": 5})
    path = plan(tmp_path, WORKERS, by_hand)
    assert run(["apply", "--plan", path, str(tmp_path / "run")]) == 2
    assert "batch_size" in capsys.readouterr().err
    assert run(["revert", "--plan", path, str(tmp_path / "run")]) == 2
    assert "was not applied" in capsys.readouterr().err
    assert (tmp_path / "train.py").read_text() == PLAIN


def test_a_prediction_says_where_its_change_would_go(profiled: Profile) -> None:
    registry = load_strategies([])
    able = Prediction(strategy=WORKERS.strategy, setting=WORKERS.setting)
    found = placed_prediction(able, profiled, registry)
    line = PLAIN[: PLAIN.index("loader = ")].count("\n") + 1
    assert (found.how, found.file, found.line) == ("patched", "train.py", line)
    refused = Prediction(strategy="amp", applies=False, reason="no tensor cores")
    assert placed_prediction(refused, profiled, registry) == refused
    function = profiled.model_copy(update={"sites": None})
    assert placed_prediction(able, function, registry) == able
