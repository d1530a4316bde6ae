"""The real run: killed and resumed with the same losses, checkpoints, targets, bad checkpoints, two processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from autoopt.benchmark.training import Training
from autoopt.cli.train import start_processes
from autoopt.errors import DocumentError
from autoopt.options import Options
from autoopt.records import Change, Plan, PlanDocument
from autoopt.train import run as train_module
from autoopt.train import train_run
from autoopt.train.run import Progress
from modules import autoopt, run_python

SPEC = f"{Path(__file__).parent / 'train_workload.py'}:build"
PLAN = Plan(changes=(Change(strategy="threads", setting={"threads": 1}),))

KILLED = """
import os, signal, sys
from pathlib import Path
from autoopt.records import Plan
from autoopt.options import Options
from autoopt.train import run
kill_at, where = int(sys.argv[1]), sys.argv[2]
done = 0
if where == "writing":
    import torch
    saved = torch.save
    def half(state, file):
        global done
        done += 1
        saved(state, file)
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.save = half
def progress(p):
    if where == "step" and p.step >= kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
run._LOOKED_AT_EVERY = 1
options = Options(device="cpu", seed=4, out=Path(sys.argv[4]), quiet=True)
run.train_run(sys.argv[3], Plan(), options, checkpoint_every_minutes=0.0, listeners=[progress])
"""


Outcome = tuple[Any, list[float | None]]


def outcome(out: Path, plan: Plan = Plan(), **options: Any) -> Outcome:  # noqa: B008
    losses: list[float | None] = []
    how = {name: options.pop(name) for name in ("clock", "checkpoint_every_minutes") if name in options}
    chosen = Options(device="cpu", seed=4, out=out, quiet=True, **options)
    return train_run(SPEC, plan, chosen, listeners=[lambda p: losses.append(p.loss)], **how), losses


@pytest.fixture(autouse=True, scope="module")
def every_step_is_looked_at() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "_LOOKED_AT_EVERY", 1)
        yield


@pytest.fixture(scope="module")
def whole(every_step_is_looked_at: None, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A training that nothing disturbs, and its losses."""
    return outcome(tmp_path_factory.mktemp("whole"))


BETWEEN = [pytest.param(at, "step", marks=pytest.mark.slow) for at in (1, 9, 14, 35)]


@pytest.mark.parametrize(("at", "where"), [(20, "writing"), *BETWEEN])
def test_killed_and_resumed_gives_the_same_losses(at: int, where: str, whole: Outcome, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run_python("-c", KILLED, at, where, SPEC, tmp_path, env=environment, codes=(-signal.SIGKILL,))
    resumed, rest = outcome(tmp_path)
    trained, losses = whole
    assert 0 < resumed.resumed_from <= at
    assert rest == losses[resumed.resumed_from :]
    assert resumed.loss == trained.loss
    assert resumed.metrics == trained.metrics
    assert [p.step for p in resumed.curve.points] == [p.step for p in trained.curve.points]


def test_ends_at_the_target_and_says_what_it_cost(tmp_path: Path) -> None:
    trained, _ = outcome(tmp_path, target=0.5, price=3600.0)
    assert trained.reached
    assert trained.stopped == "target"
    assert trained.steps < 36
    assert trained.cost == pytest.approx(trained.seconds)
    assert trained.samples_per_second and trained.samples_per_second > 0  # noqa: PT018
    again, losses = outcome(tmp_path, target=0.5)
    assert losses == []
    assert again.steps == trained.steps


def test_whole_run_without_a_target_that_is_reached(whole: Outcome) -> None:
    trained, losses = whole
    assert (trained.stopped, trained.steps, trained.reached) == ("end", 36, False)
    assert len(losses) == 36
    assert len(trained.curve.points) == 4


@pytest.mark.parametrize("where", ["next", "step", "evaluate"])
def test_interrupted_leaves_a_checkpoint_of_whole_steps(
    where: str, whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plain, sent = getattr(Training, where), list[int]()

    def interrupted(self: Training, *args: Any) -> Any:
        if not sent and self.steps >= 5:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, *args)

    monkeypatch.setattr(Training, where, interrupted)
    first, before = outcome(tmp_path)
    assert first.stopped == "interrupted"
    assert capfd.readouterr().err.count("saving a checkpoint") == 1
    monkeypatch.undo()
    again, rest = outcome(tmp_path)
    assert again.resumed_from == first.steps
    assert before + rest == whole[1]
    assert whole[0].steps == again.steps == 36


def test_workers_that_the_same_signal_ended_cost_nothing(
    whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ended = Training.next, []

    def failing(self: Training) -> Any:
        batches = plain(self)
        if self.steps == 5 and not ended:
            ended.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
            raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")
        return batches

    monkeypatch.setattr(Training, "next", failing)
    first, before = outcome(tmp_path)
    assert (first.stopped, first.steps) == ("interrupted", 5)
    assert before + outcome(tmp_path)[1] == whole[1]


def test_a_second_signal_stops_at_once_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 9:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    options = Options(device="cpu", seed=4, out=tmp_path, quiet=True)
    with pytest.raises(KeyboardInterrupt):
        train_run(SPEC, Plan(), options, listeners=[stop], checkpoint_every_minutes=0.0)
    again, _ = outcome(tmp_path)
    assert again.resumed_from == 9
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_checkpoints_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []
    now = [0.0]
    monkeypatch.setattr(train_module, "write_checkpoint", lambda path, state: written.append(now[0]))

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    outcome(tmp_path, clock=clock, checkpoint_every_minutes=0.5)
    assert len(written) >= 2
    assert all(b - a >= 30 for a, b in pairwise(written[:-1]))


def test_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    outcome(tmp_path, target=0.0)
    with pytest.raises(DocumentError, match="another plan"):
        outcome(tmp_path, PLAN)


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None])
def test_damaged_checkpoint_is_refused(damage: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    if damage is None:
        torch.save([1, 2], path)
    else:
        path.write_bytes(damage)
    with pytest.raises(DocumentError, match="checkpoint"):
        outcome(tmp_path)


# A plan for two processes: the command becomes torchrun, and trains what one process trains.

POINTS = Path(__file__).parents[1] / "distributed" / "points.py"
TWO = Plan(changes=(Change(strategy="ddp", setting={"processes": 2}),))


def test_the_command_becomes_torchrun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["autoopt", "train", "m:build", "--plan", "plan.json"])
    start_processes(2, lambda *words: became.append(words))
    ((program, words),) = became
    assert program == sys.executable
    assert words[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert words[5:] == ["-m", "autoopt", "train", "m:build", "--plan", "plan.json"]
    monkeypatch.setenv("RANK", "0")
    start_processes(2, lambda *words: became.append(words))
    start_processes(1, lambda *words: became.append(words))
    assert len(became) == 1


@pytest.mark.slow
def test_two_processes_train_to_the_end_and_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(PlanDocument(changes=TWO.changes).model_dump_json())
    words = ["--plan", tmp_path / "plan.json", "--out", tmp_path / "out", "--json", "--quiet", "--device", "cpu"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):  # the second goes on from the end
        document = json.loads(autoopt("train", f"{POINTS}:build", *words, env=variables).stdout)
        assert (document["steps"], document["samples"]) == (48, 750)
        assert document["metrics"]["accuracy"] > 0.5
    assert document["resumed_from"] == 48
