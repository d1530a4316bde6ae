"""Trials as processes: what they see, what they say, how they are frozen, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from autoopt.benchmark.cputime import stat
from autoopt.errors import TrialFailed
from autoopt.records.protocol import TrialSpec
from autoopt.trial import shared
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial
from autoopt.trial.start import begin_server, new_server


def tree_of(trial: LocalTrial) -> list[psutil.Process]:
    supervisor = psutil.Process(trial.pid).parent()
    assert supervisor is not None
    return [supervisor, *supervisor.children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def idle(processes: list[psutil.Process]) -> None:
    """Returns when all wait: one that was forked this moment has not yet asked to die with its parent."""
    end = time.monotonic() + 10
    while any(process.status() == psutil.STATUS_RUNNING for process in processes):
        assert time.monotonic() < end


def test_a_trial_is_a_session_of_its_own(start, tmp_path: Path) -> None:
    trial = start(seed=7)
    about = trial.call("mini_live:about", timeout=30)
    assert about["pid"] == about["session"] == about["group"] == trial.pid
    assert about["directory"] == str(tmp_path)
    assert about["argv"] == [str(Path(__file__).parents[1] / "workloads" / "tiny.py")]
    assert about["stdin"] == ""
    assert not about["terminal"]
    assert about["sigint_ignored"]
    assert about["main"] is None, "the caller's own script is not run again"
    assert not about["torch_cuda"]
    assert about["uncollected"] == 0, "a collection visits what it would visit in the user's own process"


def test_two_trials_start_from_the_same_numbers_forked_or_fresh(start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(seed=3)
    monkeypatch.setenv("SET_AFTER_THE_SERVER", "yes")
    trials = [first, start(seed=3), start(seed=3, flags={"env": {"MY_FLAG": "a b", "N": 2}}), start(seed=4)]
    abouts = [trial.call("mini_live:about", timeout=30) for trial in trials]
    assert abouts[1]["environment"]["SET_AFTER_THE_SERVER"] == "yes"
    assert (abouts[2]["environment"]["MY_FLAG"], abouts[2]["environment"]["N"]) == ("a b", "2")
    assert abouts[0]["random"] == abouts[1]["random"] == abouts[2]["random"] != abouts[3]["random"]
    assert len({about["hash"] for about in abouts}) == 1, "sets are walked in the same order"
    losses = [trial.call("mini_live:steps", timeout=30)["losses"] for trial in trials[:3]]
    assert losses[0] == losses[1] == losses[2]


def test_arguments_and_answers(start) -> None:
    assert start().call("mini_live:say", timeout=30, a=1, b=["ü", None]) == {"a": 1, "b": ["ü", None]}


def test_a_task_may_be_named_by_the_function_itself(start) -> None:
    import json

    with pytest.raises(TrialFailed, match="TypeError"):
        start().call(json.dumps, timeout=30)


def test_a_large_answer_arrives_whole(start) -> None:
    size = 8 * 2**20
    assert len(start().call("mini_live:large", timeout=60, size=size)["text"]) == size


def test_what_a_trial_prints_is_in_its_log_alone(start, capfd: pytest.CaptureFixture[str]) -> None:
    trial = start()
    trial.call("mini_live:say", timeout=30)
    assert "said in a trial" in trial.log.read_text()
    assert "said" not in "".join(capfd.readouterr())
    assert trial.log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("task", "kind", "reason"),
    [
        ("nothing", "error", "must return a dict"),
        ("not_json", "error", "not JSON serializable"),
        ("not_finite", "not_finite", "not_finite gave a number that is not finite"),
        ("says_why", "not_finite", "the loss is NaN at step 3"),
        ("missing", "error", "AttributeError"),
    ],
)
def test_a_task_that_misbehaves_is_a_failure_and_the_trial_goes_on(start, task: str, kind: str, reason: str) -> None:
    trial = start()
    with pytest.raises(TrialFailed, match=reason) as caught:
        trial.call(f"mini_live:{task}", timeout=30)
    assert caught.value.kind == kind
    assert trial.call("mini_live:say", timeout=30, x=1) == {"x": 1}


def test_forks_of_the_user_do_not_speak(start) -> None:
    trial = start()
    for task in ("fork_that_returns", "fork_that_raises"):
        assert trial.call(f"mini_live:{task}", timeout=30) == {"pid": trial.pid}


def test_the_private_pipe_is_not_inherited(start) -> None:
    answer = start().call("mini_live:descriptors", timeout=30)
    for kind in ("executed", "forked"):
        open_ones = [int(part) for part in answer[kind].strip("[]\n ").replace("'", "").split(",")]
        assert [number for number in open_ones if number >= 500 and kind == "executed"] == []
    forked = [int(part) for part in answer["forked"].strip("[]").split(",")]
    sockets = [number for number in forked if number >= 500]
    assert len(sockets) <= 1, "at most the log's own duplicate for stack traces"


def test_frozen_processes_get_no_cpu_wherever_they_have_gone(start) -> None:
    trial = start()
    trial.call("mini_live:spawn_tree", timeout=30)
    below = [process for process in tree_of(trial) if process.pid != psutil.Process(trial.pid).ppid()]
    assert len(below) >= 4
    trial.freeze()
    wait_until(lambda: all(stat(process.pid)[0] in ("T", "t") for process in below))
    before = [sum(process.cpu_times()[:2]) for process in below]
    end = time.process_time() + 0.1
    wait_until(lambda: time.process_time() > end)
    assert [sum(process.cpu_times()[:2]) for process in below] == before
    trial.freeze()
    trial.thaw()
    wait_until(lambda: not any(stat(process.pid)[0] in ("T", "t") for process in below))
    wait_until(lambda: sum(sum(process.cpu_times()[:2]) for process in below) > sum(before))
    trial.freeze()
    assert trial.call("mini_live:say", timeout=30, x=1) == {"x": 1}, "a call lets a frozen trial go on"
    trial.freeze()
    everything = tree_of(trial)
    trial.close()
    assert gone(everything), "frozen processes are ended, too"


def wait_until(condition) -> None:
    """Signals are delivered when the kernel gets to it. The minute only bounds a hang."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        if condition():
            return
        os.sched_yield()
    raise AssertionError("never came true")


