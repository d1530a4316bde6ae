"""Scripts that a launcher starts in several processes: what it starts is asked of it, and measured as one training."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoopt.benchmark.clock import Lap
from autoopt.benchmark.distributed.group import Group, without_waiting
from autoopt.errors import TrialFailed, UsageError, WorkloadError
from autoopt.records import Plan, PlanDocument
from autoopt.records.distributed import Communication
from autoopt.records.messages import Block, Probe, TrainingRun
from autoopt.records.protocol import Launch, ScriptSpec, TrialSpec
from autoopt.registry import load_strategies
from autoopt.script.command import asked, launcher_of, parse
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher, before_torch
from autoopt.trial.process import LocalTrial
from modules import autoopt
from tests.distributed.test_groups import leaves_nothing
from tests.script.conftest import block_of, edited, facts_of, plan_of, sites_of

TASKS = "autoopt.benchmark.tasks"

LAUNCHER = """\
    #!{python}
    import os, subprocess, sys
    all_of_them = {{"MASTER_PORT": "1", "WORLD_SIZE": "{size}", "OMP_NUM_THREADS": "1"}}
    subprocess.run([sys.executable, "-c", "print('a helper of its own')"], check=True)
    processes = []
    for rank in map(str, range(2)):
        own = {{**os.environ, **all_of_them, "RANK": rank, "LOCAL_RANK": rank}}
        processes.append(subprocess.Popen([sys.executable, "-u", *sys.argv[2:]], env=own))
    sys.exit(max(process.wait() for process in processes))
"""


@pytest.fixture
def launcher_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``launcher_script(text, size=2)`` puts a small ``torchrun`` on the path, without torch in it."""

    def make(text: str = LAUNCHER, size: int = 2) -> None:
        place = tmp_path / "bin" / "torchrun"
        place.parent.mkdir()
        place.write_text(textwrap.dedent(text).format(python=sys.executable, size=size))
        place.chmod(0o755)
        monkeypatch.setenv("PATH", f"{place.parent}{os.pathsep}{os.environ['PATH']}")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "train.py").write_text("raise SystemExit('it must not run')")

    return make


def test_a_launcher_is_asked_what_it_starts(launcher_script: Callable[..., None], tmp_path: Path) -> None:
    """No line of the script runs; the variables of each process, and where they come from, are kept apart."""
    launcher_script()
    spec = parse("torchrun --nproc-per-node=2 train.py --epochs 3").in_trials(tmp_path)
    assert spec is not None
    assert spec.command == (sys.executable, "train.py", "--epochs", "3")
    assert spec.launch is not None
    assert [each["RANK"] for each in spec.launch.ranks] == ["0", "1"]
    assert all(each["OMP_NUM_THREADS"] == "1" and "PYTHONPATH" not in each for each in spec.launch.ranks)
    assert not any(name.startswith("AUTOOPT") for each in spec.launch.ranks for name in each)
    assert spec.folders == (str(tmp_path),)


def test_processes_that_are_elsewhere_or_differ_are_refused(
    launcher_script: Callable[..., None], tmp_path: Path
) -> None:
    launcher_script(size=4)
    with pytest.raises(WorkloadError, match="of 4 processes 2 were started on this machine"):
        asked(launcher_of(["torchrun", "x", "train.py"]), tmp_path)


@pytest.mark.parametrize("words", [["--nnodes=2"], ["--nnodes", "1:4"], ["--num_machines", "2"]])
def test_several_machines_are_refused_at_once(
    words: list[str], launcher_script: Callable[..., None], tmp_path: Path
) -> None:
    launcher_script()
    with pytest.raises(UsageError, match="several machines cannot be frozen"):
        launcher_of(["torchrun", *words, "train.py"])
    assert launcher_of(["torchrun", "train.py", *words])[1:] == ("train.py", *words), "the script's own words"


def test_a_launcher_that_starts_nothing_says_what_it_printed(
    launcher_script: Callable[..., None], tmp_path: Path
) -> None:
    launcher_script("#!/bin/sh\necho unknown option >&2\nexit 2\n")
    with pytest.raises(WorkloadError, match=r"torchrun started no Python process \(exit code 2\)") as caught:
        asked(launcher_of(["torchrun", "train.py"]), tmp_path)
    assert "unknown option" in caught.value.detail


class Two(Group):
    """The first of two processes; the other one was away as told."""

    size = 2

    def __init__(self, other: tuple[float, ...]) -> None:
        self.other = other

    def gather(self, value: object) -> list[object]:  # type: ignore[override]
        return [value, self.other]


