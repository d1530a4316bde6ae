"""A real Ray: trials on a cluster of this machine, a node that is killed, the user's threads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import EnvironmentLacks, NodeLost, TrialFailed
from autoopt.records import JsonDict, Plan
from autoopt.records.messages import Block
from autoopt.records.protocol import TrialSpec
from autoopt.script.command import Build
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory
from autoopt.trial.remote.launcher import RayCluster, RemoteLauncher, RemoteTrial
from tests.script.test_launched import in_two

pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what Ray does to its own files and sockets

WORKLOADS = Path(__file__).parent.parent / "workloads"
TASKS = "autoopt.benchmark.tasks"


def spec(tmp_path: Path, name: str = "build") -> TrialSpec:
    return TrialSpec(workload=f"{WORKLOADS / 'tiny.py'}:{name}", directory=str(tmp_path))


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteLauncher]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with RemoteLauncher(RayCluster(), str(tmp_path)) as launcher:
        yield launcher


def test_a_ray_of_this_machine_trains_freezes_and_brings_logs(launcher: RemoteLauncher, tmp_path: Path) -> None:
    trial = launcher.start(spec(tmp_path), log=tmp_path / "logs" / "a.log", timeout=120)
    assert trial.call(f"{TASKS}:facts", timeout=120)["batch_size"]
    trial.freeze()
    block = Block.model_validate(trial.call(f"{TASKS}:run_block", timeout=60, seconds=0.2, min_steps=2))
    assert block.steps >= 2
    other = launcher.start(spec(tmp_path), log=tmp_path / "logs" / "b.log", timeout=120)
    assert other.call(f"{TASKS}:probe_losses", timeout=60, steps=2)["losses"]
    with pytest.raises(TrialFailed, match="no_such"):
        trial.call(f"{TASKS}:no_such", timeout=60)
    trial.close()
    other.close()
    assert (tmp_path / "logs" / "a.log").exists()


def test_processes_that_a_launcher_starts_train_together_on_a_machine_of_the_cluster(
    launcher: RemoteLauncher, tmp_path: Path
) -> None:
    folder = tmp_path / "script"
    folder.mkdir()
    shutil.copy(WORKLOADS.parent / "scripts" / "in_two.py", folder)
    script = in_two(folder)
    given = TrialSpec(workload="torchrun in_two.py", directory=str(folder), processes=2, script=script)
    trial = launcher.start(given, log=tmp_path / "logs" / "two.log", timeout=120)
    block = Block.model_validate(trial.call(f"{TASKS}:run_block", timeout=60, seconds=0.3, min_steps=20))
    assert block.samples == pytest.approx(block.steps * 250 / 16, rel=0.05), "those of both"
    trial.close()


class Two:
    """A cluster of two nodes on this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.nodes = [self.cluster.add_node(num_cpus=2) for _ in range(2)]

    def node_of(self, host: Any) -> Any:
        """The node on which a host lives."""
        import ray

        where = ray.util.placement_group_table(host._group)["bundles_to_node_id"][0]
        return next(node for node in self.nodes if node.node_id == where)


def test_a_node_that_is_killed_is_measured_again_elsewhere(tmp_path: Path) -> None:
    """The step of the run that lost its machine is repeated on the other one."""
    two = Two()
    os.environ["RAY_ADDRESS"] = two.cluster.address
    try:
        with RemoteLauncher(RayCluster(), str(tmp_path)) as launcher, _run(tmp_path) as run:
            attempts: list[str] = []

            def measure() -> Block:
                trial = launcher.start(spec(tmp_path), log=tmp_path / "a.log", timeout=120)
                attempts.append("begun")
                if len(attempts) == 1:
                    two.cluster.remove_node(two.node_of(launcher._host), allow_graceful=False)
                return Block.model_validate(trial.call(f"{TASKS}:probe_losses", timeout=120, steps=2))

            assert run.step("comparison", {"n": 1}, measure, Block).steps == 2
            assert len(attempts) == 2
    finally:
        del os.environ["RAY_ADDRESS"]
        two.cluster.shutdown()


def _run(tmp_path: Path) -> Run:
    path = tmp_path / "run"
    path.mkdir()
    return Run.create(RunDirectory(path), {}, {})


def test_a_lost_machine_is_given_up_after_a_third_one(tmp_path: Path) -> None:
    tried: list[int] = []

    def measure() -> Block:
        tried.append(1)
        raise NodeLost("gone")

    with _run(tmp_path) as run, pytest.raises(NodeLost):
        run.step("comparison", {}, measure, Block)
    assert len(tried) == 3


def test_the_whole_loop_runs_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autoopt.api import optimize_run
    from autoopt.options import make_options

    monkeypatch.chdir(tmp_path)
    given: JsonDict = {"executor": "ray", "budget": "60s", "only": "fused_optimizer", "out": str(tmp_path / "out")}
    result = optimize_run(Build(f"{WORKLOADS / 'tiny.py'}:build"), make_options(given))
    assert result.noise.aa_ratio is not None
    assert result.baseline.plan == Plan()
    assert result.baseline.samples_per_second


def test_a_whole_run_loses_its_machines_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine is killed amid a pair's blocks: the pair is begun again on the other one. That one dies, too: the run
    ends with a word and keeps its journal, and goes on once there is a machine again."""
    from autoopt.api import optimize_run
    from autoopt.options import make_options
    from autoopt.running.optimize import resume_run
    from autoopt.trial.remote import launcher

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "PLACE_SECONDS", 8.0)
    two = Two()
    monkeypatch.setenv("RAY_ADDRESS", two.cluster.address)
    killed: list[Any] = []
    hosts: list[Any] = []
    asked = RemoteTrial.call

    def call(trial: RemoteTrial, task: Any, **arguments: Any) -> JsonDict:
        if str(task).endswith(":run_block") and trial._host not in hosts and len(killed) < 2:
            hosts.append(trial._host)
            killed.append(two.node_of(trial._host))
            two.nodes.remove(killed[-1])
            two.cluster.remove_node(killed[-1], allow_graceful=False)
        return asked(trial, task, **arguments)

    monkeypatch.setattr(RemoteTrial, "call", call)
    out = tmp_path / "out"
    given: JsonDict = {"executor": "ray", "budget": "60s", "only": "fused_optimizer", "out": str(out)}
    try:
        with pytest.raises((EnvironmentLacks, NodeLost)):
            optimize_run(Build(f"{WORKLOADS / 'tiny.py'}:build"), make_options(given))
        assert len(killed) == 2, "the pair was begun again on the other machine"
        two.nodes.append(two.cluster.add_node(num_cpus=2))
        result = resume_run(out)
        assert result.baseline.samples_per_second
        assert result.stop.reason != "interrupted"
    finally:
        two.cluster.shutdown()
