"""Scripts in a process that has torch imported already: they are what they are in their own interpreter."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Plan
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.script import execute
from autoopt.script.boot import Orders
from autoopt.script.execute import runs_here
from autoopt.search.baseline import FirstProcess
from autoopt.search.budget_allocation import TimeLimits
from autoopt.search.trial_runner import TrialRunner
from autoopt.simplify.stage_profile import describe
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial
from modules import run_python
from tests.script.conftest import StartScript, block_of, plan_of, runner_of, sites_of

SEEN = """\
import json, os, sys

if "early" in sys.argv:
    os.environ["OMP_NUM_THREADS"] = "1"
if "harmless" in sys.argv:
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
import torch

told = {"name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0], "rest": sys.path[1:],
        "main": sys.modules["__main__"].__dict__ is globals(), "folder": os.getcwd(), "input": sys.stdin.read(),
        "offline": os.environ["WANDB_MODE"], "package": __package__}
print("TOLD", json.dumps(told))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=8, shuffle=True)
while True:
    for batch in loader:
        optimizer.zero_grad()
        (model(batch) + torch.randn(1)).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture
def runner(launcher: Launcher, folder: Path) -> TrialRunner:
    """Starts ``seen.py`` of a folder; ``runner.base`` may be changed before anything is started.

    Lightning sets the second of the harmless variables as it is imported, many a script of transformers the first.
    """
    (folder / "seen.py").write_text(SEEN)
    return runner_of(launcher, folder, "seen.py", "harmless")


def told(process: LocalTrial) -> dict[str, object]:
    line = next(line for line in process.ranks[0].log.read_text().splitlines() if line.startswith("TOLD "))
    found: dict[str, object] = json.loads(line.removeprefix("TOLD "))
    return found


def test_a_forked_script_finds_what_it_finds_in_its_own_interpreter(runner: TrialRunner) -> None:
    sites = runner.watched()
    assert sites is not None
    assert sites.path
    assert sites.early == ()
    assert sites.run is not None
    assert sites.run.imports_seconds is not None, "it had an interpreter of its own"
    with runner.launch(Plan(), "forked") as forked:
        assert runner.base.script is not None
        assert runner.base.script.path == sites.path
        forked_losses = block_of(forked, 8).losses
        ours = told(forked)
    runner.base = runner.base.model_copy(update={"script": runner.base.script.model_copy(update={"path": None})})
    with runner.launch(Plan(), "fresh") as fresh:
        assert block_of(fresh, 8).losses == forked_losses, "the same random numbers"
        assert told(fresh) == ours
    assert ours["name"] == "__main__"
    assert ours["main"] is True


@pytest.mark.parametrize(
    ("script", "words", "again"), [("plain.py", ["100000"], False), ("gan.py", ["--epochs", "9999"], True)]
)
def test_the_process_that_is_watched_tells_what_another_would(
    launcher: Launcher, folder: Path, tmp_path: Path, script: str, words: list[str], again: bool
) -> None:
    runner = runner_of(launcher, folder, script, *words)
    first = FirstProcess(runner)
    assert first.sites() is not None
    found = first.description()
    assert bool([*(tmp_path / "logs").glob("*-inspect.log")]) is again, (
        "a turn of two optimizers is one step once it is known"
    )
    changing = {"available_ram_bytes": 0, "run": None}  # memory now, and seconds that only a watched run tells
    one, other = ({**each.facts.model_dump(), **changing} for each in (found, describe(runner)))
    assert {name: (value, other[name]) for name, value in one.items() if value != other[name]} == {}
    assert found.environment.peaks.matmul_fp32_flops_per_second