def test_waiting_for_the_one_that_evaluates_is_no_step_time() -> None:
    lap = Lap(4.0, {"data": 0.5, "forward": 0.5, "backward": 2.5, "optimizer": 0.5}, [1.0, 3.0])
    assert without_waiting(lap, [0.0, 0.0], Group()) is lap
    assert without_waiting(lap, [0.0, 2.0], Two((0.0, 2.0))) == lap, "both were away: nobody waited"
    found = without_waiting(lap, [0.0, 0.0], Two((0.0, 2.0)))
    assert (found.seconds, found.steps) == (2.0, [1.0, 1.0])
    assert found.stages["backward"] == 0.5


def test_a_server_of_its_own_has_what_the_launcher_sets_before_torch() -> None:
    def launch(**first: str) -> Launch:
        own = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "a", "GROUP_RANK": "0"}
        both = {**own, "CUDA_VISIBLE_DEVICES": "0", **first}
        return Launch(ranks=(both, {**both, "RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}), command=("torchrun",))

    assert before_torch(launch()) == {}
    assert before_torch(launch(OMP_NUM_THREADS="1")) == {"OMP_NUM_THREADS": "1"}


# real processes

Start = Callable[..., LocalTrial]


def in_two(folder: Path, **more: object) -> ScriptSpec:
    """``in_two.py`` as torchrun starts it in two processes."""
    ranks = tuple(
        {"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        for r in range(2)
    )
    launch = Launch(ranks=ranks, command=("torchrun", "--nproc-per-node=2", "in_two.py", "-x"))
    command = (sys.executable, "in_two.py", "-x")
    return ScriptSpec(command=command, folders=(str(folder),), launch=launch, **more)  # type: ignore[arg-type]


@pytest.fixture
def start(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """``start(fault=, evaluates=, plan=, **script)`` starts it, and waits for its first step."""
    with Launcher(fork_server=False) as launcher:

        def begin(fault: str = "", evaluates: str = "", plan: Plan | None = None, **script: object) -> LocalTrial:
            monkeypatch.setenv("FAULT", fault)
            monkeypatch.setenv("EVALUATES", evaluates)
            spec = TrialSpec(
                workload="torchrun --nproc-per-node=2 in_two.py -x",
                plan=plan or Plan(),
                directory=str(folder),
                processes=2,
                script=in_two(folder, **script),
            )
            group = launcher.start(spec, log=tmp_path / "logs" / "two.log", timeout=120.0)
            assert isinstance(group, LocalTrial)
            return group

        yield begin


@pytest.mark.slow
def test_two_processes_of_a_script_are_one_training(start: Start, folder: Path, tmp_path: Path) -> None:
    """They see one view of the folder, and end each block at the same step; nothing is written to the user's files."""
    group = start()
    sites = sites_of(group)  # type: ignore[arg-type]
    assert {site.kind for site in sites.sites} >= {"loader_training", "model", "loss", "optimizer", "step"}
    block = Block.model_validate(group.call(f"{TASKS}:run_block", timeout=60, seconds=0.3, min_steps=20))
    assert block.steps >= 20
    assert block.samples == pytest.approx(block.steps * 250 / 16, rel=0.05), "those of both"
    assert len(block.losses) == len(block.step_seconds) == block.steps
    assert group.call(f"{TASKS}:warm_up", timeout=90, max_seconds=2.0)["warmup_steps"] > 0
    for rank in ("two.log", "two.rank1.log"):
        read = next(line for line in (tmp_path / "logs" / rank).read_text().splitlines() if line.startswith("READ"))
        assert read.startswith("READ for all")
        assert read.endswith("['-x'] 1")
    assert not (folder / "shared.txt").exists()
    with leaves_nothing(group):
        group.close()


@pytest.mark.slow
def test_stages_messages_and_probes_of_two(start: Start, tmp_path: Path) -> None:
    group = start()
    timings = group.call("autoopt.simplify.tasks:measure_stages", timeout=90, seconds=1.0)
    assert timings["backward"]["seconds"] > 0
    sent = Communication.model_validate(group.call("autoopt.simplify.tasks:measure_messages", timeout=90, seconds=1.0))
    assert sent.processes == 2
    assert sent.gradient_bytes == (16 * 32 + 32 + 32 * 2 + 2) * 4
    assert group.call(f"{TASKS}:flops", timeout=60)["flops_per_step"] > 0
    found = group.call(f"{TASKS}:inspect", timeout=60, strategies=["amp"])
    assert not any("error" in each for each in found.values())
    probe = Probe.model_validate(
        group.call(f"{TASKS}:probe", timeout=90, out=str(tmp_path / "probe.npz"), steps=8, seconds=5.0)
    )
    assert (probe.steps, probe.points, probe.unseen) == (8, 1, "")
    assert len(set(probe.digests)) == len(probe.digests)
    assert all(epoch.samples == 250 for epoch in probe.epochs[1:-1])
    assert (tmp_path / "probe.npz").exists()


@pytest.mark.slow
def test_a_training_whose_first_process_evaluates(start: Start) -> None:
    """The others wait for it meanwhile, which is no part of the steps' time."""
    group = start(evaluates="0.3", metric=r"accuracy ([0-9.]+)")
    found = group.call(f"{TASKS}:train", timeout=90, max_seconds=60.0, max_steps=80)
    run = TrainingRun.model_validate(found)
    assert run.steps == 80
    assert run.samples == pytest.approx(80 * 250 / 16, rel=0.05)
    assert run.evaluations == 4, "the fifth comes after the last step"
    assert run.evaluation_seconds >= 4 * 0.3
    assert len(run.losses) in (79, 80), "the first step was over when the training began"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [("kill:1", "rank 1 of 2: signal 9"), ("raise:1", "rank 1 of 2: ValueError: a bad sample")],
)
def test_a_dead_process_is_a_verdict_that_names_it(start: Start, fault: str, said: str) -> None:
    group = start(fault=fault)
    with leaves_nothing(group), pytest.raises((TrialFailed, WorkloadError), match=said):
        group.call(f"{TASKS}:probe_losses", timeout=60, steps=20)


@pytest.mark.slow
def test_a_hung_process_is_named_and_a_slow_one_is_a_straggler(start: Start) -> None:
    group = start(fault="hang:1")
    with leaves_nothing(group), pytest.raises(TrialFailed, match=r"rank 1 of 2 hangs at in_two.py:\d+ \(misbehave\)"):
        group.call(f"{TASKS}:probe_losses", timeout=3, steps=20)


@pytest.mark.slow
def test_a_plan_is_put_on_in_each_process(start: Start) -> None:
    first = start()
    sites = sites_of(first)  # type: ignore[arg-type]
    before = facts_of(first)
    assert (before.processes, before.name) == (2, "Sequential")
    assert before.wrapped["gradient_as_bucket_view"] is False
    options = plan_of("ddp_options", bucket_view=True, bucket_megabytes=0.25)
    group = start(plan=Plan(changes=(*plan_of("amp", dtype="bfloat16").changes, *options.changes)), sites=sites)
    wrapped = facts_of(group).wrapped
    assert (wrapped["gradient_as_bucket_view"], wrapped["bucket_cap_mb"]) == (True, 0.25)
    assert len(block_of(group, 5).losses) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["torchrun", "--standalone", "--nproc-per-node", "2"],
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
        ["accelerate", "launch", "--cpu", "--num_processes", "1"],
    ],
)
def test_the_real_launchers_are_asked(launcher: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "train.py").write_text("raise SystemExit('it must not run')")
    words, launch = asked(launcher_of([*launcher, "train.py", "-x"]), tmp_path)
    assert words == (sys.executable, "train.py", "-x")
    assert launch.size == (1 if "accelerate" in launcher else 2)
    if "accelerate" in launcher:
        assert launch.ranks[0]["ACCELERATE_MIXED_PRECISION"] == "no"


@pytest.mark.slow
def test_processes_forked_from_a_server_have_the_threads_that_the_launcher_gives(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch reads ``OMP_NUM_THREADS`` as it is imported: the server must have had it."""
    for name in ("FAULT", "EVALUATES"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with Launcher() as launcher:
        base = TrialSpec(workload="torchrun", directory=str(folder), processes=2, script=in_two(folder))
        runner = TrialRunner(launcher, base, load_strategies([]), tmp_path / "logs")
        assert runner.watched() is not None
        with runner.trial(Plan(), "forked") as process:
            assert runner.base.script is not None
            assert runner.base.script.path is not None, "the server has torch imported"
            assert len(block_of(process, 3).losses) == 3
    logs = list((tmp_path / "logs").glob("*forked*.log"))
    read = [line for log in logs for line in log.read_text().splitlines() if line.startswith("READ")]
    assert len(read) == 2
    assert all(line.endswith("['-x'] 1") for line in read)


TELL = """
    print("THREADS", dist.get_rank(), torch.get_num_threads(), flush=True)
    dist.destroy_process_group()


if __name__"""


@pytest.mark.slow
def test_run_with_a_plan_runs_the_launcher_itself(folder: Path, tmp_path: Path) -> None:
    """``autoopt run``: the plan reaches every process that torchrun starts, and torchrun itself is left alone."""
    (tmp_path / "plan.json").write_text(PlanDocument(changes=plan_of("threads", threads=2).changes).model_dump_json())
    edited(folder, "in_two.py", ("range(1000)", "range(1)"), ("\n\nif __name__", TELL), to="short.py")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    words = ("torchrun", "--standalone", "--nproc-per-node=2", "short.py")
    done = autoopt("run", "--plan", tmp_path / "plan.json", "--", *words, cwd=folder, env=environment)
    told = sorted(line for line in done.stdout.splitlines() if line.startswith("THREADS"))
    assert told == ["THREADS 0 2", "THREADS 1 2"]