def test_nothing_is_left_of_a_closed_trial(start) -> None:
    before = shared.names()
    trial = start(TINY_FAULT="children_in_build", TINY_WORKERS=2)
    trial.call("mini_live:steps", timeout=30)
    everything = tree_of(trial)
    scratch = trial.call("mini_live:about", timeout=30)["temporary"]
    assert os.path.isdir(scratch)
    assert os.stat(scratch).st_mode & 0o077 == 0
    trial.close()
    trial.close()
    assert gone(everything)
    assert not os.path.exists(scratch)
    assert shared.names() <= before


def test_shared_memory_that_others_use_or_that_was_there_before_stays(tmp_path: Path) -> None:
    for name in ("psm_old", "psm_used", "psm_left", "dataset.bin"):
        (tmp_path / name).write_bytes(b"x")
    with (tmp_path / "psm_used").open():
        assert shared.sweep({"psm_old"}, tmp_path) == ["psm_left"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset.bin", "psm_old", "psm_used"]


def test_workers_work_where_temporary_files_lie_deep(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    trial = start(TINY_WORKERS=2)
    assert len(trial.call("mini_live:steps", timeout=30)["losses"]) == 5


def test_a_call_after_the_end_says_so(start) -> None:
    trial = start()
    trial.close()
    with pytest.raises(TrialFailed, match="has ended already"):
        trial.call("mini_live:say", timeout=1)
    trial.freeze()
    trial.thaw()


def test_a_server_that_was_killed_is_started_again_and_leaving_the_launcher_ends_everything(tmp_path: Path) -> None:
    here = Path(__file__).parent
    spec = TrialSpec(workload=f"{here.parent / 'workloads' / 'tiny.py'}:build", search_path=(str(here),))
    with Launcher(live="mini_live:TrialContext") as launcher:
        server = launcher._server
        assert server is not None
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGKILL)
        server._process.wait()
        trials = [launcher.start(spec, log=tmp_path / f"{n}.log", timeout=60) for n in range(2)]
        assert trials[1].call("mini_live:say", timeout=30, a=1) == {"a": 1}
        trials[0].freeze()
        # Of the launcher's own only: this process may have other children, a browser of another test among them.
        again = psutil.Process(server._process.pid)
        everything = {again, *again.children(recursive=True), *(p for trial in trials for p in tree_of(trial))}
        assert len(everything) >= 5
    assert gone(list(everything))


def test_a_server_that_was_begun_is_the_first_launcher_s() -> None:
    begin_server()
    begin_server()
    first, second = new_server(), new_server()
    try:
        assert first is not None
        assert second is not None
        assert first.running, "its imports went on since"
        assert not second.running
    finally:
        for server in (first, second):
            if server is not None:
                server.close()


KILLED_PARENT = """
import sys
import tempfile
import time
from pathlib import Path
from autoopt.trial.parent import Launcher
from autoopt.records.protocol import TrialSpec
launcher = Launcher(live="mini_live:TrialContext").__enter__()
spec = TrialSpec(workload=sys.argv[1], search_path=(sys.argv[2],))
trials = [launcher.start(spec, log=Path(sys.argv[3]), timeout=60) for _ in range(2)]
trials[0].call("mini_live:spawn_tree", timeout=30)
trials[0].freeze()
print("ready", flush=True)
sys.stdin.read()
"""


def test_trials_die_with_a_parent_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).parent
    monkeypatch.setenv("TINY_WORKERS", "2")
    before = shared.names()
    workload = f"{here.parent / 'workloads' / 'tiny.py'}:build"
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED_PARENT, workload, str(here), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        everything = psutil.Process(parent.pid).children(recursive=True)
        assert len(everything) >= 10
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert gone(everything)
    assert shared.names() <= before


def test_a_trial_dies_with_its_supervisor(start) -> None:
    trial = start(TINY_WORKERS=2)
    everything = tree_of(trial)
    idle(everything)
    trial.freeze()
    os.kill(everything[0].pid, signal.SIGKILL)
    assert gone(everything), "its frozen workers, too"
    with pytest.raises(TrialFailed, match="gone"):
        trial.call("mini_live:say", timeout=5)


def test_a_log_that_grows_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autoopt.trial import supervisor

    monkeypatch.setattr(supervisor, "LOG_LIMIT", 1000)
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"x" * 5000)
    supervisor._shorten(descriptor)
    os.write(descriptor, b"last words\n")
    os.close(descriptor)
    assert path.read_text() == "[autoopt: 5000 bytes that were printed up to here were dropped]\nlast words\n"
