"""Each command with a stand-in for the engine: what it asks for, what it prints and where, how it ends."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import sample
from autoopt.cli import finish, main
from autoopt.errors import WorkloadError
from autoopt.events import FirstSteps, Warned
from autoopt.options import Options
from autoopt.records import Profile, Result
from autoopt.script.command import Build
from autoopt.storage.journal import encode
from modules import run_python


class Engine:
    """Stands in for ``autoopt.api``: remembers what it was asked and answers with a sample document."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.calls: list[tuple[str, Any]] = []
        self.result: Result = sample.win()
        self.error: Exception | None = None

    def optimize_run(self, spec: str, options: Options, *, listeners: list[Any]) -> Result:
        self.calls.append((spec, options))
        for listener in listeners:
            listener(Warned(at=1.0, text="the machine is busy"))
        return self._answer()

    def resume_run(self, run: Path, *, accept_changed: bool, listeners: list[Any]) -> Result:
        self.calls.append((str(run), accept_changed))
        return self._answer()

    def profile_run(self, spec: str, options: Options, *, announce: Any, **profilers: object) -> Profile:
        self.calls.append((spec, options))
        announce(FirstSteps(at=3.0, steps=24, step_seconds=0.06, shares={"forward": 0.3, "data": 0.5}))
        print("printed by the user's code")
        return sample.profile()

    def _answer(self) -> Result:
        print("printed by the user's code")
        if self.error is not None:
            raise self.error
        here = self.result.reproduce.model_copy(update={"run_directory": str(self.run)})
        return self.result.model_copy(update={"reproduce": here})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    stand_in = Engine(run)
    module = types.ModuleType("autoopt.api")
    for name in ("optimize_run", "resume_run", "profile_run"):
        setattr(module, name, getattr(stand_in, name))
    monkeypatch.setitem(sys.modules, "autoopt.api", module)
    return stand_in


def test_optimize_hands_over_what_it_was_asked(engine: Engine) -> None:
    words = "--budget 1h30m --target 0.93 --tolerance 1% --device cpu --only amp,workers --only mine --strategies m:S"
    assert main(["optimize", "my_module:build", *words.split(), "--price", "3.50", "--out", "there", "--json"]) == 0
    ((spec, options),) = engine.calls
    assert spec == Build("my_module:build")
    assert options == Options(
        budget_seconds=5400.0, target=0.93, tolerance=0.01, device="cpu", only=("amp", "workers", "mine"),
        strategies=("m:S",), price=3.5, out=Path("there"), json=True,
    )  # fmt: skip


def test_the_configuration_is_read_and_the_command_line_wins(engine: Engine) -> None:
    Path("pyproject.toml").write_text('[tool.autoopt]\nbudget = "1m"\nseed = 5\nquiet = true\njson = true\n')
    assert main(["optimize", "m:b", "--seed", "6", "--no-json"]) == 0
    ((_, options),) = engine.calls
    assert (options.budget_seconds, options.seed, options.quiet, options.json) == (60.0, 6, True, False)


