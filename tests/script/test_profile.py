"""The profile of a script: what is known of its first steps is told before its stages are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.benchmark.environment import usable_cores
from autoopt.errors import TrialFailed
from autoopt.events import Event, FirstSteps, Opportunities
from autoopt.options import make_options
from autoopt.records import Plan
from autoopt.running.profile import profile
from autoopt.search.planner import Choice
from autoopt.simplify.stage_profile import profile_stages
from autoopt.trial.parent import Launcher
from tests.script.conftest import StartScript, edited, runner_of


@pytest.mark.slow
def test_a_profile_tells_its_first_look_before_it_measures(folder: Path) -> None:
    told: list[Event] = []
    with Launcher(fork_server=False) as launcher:
        runner = runner_of(launcher, folder, "plain.py", "100000")
        found = profile(runner, make_options({"budget": "6s", "device": "cpu"}), Choice(), announce=told.append)
    kinds = [event.phase if event.__class__.__name__ == "PhaseStarted" else type(event) for event in told]  # type: ignore[attr-defined]
    assert kinds.index(FirstSteps) < kinds.index(Opportunities) < kinds.index("simplify")
    assert [event.at for event in told] == sorted(event.at for event in told)
    assert found.sites is not None


SMALL = """
import time

import torch
from torch.utils.data import DataLoader, Dataset

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    inputs, labels = torch.randn(8, 8), torch.arange(8) % 2
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
"""
MADE = "    inputs, labels = torch.randn(8, 8), torch.arange(8) % 2\n"
WAITS = "    if step % 4 == 0:\n        time.sleep(0.02 * torch.get_num_threads())\n"


@pytest.fixture
def small(folder: Path) -> Path:
    """The folder, with ``small.py`` in it."""
    (folder / "small.py").write_text(SMALL)
    return folder


@pytest.mark.skipif(usable_cores() < 2, reason="one core has one thread")
def test_threads_are_tried_in_whole_steps_with_what_a_script_does_between_them(
    start_script: StartScript, small: Path
) -> None:
    edited(small, "small.py", (MADE, WAITS + MADE))
    sites = start_script.watch("small.py")
    with start_script("small.py", sites=sites) as process:
        process.call("autoopt.benchmark.tasks:warm_up", timeout=60.0, max_seconds=0.5)
        found = process.call("autoopt.simplify.tasks:try_threads", timeout=60.0, counts=[2], seconds=2.0, cycle=4)
        again = process.call("autoopt.simplify.tasks:try_threads", timeout=60.0, counts=[2], seconds=0.5, cycle=4)
    tried = {step["threads"]: step["seconds"] for step in found["steps"]}
    assert 1 not in tried, "it has one thread now"
    assert tried[2] > 1.5
    assert [step["threads"] for step in again["steps"]] == list(tried), "its threads are as they were"


@pytest.mark.parametrize("known", [True, False])
def test_a_run_of_few_steps_is_profiled_in_parts_of_them(
    start_script: StartScript, small: Path, launcher: Launcher, search_path: tuple[str, ...], known: bool
) -> None:
    edited(
        small,
        "small.py",
        ("100_000", "120"),
        ("    optimizer.step()\n", "    optimizer.step()\n    time.sleep(0.01)\n"),
    )
    sites = start_script.watch("small.py", seconds=0.1)
    runner = runner_of(launcher, small, "small.py", sites=sites, path=search_path)

    if known:
        found = profile_stages(runner, Plan(), seconds=8.0, advise=False, run_steps=120)
        assert found.timings
        assert not [text for text in found.missing if "ended" in text]
    else:  # parts in seconds: however slow the machine is, the run is over before them
        with pytest.raises(TrialFailed, match="ended after"):
            profile_stages(runner, Plan(), seconds=800.0, advise=False)


SLOW = """
class Slow(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.sort(torch.rand(20000, generator=torch.Generator().manual_seed(index)))[0][:8], index % 2


model ="""
FED = (
    ("\nmodel =", SLOW),
    ("for step in range(100_000):\n", "while True:\n  for inputs, labels in DataLoader(Slow(), batch_size=8):\n"),
    (MADE, ""),
)


def test_steps_of_a_script_that_workers_would_feed_are_measured(start_script: StartScript, small: Path) -> None:
    """A script's own lines make what its model is called with: a batch of its loader is no such thing."""
    edited(small, "small.py", *FED)
    sites = start_script.watch("small.py")
    with start_script("small.py", sites=sites) as process:
        process.call("autoopt.benchmark.tasks:warm_up", timeout=60.0, max_seconds=0.5)
        timings = process.call("autoopt.simplify.tasks:measure_stages", timeout=120.0, seconds=2.0)
    assert not [note for note in timings["notes"] if "fed by workers" in note]
    assert timings["overlaps"]
    assert all(fed["seconds"] > 0 for fed in timings["overlaps"])


OWN_LOOP = """\
        def signs(rows):
            found = []
            for row in rows:
                found.append([float(value.sum()) for value in row.unsqueeze(1)])
            return found
        signs(x)
        optimizer.zero_grad()
"""


def test_a_scripts_own_loop_is_found_while_it_trains(start_script: StartScript, folder: Path) -> None:
    text = edited(folder, "plain.py", ("        optimizer.zero_grad()\n", OWN_LOOP))
    with start_script("plain.py", "100000", sites=start_script.watch("plain.py", "100000")) as process:
        asked = {"seconds": 0.5, "min_steps": 4}
        found = process.call("autoopt.simplify.tasks:own_code", timeout=60.0, **asked)["functions"]
    assert [one["name"] for one in found] == ["signs"]
    assert found[0]["line"] == text[: text.index("found.append")].count("\n") + 1
