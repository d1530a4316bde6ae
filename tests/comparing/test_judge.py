"""``autoopt judge`` and its session: verdicts, exit codes, what is used again, and what is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from autoopt.cli import main
from autoopt.cli.compare import compare_command
from autoopt.cli.judge import CODES, judge_command, verdict
from autoopt.comparing.ask import Ask, requirement_of
from autoopt.comparing.ledger import answered, enter
from autoopt.comparing.session import KnownBaseline, Session, default_path, fingerprint_of, read, write
from autoopt.comparing.sides import side
from autoopt.errors import DocumentError, UsageError
from autoopt.options import Options
from autoopt.records import Environment, Estimate, Noise
from autoopt.records.comparing import Compared, LedgerEntry
from autoopt.script.command import Build, parse
from autoopt.testing.fakes import Behaviour, fake_facts
from tests.comparing.conftest import JOB, Git, a_comparison, committed

SPEED = Estimate(value=1.2, low=1.1, high=1.3, n=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, in which sessions are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def known(step_seconds: float = 0.01, **more: Any) -> KnownBaseline:
    return KnownBaseline(
        fingerprint={}, facts=fake_facts(Behaviour()), environment=Environment(python="3.11", device="cpu"),
        noise=Noise(process_sd=0.03), step_seconds=step_seconds, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "decision", "kept"),
    [
        ("faster", "accept", "keep"),
        ("slower", "harmful", "discard"),
        ("no_difference", "inconclusive", "discard"),
        ("failed", None, "discard"),
        ("undecided", "inconclusive", "undecided"),
        ("undecided", "accept", "undecided"),
        ("undecided", "reject", "discard"),
        ("refused", "accept", "refused"),
    ],
)
def test_the_answer_is_a_verdict_and_an_exit_code(answer: Any, decision: str | None, kept: str) -> None:
    entry = LedgerEntry(ask=2, alpha=0.01, total=0.05, left=0.02, head="abc")
    found = a_comparison(answer=answer, decision=decision, throughput=SPEED, ledger=entry, reused=True)
    document = verdict(found)
    assert document["verdict"] == kept
    assert CODES[kept] in (0, 5, 6, 7)
    assert (document["speedup"], document["baseline"], document["head"]) == ([1.2, 1.1, 1.3], "known", "abc")
    assert document["error"] == {"this_ask": 0.01, "left": 0.02, "total": 0.05}
    assert "\n" not in json.dumps(document)


def test_a_session_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "session.json"
    assert read(path) == Session()
    session = Session(baseline=known(), head="abc")
    write(path, session)
    assert read(path) == session
    path.write_text("{}x")
    with pytest.raises(DocumentError, match="session.json is damaged"):
        read(path)


def test_a_baseline_is_another_one_where_its_step_or_its_code_is(git: Git) -> None:
    assert not known().drifted(0.011)
    assert known().drifted(0.012)
    assert known().drifted(0.008)
    Path("job.py").write_text(JOB)
    with side(".", Build("job.py:build")) as one:
        before = fingerprint_of(one, "cpu")
        assert before == fingerprint_of(one, "cpu")
        assert json.loads(json.dumps(before)) == before
        Path("job.py").write_text(JOB + "more = 1\n")
        assert fingerprint_of(one, "cpu") != before


def test_each_command_and_folder_has_a_session_of_its_own(cache: Path) -> None:
    found = default_path("train.py --epochs 3")
    assert found.is_relative_to(cache / "autoopt")
    assert found != default_path("train.py")


def test_a_ledger_that_was_deleted_is_refused(git: Git, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed(git, JOB, "slow")
    session, ledger = tmp_path / "session.json", tmp_path / "asks.jsonl"
    entry = answered(ledger, enter(ledger, baseline="a", candidate="b"), "faster")
    write(session, Session(head=entry.head))
    ledger.unlink()
    words = ["--session", str(session), "--ledger", str(ledger), "--quiet", "--", "job.py:build"]
    assert main(["judge", *words]) == 7
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "refused"
    assert "it was deleted, cut or put back" in document["reason"]


@pytest.mark.slow
def test_a_loop_uses_the_baseline_again(git: Git, capsys: pytest.CaptureFixture[str]) -> None:
    """A true gain, and the same with every other step left out."""
    committed(git, JOB, "slow")
    words = ["judge", "--seconds", "40", "--quiet", "--", "job.py:build"]
    Path("job.py").write_text(JOB.replace("0.02", "0.005"))
    first = main(words), json.loads(capsys.readouterr().out)
    assert first[1]["baseline"] == "measured"
    assert first[1]["verdict"] in ("keep", "undecided"), first[1]
    assert first[1]["quality"] == "identical"
    idle = "if len(calls) > 200 and len(calls) % 2:\n            return m.weight.sum() * 0\n"
    lazy = f"calls.append(1)\n        {idle}        "
    cheat = JOB.replace("def build", "calls = []\ndef build").replace("time.sleep(0.02)", lazy + "time.sleep(0.02)")
    Path("job.py").write_text(cheat)
    second = main(words), json.loads(capsys.readouterr().out)
    assert second[1]["baseline"] == "known"
    assert second[0] != 0
    assert second[1]["ask"] == 2
    assert second[1]["error"]["left"] < first[1]["error"]["left"]


@pytest.mark.parametrize("command", ["judge", "compare"])
def test_what_a_candidate_may_write_configures_nothing(command: str, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []

    def compare_sides(ask: Ask, workload: Build, options: Options, **given: Any) -> Compared:
        asked.append(options)
        raise UsageError("enough")

    monkeypatch.setattr("autoopt.comparing.compare.compare_sides", compare_sides)
    monkeypatch.setattr("autoopt.trial.start.begin_server", lambda: None)
    Path("train.py").touch()
    Path("pyproject.toml").write_text('[tool.autoopt]\nstrategies = "cheat:S"\ntolerance = "90%"\n')
    assert main([command, "--baseline", "HEAD", "--", "python", "train.py"]) == 2
    assert (asked[0].strategies, asked[0].tolerance) == ((), Options().tolerance)


# The settings of one comparison, which the command, the tool and Python share.


def test_every_setting_is_an_option_of_a_command() -> None:
    options = {each.name for command in (compare_command, judge_command) for each in command.params}
    assert {"require" if each.name == "requirement" else each.name for each in fields(Ask)} <= options


def test_the_command_asks_for_the_same() -> None:
    ask = Ask("main", "train.py --fast", requirement_of("not-slower=3%"), Path("asks.jsonl"))
    assert ask.command(parse("train.py --epochs 3"), budget="5m", metric=None) == (
        "autoopt compare --baseline main --candidate 'train.py --fast' --ledger asks.jsonl --require not-slower=3% "
        "--budget 5m train.py -- --epochs 3"
    )


@pytest.mark.parametrize("text", ["faster", "not-slower=0%", "not-slower=3%"])
def test_a_requirement_is_read_as_it_is_told(text: str) -> None:
    assert requirement_of(text).text == text


@pytest.mark.parametrize(
    ("text", "said"), [("fastest", "no such requirement"), ("not-slower=3", "needs its sign"), ("not-slower=80%", "0%")]
)
def test_a_bad_requirement_is_refused_with_an_example(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--require {text}: .*{said}"):
        requirement_of(text)