def test_json_is_one_document_on_standard_output_and_progress_goes_to_standard_error(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    for quiet in (True, False):
        assert main(["optimize", "m:b", "--json", *(["--quiet"] if quiet else [])]) == 0
        out, err = capfd.readouterr()
        assert Result.model_validate(json.loads(out)).speedup == engine.result.speedup
        assert "printed by the user's code" in err
        assert ("the machine is busy" in err) is not quiet


def test_the_summary_is_on_standard_output_and_names_the_report_which_is_opened_on_request(
    engine: Engine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Path] = []
    monkeypatch.setattr("autoopt.cli.finish.show", shown.append)
    assert main(["optimize", "m:b", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert str(engine.run / "report.html") in out
    assert "printed by the user's code" not in out
    assert (engine.run / "report.html").read_text().startswith("<!doctype html>")
    assert err == "printed by the user's code\n"
    assert shown == []
    assert main(["optimize", "m:b", "--quiet", "--open"]) == 0
    assert shown == [engine.run / "report.html"]


def test_an_interrupted_search_is_130_with_its_partial_result_and_an_error_has_none(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.result = sample.interrupted()
    assert main(["optimize", "m:b", "--json", "--quiet"]) == 130
    assert json.loads(capfd.readouterr().out)["stop"]["reason"] == "interrupted"
    assert (engine.run / "report.html").exists()
    engine.error = WorkloadError("no")
    assert main(["optimize", "m:b", "--json", "--quiet"]) == 3
    assert capfd.readouterr().out == ""


def test_a_report_that_cannot_be_written_costs_no_result(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    (engine.run / "report.html").mkdir()
    assert main(["optimize", "m:b", "--json", "--quiet"]) == 0
    out, err = capfd.readouterr()
    json.loads(out)
    assert "could not be written" in err
    assert f"autoopt report {engine.run}" in err


def test_a_bad_configuration_names_its_file(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text("[tool.autoopt]\nbudgett = '2h'\n")
    assert main(["optimize", "m:b"]) == 2
    err = capfd.readouterr().err
    assert f"[tool.autoopt] budgett = '2h' in {Path('pyproject.toml').resolve()}" in err
    assert "did you mean budget?" in err


def test_resume_goes_on_from_the_journal(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    (engine.run / "journal.jsonl").touch()
    assert main(["resume", str(engine.run), "--json", "--quiet", "--accept-changed"]) == 0
    assert engine.calls == [(str(engine.run), True)]
    json.loads(capfd.readouterr().out)


def test_resume_is_followed_by_the_same_trackers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []
    following = finish.following

    def remembered(kinds: tuple[str, ...]) -> Any:
        asked.append(kinds)
        return following(())

    monkeypatch.setattr(finish, "following", remembered)
    record = {"type": "run", "options": {"log": ["mlflow", "tensorboard"]}}
    (engine.run / "journal.jsonl").write_bytes(encode(0, record))
    assert main(["resume", str(engine.run), "--json", "--quiet"]) == 0
    assert asked == [("mlflow", "tensorboard")]


def test_profile_prints_its_document(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "m:b", "--json", "--device", "cpu"]) == 0
    out, err = capfd.readouterr()
    assert Profile.model_validate_json(out)
    look, _, printed = err.partition("\n")
    assert look.startswith("[   0:03] first 24 steps: 60.0 ms a step; data 50.0 %"), "as soon as it is known"
    assert printed == "printed by the user's code\n"
    assert engine.calls == [(Build("m:b"), Options(json=True, device="cpu"))]
    assert main(["profile", "m:b", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert err == "printed by the user's code\n"
    assert "ceiling" in out.lower()


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    (tmp_path / "result.json").write_text(sample.win().model_dump_json())
    return tmp_path


def test_report_renders_again_from_the_document_alone(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(finished)]) == 0
    assert capsys.readouterr().out == f"{finished / 'report.html'}\n"
    first = (finished / "report.html").read_bytes()
    assert main(["report", str(finished / "result.json"), "--out", str(finished / "x" / "again.html")]) == 0
    assert (finished / "x" / "again.html").read_bytes() == first
    capsys.readouterr()
    assert main(["report", str(finished), "--json"]) == 0
    assert Result.model_validate_json(capsys.readouterr().out) == sample.win()


def test_report_needs_no_torch(finished: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None\n"
        "from autoopt.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    assert run_python("-c", script, "report", finished).stderr == ""


def test_report_refuses_in_one_line(  # every damage: tests/records
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "result.json").write_text("{")
    assert main(["report", str(finished)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "is damaged: not JSON" in err
    assert len(err.splitlines()) <= 2
    (finished / "file").touch()
    (finished / "result.json").write_text(sample.win().model_dump_json())
    assert main(["report", str(finished), "--out", str(finished / "file" / "x.html")]) == 4
    assert "cannot write" in capsys.readouterr().err


def test_a_present_directory_that_is_gone_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["optimize", "m:b"]) == 4
    assert "no present directory" in capsys.readouterr().err
