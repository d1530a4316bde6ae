"""Trials on other machines, with hosts in this process: pairs stay together, kinds are not mixed, lost ones retried."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import EnvironmentLacks, NodeLost, TrialFailed, WorkloadError
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.trial.remote.launcher import RemoteLauncher, _here, as_users, bundle_of

SPEC = TrialSpec(workload="m:build")


class FakeHost:
    """A host whose trials answer with its name; ``dies_at``: the call at which its machine is gone."""

    def __init__(self, name: str, kind: str = "a", dies_at: int = 10**9, fault: dict[str, Any] | None = None) -> None:
        self.name, self.type, self.dies_at, self.fault = name, kind, dies_at, fault or {}
        self.asked: list[str] = []
        self.released = False

    def ask(self, method: str, *arguments: Any) -> Any:
        self.asked.append(method)
        if len(self.asked) > self.dies_at:
            raise NodeLost("gone")
        called = {"answer": {"host": self.name}}
        answers = {"kind": {"device": self.type}, "sees": True, "start": self.fault, "call": called}
        return {**answers, "close": f"log of {self.name}"}.get(method)

    def release(self) -> None:
        self.released = True


class FakeCluster:
    def __init__(self, *hosts: FakeHost) -> None:
        self.waiting, self.given = list(hosts), []

    def host(self, processes: int, cuda: bool) -> FakeHost:
        self.given.append(self.waiting.pop(0))
        return self.given[-1]

    def close(self) -> None:
        pass


def start(launcher: RemoteLauncher, tmp_path: Path, number: int = 0) -> Any:
    return launcher.start(SPEC, log=tmp_path / f"{number}.log", timeout=5)


def test_a_pair_stays_on_one_host_and_the_next_one_gets_a_fresh_one(tmp_path: Path) -> None:
    cluster = FakeCluster(FakeHost("one"), FakeHost("two"))
    with RemoteLauncher(cluster, str(tmp_path)) as launcher:
        first, second = start(launcher, tmp_path, 1), start(launcher, tmp_path, 2)
        assert first.call("m:task") == second.call("m:task") == {"host": "one"}
        for trial in (first, second):
            trial.close()
        assert start(launcher, tmp_path, 3).call("m:task") == {"host": "two"}
        assert cluster.given[0].released
    assert (tmp_path / "1.log").read_text() == "log of one"
    assert cluster.given[1].released


def test_what_is_held_together_stays_on_one_host_also_one_after_the_other(tmp_path: Path) -> None:
    with RemoteLauncher(FakeCluster(FakeHost("one"), FakeHost("two")), str(tmp_path)) as launcher:
        with launcher.held():
            start(launcher, tmp_path).close()
            trial = start(launcher, tmp_path)
            assert trial.call("m:task") == {"host": "one"}
            trial.close()
        assert start(launcher, tmp_path).call("m:task") == {"host": "two"}


def test_machines_of_another_kind_are_given_back(tmp_path: Path) -> None:
    hosts = [FakeHost("one"), FakeHost("other", "b"), FakeHost("two")]
    with RemoteLauncher(FakeCluster(*hosts), str(tmp_path)) as launcher:
        start(launcher, tmp_path).close()
        assert start(launcher, tmp_path).call("m:task") == {"host": "two"}
        assert hosts[1].released


def test_other_kinds_alone_end_the_run_with_a_word(tmp_path: Path) -> None:
    hosts = [FakeHost("one"), *(FakeHost("other", "b") for _ in range(8))]
    with RemoteLauncher(FakeCluster(*hosts), str(tmp_path)) as launcher:
        start(launcher, tmp_path).close()
        with pytest.raises(EnvironmentLacks, match="machines of other kinds alone are free"):
            start(launcher, tmp_path)
        assert all(host.released for host in hosts[1:])


def test_a_lost_machine_is_no_verdict_and_the_next_start_gets_another(tmp_path: Path) -> None:
    with RemoteLauncher(FakeCluster(FakeHost("one", dies_at=3), FakeHost("two")), str(tmp_path)) as launcher:
        trial = start(launcher, tmp_path)
        with pytest.raises(NodeLost):
            trial.call("m:task")
        trial.close()
        assert start(launcher, tmp_path).call("m:task") == {"host": "two"}


@pytest.mark.parametrize(("code", "kind"), [(None, TrialFailed), (3, WorkloadError), (4, EnvironmentLacks)])
def test_errors_travel_as_documents(tmp_path: Path, code: int | None, kind: type[Exception]) -> None:
    fault = {"failure": "error", "message": "no such sample", "hint": "h", "detail": "d", "exit_code": code}
    with (
        RemoteLauncher(FakeCluster(FakeHost("one", fault=fault)), str(tmp_path)) as launcher,
        pytest.raises(kind, match="no such sample"),
    ):
        start(launcher, tmp_path)


def test_a_pair_has_all_cores_of_a_machine_or_its_devices_with_their_share() -> None:
    nodes = [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0}, {"memory": 1.0}]
    assert bundle_of(nodes, 1, cuda=False) == {"CPU": 8.0}
    assert bundle_of(nodes, 2, cuda=True) == bundle_of(nodes, 2, cuda=None) == {"CPU": 8.0, "GPU": 2.0}
    assert bundle_of(nodes[1:], 1, cuda=None) == {"CPU": 8.0}
    with pytest.raises(EnvironmentLacks, match="no machine of the cluster has 8 devices; the most is 4"):
        bundle_of(nodes, 8, cuda=True)


def test_threads_are_as_on_the_users_machine() -> None:
    assert as_users({"PATH": "x"}) == {"OMP_NUM_THREADS": None}
    assert as_users({"OMP_NUM_THREADS": "3", "MKL_DYNAMIC": "F"}) == {"OMP_NUM_THREADS": "3", "MKL_DYNAMIC": "F"}


@pytest.mark.parametrize(
    ("folder", "python", "said"),
    [("/no/such", sys.executable, "no /no/such, the folder"), ("", "/no/python", "no /no/python, the interpreter")],
)
def test_a_script_runs_where_its_paths_are_and_nowhere_else(
    tmp_path: Path, folder: str, python: str, said: str
) -> None:
    script = ScriptSpec(command=(python, "train.py"))
    spec = TrialSpec(workload="train.py", directory=folder or str(tmp_path), script=script)
    with pytest.raises(EnvironmentLacks, match=said):
        _here(spec)
    found = spec.model_copy(update={"directory": str(tmp_path), "script": ScriptSpec(command=(sys.executable, "x"))})
    assert _here(found) is found
