"""Scripts and interpreters that cannot be measured get one clear error each; those without autoopt can."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch

from autoopt.errors import AutooptError, EnvironmentLacks, TrialFailed, UsageError, WorkloadError
from autoopt.records import Change, Plan
from autoopt.script.command import Build, Script, parse, read
from tests.script.conftest import StartScript, facts_of, sites_of


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("fails", "a fault of the script's own"),
        ("no_torch", "without having imported torch"),
        ("asks", "standard input"),
        ("exits", "left by itself before its first training step: wrong words"),
        ("spawns", "several processes"),
        ("misread", "SyntaxError: invalid syntax"),
        ("fails forked", "a fault of the script's own"),
        ("exits forked", "left by itself before its first training step: wrong words"),
        ("never", "without having called a model in training"),
        ("updates_itself", "neither was an optimizer of torch made nor backward"),
        ("calls_no_model", "no model that holds its parameters was called"),
    ],
)
def test_a_script_that_does_not_train_says_why(start_script: StartScript, folder: Path, how: str, said: str) -> None:
    (folder / "misread.py").write_text("import torch\n\n\ndef half(:\n    return torch.zeros(1)\n")
    own = how in ("fails", "no_torch", "exits")  # how an interpreter of its own ends
    how = how.removesuffix(" forked")
    with pytest.raises(AutooptError) as caught:
        start_script("misread.py" if how == "misread" else "faulty.py", how, fresh=own)
    assert said in caught.value.message
    assert isinstance(caught.value, WorkloadError | TrialFailed)
    if how == "exits":
        assert "wrong words" in caught.value.detail, "what the script printed"
        assert "Traceback" not in caught.value.detail
    if how in ("spawns", "never", "no_torch"):
        assert caught.value.message not in caught.value.detail, "the error is told once"
        assert "Traceback" not in caught.value.detail
    if how == "misread":
        assert caught.value.detail.lstrip().startswith('File "'), "the place in the script alone"
        assert caught.value.detail.count('File "') == 1
    if how == "fails":
        begins = caught.value.detail.index('File "')
        assert "faulty.py" in caught.value.detail[begins:].partition("\n")[0], "the script's own traceback"


def test_a_script_that_would_write_outside_of_its_folder_is_stopped(
    start_script: StartScript,
) -> None:
    # neither a temporary file, which a clone's may be, nor below the script's folder
    elsewhere = Path.home() / f"precious-{os.getpid()}.txt"
    with pytest.raises(AutooptError, match=r"does not let a measured script change .*precious-\d+\.txt"):
        start_script("faulty.py", "writes", str(elsewhere))
    assert not elsewhere.exists()


def test_a_script_that_ends_before_it_can_be_measured(start_script: StartScript) -> None:
    sites = start_script.watch("faulty.py", "short")
    assert sites.steps == 5
    with start_script("faulty.py", "short", sites=sites) as process:
        with pytest.raises(TrialFailed, match="ended after 5 training steps") as caught:
            process.call("autoopt.benchmark.tasks:run_block", timeout=60.0, seconds=60.0)
        assert caught.value.where == "script ended"


def test_a_command_line_says_which_form_it_has() -> None:
    assert read("my_module:build", ()) == parse("my_module:build") == Build("my_module:build")
    assert read("examples/photos.py:build", ()) == Build("examples/photos.py:build")
    assert read("train.py", ("--epochs", "10")) == parse("train.py --epochs 10")
    assert parse("train.py --epochs 10") == Script(
        "train.py --epochs 10", (sys.executable, "train.py", "--epochs", "10")
    )
    assert parse("python -m pkg.train x").words[1:] == ("-m", "pkg.train", "x")  # type: ignore[union-attr]
    assert parse("train.py --epochs 10").asked() == "train.py -- --epochs 10"
    assert parse("python -m pkg.train").asked() == "-- python -m pkg.train"
    assert parse("m:build").asked() == "m:build"


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("m:build", ("--epochs", "1"), "takes no words of its own"),
        (None, (), "nothing to train"),
        ("bash", ("train.sh",), "not in bash"),
        ("./run", ("--epochs", "3"), r"not in \./run"),
    ],
)
def test_words_that_do_not_fit_are_usage(target: str | None, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(target, words)


def test_variables_in_front_of_a_command_are_set_before_autoopt() -> None:
    with pytest.raises(UsageError) as caught:
        read("CUDA_VISIBLE_DEVICES=1", ("python", "train.py"))
    assert "CUDA_VISIBLE_DEVICES=1 autoopt optimize -- python train.py" in str(caught.value.hint)


@pytest.mark.parametrize("spec", ["torchrun --nproc-per-node 2 train.py", "python -I train.py"])
def test_commands_that_cannot_be_listened_to_are_usage(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # an activated environment has a torchrun
    with pytest.raises(UsageError):
        parse(spec)


def test_a_second_measurement_of_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = parse("train.py")
    with script.alone(), pytest.raises(EnvironmentLacks, match="another autoopt"), script.alone():
        pass
    with script.alone():
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is here")
def test_a_script_for_a_device_that_is_not_here_says_which_are(start_script: StartScript, folder: Path) -> None:
    script = folder / "plain.py"
    text = script.read_text()
    for moved in ('nn.Linear(32, 2)).to("cuda")', "nn.Linear(32, 2)).cuda()"):
        script.write_text(text.replace("nn.Linear(32, 2))", moved))
        with pytest.raises(EnvironmentLacks, match=r"asks for a device that is not here: .*plain.py:\d+") as failed:
            start_script("plain.py")
        assert str(failed.value.hint).startswith("there is: cpu")


# A measured script may write below its own folder and nowhere else, whatever links lead there.


WRITES = """
import sys
from autoopt.script.boot import guard
guard([sys.argv[1]])
open(sys.argv[2], "w").write("x")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("scratch/runs", "data", "home/.cache"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "scratch" / "runs")
    (tmp_path / "linked_home").symlink_to(tmp_path / "home")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "home", "allowed"),
    [
        ("runs/file", "home", True),
        ("scratch/runs/file", "home", True),
        pytest.param("home/.cache/file", "linked_home", True, id="a cache in a home that is a link"),
        ("data/file", "home", False),
    ],
)
def test_it_may_write_below_a_folder_that_is_reached_over_a_link(
    place: Path, file: str, home: str, allowed: bool
) -> None:
    words = [sys.executable, "-c", WRITES, str(place / "runs"), str(place / file)]
    done = subprocess.run(words, env={"HOME": str(place / home)}, capture_output=True, text=True, check=False)
    assert (done.returncode, (place / file).exists()) == (0 if allowed else 1, allowed), done.stderr
    assert allowed or f"change {place / file}, which lies outside" in done.stderr


# Interpreters whose environment does not have autoopt: torch, what it needs itself, and numpy are there alone.

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
