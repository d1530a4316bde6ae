"""Places of trials, and the compiler's cache that they share."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.records import Change, Noise, Plan
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.search.compare.comparison import Rule
from autoopt.search.race import Neighbours, ParallelRace
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher, trial_environment
from autoopt.trial.places import Workers, places_of
from autoopt.trial.remote.launcher import RayCluster, RemoteLauncher

WORKLOADS = Path(__file__).parent.parent / "workloads"


def names(count: int, processes: int = 1, device: str = "auto") -> list[tuple[str, str | None]]:
    launcher: Any = object()
    return [(place.name, place.devices) for place in places_of(launcher, count, processes, device, cores=4)]


def test_each_pair_has_as_many_devices_as_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert names(1) == []
    assert names(3) == [("device 4", "4"), ("device 5", "5"), ("device 6", "6")]
    assert names(2, processes=2, device="cuda") == [("device 4,5", "4,5"), ("device 6,7", "6,7")]
    with pytest.raises(EnvironmentLacks, match="--parallel 3 needs 6 devices: 4 devices are visible"):
        names(3, processes=2)
    with pytest.raises(UsageError, match="--parallel 2 needs more devices than cuda:1"):
        names(2, device="cuda:1")


def test_without_devices_pairs_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert names(2) == names(2, device="cpu") == [("pair 0", None), ("pair 1", None)]
    for count, device in ((5, "auto"), (2, "cuda")):
        with pytest.raises(EnvironmentLacks, match="there are 4 cores and no devices"):
            names(count, device=device)


def test_a_cluster_has_room_for_so_many_pairs(tmp_path: Path) -> None:
    cluster: Any = RayCluster.__new__(RayCluster)

    class Ray:
        def nodes(self) -> list[dict[str, Any]]:
            return [
                {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 4.0}},
                {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 2.0}},
                {"Alive": False, "Resources": {"CPU": 16.0, "GPU": 8.0}},
            ]

    cluster._ray = Ray()
    assert (cluster.room(1, True), cluster.room(2, True), cluster.room(1, False)) == (6, 3, 2)
    launcher = RemoteLauncher(cluster, str(tmp_path))
    places = places_of(launcher, 3, 2, "cuda", cores=2)
    assert [place.name for place in places] == ["place 0", "place 1", "place 2"]
    assert places[0].launcher is launcher
    with pytest.raises(EnvironmentLacks, match="the cluster has room for 3 pairs of trials"):
        places_of(launcher, 4, 2, "cuda", cores=2)


@pytest.mark.slow
def test_pairs_of_processes_live_beside_each_other_and_leave_nothing(tmp_path: Path) -> None:
    """Real processes on two places of a CPU: the control measures what they cost, and looks are measured at once."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    plans = [Plan(changes=(Change(strategy="workers", setting={"num_workers": count}),)) for count in (1, 2)]
    rule = Rule(max_seconds=60)
    with Launcher() as launcher:
        places = places_of(launcher, 2, 1, "cpu", cores=2)
        spec = TrialSpec(workload=f"{WORKLOADS / 'tiny.py'}:build", directory=str(tmp_path))
        runner = TrialRunner(launcher, spec, load_strategies(), tmp_path / "logs", places)
        workers, runners = runner.workers(), runner.placed()
        neighbours = Neighbours(runners, Plan(), rule, workers)
        rng = np.random.default_rng(0)
        found = neighbours.sharing(["0", "1"], 5.0, clock=time.monotonic, deadline=1e9, rng=rng)
        assert found.allowed, found.reason
        assert all(each is not None and each.n >= 6 for each in found.beside)
        neighbours.close()
        workers.close()
        race = ParallelRace(runner, runners, Plan(), rule, workers=runner.workers, clock=time.monotonic, seed=[0])
        race.expect([(plan, runner.limits) for plan in plans], Noise())
        seen = [race.screen(plan, Noise()) for plan in plans]
        race.close()
    assert [one.failure for one in seen] == [None, None]
    assert all(one.estimate is not None for one in seen)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


def test_jobs_begin_in_their_order_as_places_become_free() -> None:
    workers = Workers(2)
    asked = [workers.submit(lambda place, number=number: (number, place)) for number in range(20)]
    found = [future.result() for future in asked]
    workers.close()
    assert [number for number, _ in found] == list(range(20))
    assert {place for _, place in found} <= {0, 1}


# The compiler's cache: what one trial has compiled, the next one of the same run finds.

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