def test_what_a_script_sets_before_torch_keeps_it_in_an_interpreter_of_its_own(
    launcher: Launcher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (folder / "seen.py").write_text(SEEN)
    runner = runner_of(launcher, folder, "seen.py", "early")
    sites = runner.watched()
    assert sites is not None
    assert sites.early == ("OMP_NUM_THREADS",)
    assert runner.base.script is not None
    assert runner.base.script.path is None


def test_a_module_is_run_as_the_interpreter_runs_it(launcher: Launcher, folder: Path) -> None:
    package = folder / "another"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(SEEN)
    runner = runner_of(launcher, folder, "-m", "another.train", "a")
    with runner.trial(Plan(), "watch") as fresh:
        runner.knows(sites_of(fresh))
        own = told(fresh)
    with runner.launch(Plan(), "module") as forked:
        assert told(forked) == own
    assert own["package"] == "another"


def test_a_script_has_the_time_to_compile_in_its_first_step(launcher: Launcher, folder: Path) -> None:
    runner = runner_of(launcher, folder, "plain.py")
    compiled = plan_of("compile", mode="default", dynamic=None, regional=False)
    runner.limits = TimeLimits(start=15.0, warm_up=90.0)
    assert [runner._start_seconds(plan, runner.base.script) for plan in (Plan(), compiled)] == [15.0, 90.0]
    runner.limits = TimeLimits(start=15.0)
    assert [runner._start_seconds(plan, runner.base.script) for plan in (Plan(), compiled)] == [15.0, 300.0]


def test_which_commands_need_an_interpreter_of_their_own() -> None:
    own = sys.executable
    assert runs_here((own, "train.py", "-x"))
    assert runs_here((own, "-m", "package.train"))
    assert not runs_here((own, "-O", "train.py"))
    assert not runs_here((own, "-c", "import torch"))
    assert not runs_here((own, "-m"))
    assert not runs_here(("/usr/bin/other", "train.py"))


# A script that is forked collects as much garbage as in an interpreter of its own.


def test_what_the_server_has_frozen_is_looked_at_by_the_scripts_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TrialSpec(workload="train.py", script=ScriptSpec(command=("python", "train.py")))
    frozen: list[int] = []
    prepared = (["python", "train.py"], Orders(spec=spec), dict[str, str]())
    monkeypatch.setattr(execute, "_prepared", lambda *_: prepared)
    monkeypatch.setattr(execute, "listen", lambda *_: None)
    monkeypatch.setattr(execute, "run", lambda *_: frozen.append(gc.get_freeze_count()))
    monkeypatch.setattr(execute.sys, "path", [])
    gc.freeze()
    try:
        channel: Any = None
        execute.run_here(channel, {})
    finally:
        gc.unfreeze()
    assert frozen == [0]


def test_a_script_that_sets_its_seed_trains_from_fresh_ones(
    launcher: Launcher, folder: Path, start_script: StartScript, search_path: tuple[str, ...]
) -> None:
    """Its first training is its own; every further one would be the same again."""
    words = ("plain.py", "100000")
    runner = runner_of(launcher, folder, *words, sites=start_script.watch(*words), path=search_path)

    def losses(seed: int) -> tuple[float | None, ...]:
        run = runner.train(Plan(), seed=seed, max_seconds=60.0, max_steps=12, label=f"seed {seed}")
        return run.losses

    first, fresh = losses(runner.base.seed), losses(runner.base.seed + 1)
    assert len(first) == len(fresh) > 0
    assert fresh == losses(runner.base.seed + 1)
    assert all(one != other for one, other in zip(first, fresh, strict=True))
    with runner.launch(Plan(), "own") as process:
        found = block_of(process, 4).losses
    assert first[: len(found)] == pytest.approx(found)


# Scripts that ask the terminal for its size, as progress bars do, and what reads an input that has ended.

ASKS = """
import os, sys
from autoopt.script.execute import take_input
take_input({terminal})
os.execv(sys.executable, [sys.executable, "-c", '''
import os
print(os.popen("stty size 2>&1").read().split()[:2], os.isatty(0))
for _ in range(3):
    try:
        print(input("sure? "))
    except EOFError:
        print("ended")
'''])
"""


@pytest.mark.parametrize(("terminal", "size"), [(True, "['24', '80'] True"), (False, "False")])
def test_a_script_has_the_kind_of_input_that_its_user_has(terminal: bool, size: str) -> None:
    """`stty size` of a popular script said nothing under autoopt, and its import failed."""
    done = run_python("-c", ASKS.format(terminal=terminal), timeout=60)
    first, *rest = done.stdout.splitlines()
    assert first.endswith(size)
    assert "".join(rest).count("ended") == 3, "it does not wait for what nobody types"
