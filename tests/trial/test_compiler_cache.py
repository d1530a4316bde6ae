"""The compiler's cache: what one trial has compiled, the next one of the same run finds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autoopt.records import Change, Plan
from autoopt.trial.parent import Launcher, trial_environment
from autoopt.trial.protocol import TrialSpec

HERE = Path(__file__).parent
COMPILED = Plan(changes=(Change(strategy="compile", setting={"mode": "default"}),))


def test_trials_of_a_run_share_its_folder_unless_the_user_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert trial_environment({}, tmp_path)["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert trial_environment({})["TORCHINDUCTOR_CACHE_DIR"]
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert trial_environment({}, tmp_path)["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs a C++ compiler")
def test_the_second_trial_of_a_graph_finds_it_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = TrialSpec(
        workload=f"{HERE.parent / 'workloads' / 'tiny.py'}:build",
        search_path=(str(HERE),),
        directory=str(tmp_path),
        plan=COMPILED,
    )
    found = []
    with Launcher(compiler_cache=tmp_path / "compiler-cache") as launcher:
        for _ in range(2):
            with launcher.start(spec, log=tmp_path / "trial.log", timeout=120) as trial:
                found.append(trial.call("compiler_tasks:graph_cache", timeout=240))
    cold, warm = found
    assert cold["misses"] > 0
    assert cold["hits"] == 0
    assert warm == {"hits": cold["misses"], "misses": 0}
