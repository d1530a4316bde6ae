"""Bad input of every command: one clear error with the contract's exit code, before anything is run."""

from __future__ import annotations

import shlex
import sys
import types
from collections.abc import Iterator

import pytest

from autoopt.cli import main
from tests.comparing.conftest import JOB, repository


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A repository with a workload in it, and documents that are damaged; no engine answers."""
    here = tmp_path_factory.mktemp("bad")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("XDG_CACHE_HOME", str(here / "cache"))
        patch.setitem(sys.modules, "autoopt.api", types.ModuleType("autoopt.api"))
        patch.setattr("autoopt.train.train_run", None)
        texts = {
            "job.py": JOB, "plan.json": '{"schema_version": 1, "changes": []}', "newer.json": '{"schema_version": 9}',
            "bad.json": "x", "same.txt": "numpy==1.0\n",
        }  # fmt: skip
        for name, text in texts.items():
            (here / name).write_text(text)
        git = repository(here)
        git("add", ".")
        git("commit", "-qm", "all")
        yield


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("optimise x:y", 2, "there is no command 'optimise'; did you mean optimize?"),
        ("qqq", 2, "there is no command 'qqq'; there are: optimize, profile"),
        ("--nonsense", 2, "No such option '--nonsense'"),
        ("optimize", 2, "nothing to train was named"),
        ("optimize a:b c", 2, "it takes no words of its own, got c"),
        ("optimize a:b --budgett 2h", 2, "No such option '--budgett'"),
        ("optimize a:b --budget", 2, "requires an argument"),
        ("optimize m:b --budget 2", 2, "error: --budget 2: a duration needs a unit"),  # all values: tests/options
        ("optimize m:b --only a --only b --skip b", 2, "error: strategy 'b' stands in both"),
        ("optimize m:b --executor ray://head", 2,
         "error: --executor ray://head: 'ray://head' is none of local, ray"),
        ("resume .", 2, "holds no journal.jsonl"),
        ("export run --to keras", 2, "'keras' is not one of"),
        ("export run", 2, "Missing option '--to'"),
        ("export . --to pytorch", 2, "holds no result.json"),
        ("verify .", 2, "holds no result.json"),
        ("train a:b", 2, "Missing option '--plan'"),
        ("train m:b --plan nowhere.json", 2, "cannot read nowhere.json"),
        ("train m:b --plan newer.json", 2, "schema_version 9"),
        ("train m:b --plan plan.json --log csv", 2, "mlflow, tensorboard, wandb"),
        ("judge --baseline . -- job.py:build", 2, "--baseline . is the candidate, too"),
        ("judge --baseline nowhere -- job.py:build", 2, "'nowhere' is no side of a comparison"),
        ("judge --baseline HEAD -- python late.py", 3, "no script late.py"),
        ("judge --seconds 1 -- job.py:build", 2, "--seconds"),
        ("judge --session bad.json -- job.py:build", 2, "bad.json is damaged"),
        ("judge --ledger bad.json -- job.py:build", 2, "bad.json is no ledger"),
        ("bisect -- job.py:build", 2, "name --good REF"),
        ("bisect --good HEAD --lock a.txt b.txt -- job.py:build", 2, "name --good REF"),
        ("bisect --good nowhere -- job.py:build", 2, "no such revision"),
        ("bisect --lock a.txt b.txt -- job.py:build", 2, "cannot read a.txt"),
        ("bisect --lock same.txt same.txt -- job.py:build", 2, "pin the same packages"),
        ("latency m:b --p95 80", 2, "not a latency with its unit"),
        ("latency m:b --max-drop 1", 2, "a percentage needs its sign"),
        ("latency m:b --clients 0", 2, "a whole number from 1 to 256"),
        ("latency m:b --batch 1,8", 2, "add up to 200 %"),
        ("latency m:b --checkpoint nowhere.pt", 2, "there is no such file"),
        ("latency train.py", 2, "names no function"),
        ("doctor --device cuda:97", 4, "there is no device 'cuda:97'"),
    ],
)  # fmt: skip
def test_one_error_and_its_code(words: str, code: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("autoopt: error: ")
    assert said in err
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err
