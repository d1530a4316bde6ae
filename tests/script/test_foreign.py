"""Interpreters of an environment that does not have autoopt: torch, what it needs itself, and numpy are there alone."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

from autoopt.errors import EnvironmentLacks
from autoopt.records import Change, Plan
from autoopt.script.command import Script
from tests.script.conftest import StartScript, facts_of, sites_of

OTHER = """__version__ = "1.10.0"
def __getattr__(name):
    raise RuntimeError(f"the user's own package was used: {name}")
"""
SAYS = """
import sys
import rich
assert rich.__version__ == "1.10.0", "another's package was found in place of the user's own"
try:
    import scipy
except ImportError:
    print("as it was", *(each for each in sys.path if "autoopt" in each))
"""


def with_its_needs(name: str) -> set[str]:
    """A distribution and those that it needs itself."""
    needs = (need for need in distribution(name).requires or () if "extra ==" not in need and ";" not in need)
    return {name}.union(*(with_its_needs(re.split(r"[^\w.-]", need)[0]) for need in needs))


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter whose environment has packages of its own by the names of some that autoopt uses."""
    folder = tmp_path_factory.mktemp("foreign")
    venv.create(folder)
    (packages,) = folder.glob("lib/*/site-packages")
    for name in with_its_needs("torch") | {"numpy"}:
        for part in {file.parts[0] for file in distribution(name).files or () if file.parts[0] != ".."}:
            if not (packages / part).exists():
                (packages / part).symlink_to(distribution(name).locate_file(part))
    for name in ("pydantic", "rich", "psutil"):
        (packages / f"{name}.py").write_text(OTHER)
    return folder / "bin" / "python"


def test_a_script_is_listened_to_where_autoopt_is_not_installed(
    interpreter: Path, folder: Path, start_script: StartScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert subprocess.run([interpreter, "-c", "import autoopt"], cwd=folder, capture_output=True).returncode
    Script("", (str(interpreter), "plain.py")).check(folder)
    (folder / "says.py").write_text(SAYS + (folder / "plain.py").read_text())
    with start_script("says.py", "4000", python=str(interpreter)) as watched:
        sites = sites_of(watched)
        assert sites.of("loader_training")
        assert "as it was\n" in watched.ranks[0].log.read_text()
    tuned = Change(strategy="hyperparameters", setting={"lr": 0.05})  # found by its entry point, here as there
    plan = Plan(changes=(Change(strategy="threads", setting={"threads": 1}), tuned))
    with start_script("says.py", "4000", sites=sites, plan=plan, python=str(interpreter)) as changed:
        assert facts_of(changed).batch_size == 16
        assert changed.call("autoopt.benchmark.tasks:run_block", seconds=0.2)["steps"] > 0
        assert changed.call("autoopt.simplify.tasks:measure_stages", seconds=1.0)["device"] == "cpu"
        assert changed.call("autoopt.profilers.tasks:cprofile", folder=str(folder), steps=2)["lines"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('exec {python} -S -c "$2"', "has no torch and no numpy"),
        ("echo 'has no torch' >&2; exit 1", "has no torch"),
        ("exit 3", "is no Python interpreter"),
    ],
)
def test_an_interpreter_that_lacks_what_training_needs(tmp_path: Path, answer: str, said: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{answer.format(python=sys.executable)}\n")
    python.chmod(0o700)
    (tmp_path / "train.py").touch()
    with pytest.raises(EnvironmentLacks) as caught:
        Script("", (str(python), "train.py")).check(tmp_path)
    assert caught.value.message == f"{python} {said}"
    assert caught.value.exit_code == 4
