"""docs/reference/security.md holds: nothing is unpickled, nothing listens, no shell, temporary files are private."""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path

import psutil
import pytest

import autoopt
from autoopt.errors import TrialFailed
from autoopt.records.protocol import TrialSpec
from autoopt.trial.parent import Launcher

ROOT = Path(autoopt.__file__).resolve().parents[1]
SOURCES = [
    file
    for folder in ("autoopt", "strategies/autoopt_strategies", "strategies/autoopt_model", "reports/autoopt_reports")
    for file in sorted((ROOT / folder).rglob("*.py"))
]
TINY = ROOT / "tests" / "workloads" / "tiny.py"

FROM_ITS_OWN_FORK = {"autoopt/simplify/batches.py": 1, "strategies/autoopt_strategies/input/prepared.py": 1}
"""Batches and samples that a process gets back from a fork, or a loader worker, of its own: no file in between."""

THE_SCRIPTS_OWN = {"autoopt/benchmark/saving.py": 1}
"""``torch.load`` of the script itself, with the arguments that the script gives."""

THE_USERS_METHOD = {"strategies/autoopt_strategies/compute/rewriting/source.py": 1}
"""``exec`` of a method that was imported already, with some of its statements edited; no plan holds code."""

THE_SCRIPT_ITSELF = {"autoopt/script/execute.py": 1}
"""``exec`` of the script that the user has asked to run, in a process of its own, as an interpreter would."""

UNPICKLERS = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "joblib.load",
    "marshal.loads",
    "marshal.load",
    "shelve.open",
}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
PREDICTABLE = {"tempfile.mktemp", "os.tempnam"}
EVALUATORS = {"eval", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"}
"""``numpy.load`` may unpickle unless it is told not to."""


@cache
def calls(file: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(file.read_text())
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def keyword(node: ast.Call, name: str) -> object:
    found = next((word.value for word in node.keywords if word.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else found


def offenders(wanted: set[str]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{node.lineno} {name}"
        for file in SOURCES
        for name, node in calls(file)
        if name in wanted and keyword(node, "allow_pickle") is not False
    ]


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize(
    "wanted", [UNPICKLERS, SHELLS, PREDICTABLE, EVALUATORS], ids=["unpickle", "shell", "predictable", "evaluate"]
)
def test_no_source_calls(wanted: set[str]) -> None:
    assert offenders(wanted) == []


def test_code_is_made_of_graphs_and_of_the_users_script_alone() -> None:
    found = [line.partition(":")[0] for line in offenders({"exec"})]
    assert {name: found.count(name) for name in found} == THE_USERS_METHOD | THE_SCRIPT_ITSELF


def test_torch_load_takes_weights_only() -> None:
    unsafe: dict[str, int] = {}
    for file in SOURCES:
        for name, node in calls(file):
            if name == "torch.load" and keyword(node, "weights_only") is not True:
                key = file.relative_to(ROOT).as_posix()
                unsafe[key] = unsafe.get(key, 0) + 1
    assert unsafe == FROM_ITS_OWN_FORK | THE_SCRIPTS_OWN


def test_no_subprocess_goes_through_a_shell() -> None:
    for file in SOURCES:
        for name, node in calls(file):
            if "subprocess" in name or name in ("Popen", "run"):
                assert keyword(node, "shell") in (None, False), f"{file}:{node.lineno}"


def test_scripts_that_are_handed_out_load_weights_only() -> None:
    for file in SOURCES:
        for line in file.read_text().splitlines():
            if "torch.load(" in line and line.lstrip().startswith(("'", '"', "f'", 'f"')):
                assert "weights_only=True" in line, f"{file}: {line.strip()}"


def test_nothing_listens_on_the_network_and_temporary_files_are_private(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_WORKERS", "2")
    log = tmp_path / "logs" / "a.log"
    with launcher.start(TrialSpec(workload=f"{TINY}:build"), log=log, timeout=60) as trial:
        trial.call("autoopt.benchmark.tasks:run_block", timeout=60, seconds=0.1)
        server = psutil.Process(launcher._server._process.pid)
        supervisor = psutil.Process(trial.ranks[0].pid).parent()
        new = {server, *server.children(recursive=True), supervisor, *supervisor.children(recursive=True)}
        assert len(new) >= 5, "server, supervisor, trial and two workers"
        for process in (*new, psutil.Process()):
            assert [c for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN] == []
        scratch = trial.ranks[0]._scratch
        assert os.stat(scratch).st_mode & 0o077 == 0
        assert log.stat().st_mode & 0o077 == 0
    assert not os.path.exists(scratch)


def test_a_trial_takes_documents_alone_from_its_pipe(launcher: Launcher, tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "owned"),))

    trial = launcher.start(TrialSpec(workload=f"{TINY}:build"), log=tmp_path / "a.log", timeout=60)
    trial.ranks[0]._channel._end.sendall(pickle.dumps(Evil()) + b"\n")
    with pytest.raises(TrialFailed):
        trial.call("autoopt.benchmark.tasks:facts", timeout=10)
    assert not (tmp_path / "owned").exists()
