"""Scripts run by a process that has torch imported already: they are what they are in an interpreter of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoopt.errors import AutooptError
from autoopt.records import Change, Plan, Sites
from autoopt.registry import load_strategies
from autoopt.script.execute import runs_here
from autoopt.search.budget_allocation import TimeLimits
from autoopt.search.first_process import FirstProcess
from autoopt.search.trial_runner import TrialRunner
from autoopt.simplify.stage_profile import describe
from autoopt.trial.parent import Launcher, TrialProcess
from autoopt.trial.protocol import ScriptSpec, TrialSpec
from tests.script.conftest import sites_of

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
for _ in range(100000):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture
def runner(launcher: Launcher, folder: Path, tmp_path: Path) -> TrialRunner:
    """Starts ``seen.py`` of a folder; ``runner.base`` may be changed before anything is started."""
    (folder / "seen.py").write_text(SEEN)
    return runner_of(launcher, folder, tmp_path, "seen.py")


def runner_of(launcher: Launcher, folder: Path, tmp_path: Path, *words: str) -> TrialRunner:
    command = (sys.executable, *words)
    script = ScriptSpec(command=command, folders=(str(folder),))
    base = TrialSpec(workload=" ".join(words), directory=str(folder), script=script)
    return TrialRunner(launcher, base, load_strategies([]), tmp_path / "logs")


def told(process: TrialProcess) -> dict[str, object]:
    line = next(line for line in process.log.read_text().splitlines() if line.startswith("TOLD "))
    found: dict[str, object] = json.loads(line.removeprefix("TOLD "))
    return found


def losses(process: TrialProcess) -> list[float]:
    found: list[float] = process.call("autoopt.benchmark.tasks:probe_losses", timeout=60.0, steps=8)["losses"]
    return found


def test_a_forked_script_finds_what_it_finds_in_its_own_interpreter(runner: TrialRunner) -> None:
    sites = runner.watched()
    assert sites is not None
    assert sites.path
    assert sites.early == ()
    with runner.launch(Plan(), "forked") as forked:
        assert runner.base.script is not None
        assert runner.base.script.path == sites.path
        forked_losses = losses(forked)
        ours = told(forked)
    runner.base = runner.base.model_copy(update={"script": runner.base.script.model_copy(update={"path": None})})
    with runner.launch(Plan(), "fresh") as fresh:
        assert losses(fresh) == forked_losses, "the same random numbers"
        assert told(fresh) == ours
    assert ours["name"] == "__main__"
    assert ours["main"] is True


@pytest.mark.parametrize(
    ("script", "words", "again"), [("plain.py", ["100000"], False), ("gan.py", ["--epochs", "9999"], True)]
)
def test_the_process_that_is_watched_tells_what_another_would(
    launcher: Launcher, folder: Path, tmp_path: Path, script: str, words: list[str], again: bool
) -> None:
    runner = runner_of(launcher, folder, tmp_path, script, *words)
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
    launcher: Launcher, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (folder / "seen.py").write_text(SEEN)
    runner = runner_of(launcher, folder, tmp_path, "seen.py", "early")
    sites = runner.watched()
    assert sites is not None
    assert sites.early == ("OMP_NUM_THREADS",)
    assert runner.base.script is not None
    assert runner.base.script.path is None


def test_what_torch_does_not_read_takes_no_interpreter_of_its_own(
    launcher: Launcher, folder: Path, tmp_path: Path
) -> None:
    """Lightning sets the second one as it is imported, many a script of transformers the first."""
    (folder / "seen.py").write_text(SEEN)
    runner = runner_of(launcher, folder, tmp_path, "seen.py", "harmless")
    sites = runner.watched()
    assert sites is not None
    assert sites.early == ()
    assert runner.base.script is not None
    assert runner.base.script.path


def test_a_forked_script_that_fails_or_leaves_says_so(runner: TrialRunner, launcher: Launcher, folder: Path) -> None:
    sites = runner.watched()
    assert sites is not None
    for words, said in ((["fails"], "a fault of the script's own"), (["exits"], "wrong words"), (["asks"], "input")):
        command = (sys.executable, "faulty.py", *words)
        script = ScriptSpec(command=command, sites=Sites(command=command, cwd=str(folder)), path=sites.path)
        spec = runner.base.model_copy(update={"script": script})
        with pytest.raises(AutooptError, match=said):
            launcher.start(spec, log=folder.parent / "faulty.log", timeout=60.0)
    log = (folder.parent / "faulty.log").read_text()
    assert "a fault of the script's own" in log
    assert "interpreter.py" not in log, "the script's own traceback begins with its own line"


def test_a_module_is_run_as_the_interpreter_runs_it(launcher: Launcher, folder: Path, tmp_path: Path) -> None:
    package = folder / "another"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(SEEN)
    runner = runner_of(launcher, folder, tmp_path, "-m", "another.train", "a")
    assert runner.watched() is not None
    found = []
    for _ in range(2):
        with runner.launch(Plan(), "module") as process:
            found.append(told(process))
        assert runner.base.script is not None
        runner.base = runner.base.model_copy(update={"script": runner.base.script.model_copy(update={"path": None})})
    assert found[0] == found[1]
    assert found[0]["package"] == "another"


def test_losses_of_a_loader_are_those_of_its_own_interpreter(launcher: Launcher, folder: Path, tmp_path: Path) -> None:
    runner = runner_of(launcher, folder, tmp_path, "plain.py", "100000")
    with runner.trial(Plan(), "watch") as process:
        runner.knows(sites_of(process, steps=18))
    with runner.launch(Plan(), "forked") as forked:
        ours = losses(forked)
    assert runner.base.script is not None
    runner.base = runner.base.model_copy(update={"script": runner.base.script.model_copy(update={"path": None})})
    with runner.launch(Plan(), "fresh") as fresh:
        assert losses(fresh) == ours


def test_a_script_has_the_time_to_compile_in_its_first_step(launcher: Launcher, folder: Path, tmp_path: Path) -> None:
    runner = runner_of(launcher, folder, tmp_path, "plain.py")
    compiled = Plan(
        changes=(Change(strategy="compile", setting={"mode": "default", "dynamic": None, "regional": False}),)
    )
    runner.limits = TimeLimits(start=15.0, warm_up=90.0)
    assert [runner._start_seconds(plan) for plan in (Plan(), compiled)] == [15.0, 90.0]
    runner.limits = TimeLimits(start=15.0)
    assert [runner._start_seconds(plan) for plan in (Plan(), compiled)] == [15.0, 300.0]


def test_which_commands_need_an_interpreter_of_their_own() -> None:
    own = sys.executable
    assert runs_here((own, "train.py", "-x"))
    assert runs_here((own, "-m", "package.train"))
    assert not runs_here((own, "-O", "train.py"))
    assert not runs_here((own, "-c", "import torch"))
    assert not runs_here((own, "-m"))
    assert not runs_here(("/usr/bin/other", "train.py"))
