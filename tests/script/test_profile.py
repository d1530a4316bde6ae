"""The profile of a script: what is known of its first steps is told before its stages are measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoopt.events import Event, FirstLook, Opportunities
from autoopt.options import make_options
from autoopt.registry import load_strategies
from autoopt.search.planner import Choice
from autoopt.search.profile import profile
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import ScriptSpec, TrialSpec
from tests.script.conftest import StartScript, sites_of


@pytest.mark.slow
def test_a_profile_tells_its_first_look_before_it_measures(folder: Path, tmp_path: Path) -> None:
    command = (sys.executable, "plain.py", "100000")
    script = ScriptSpec(command=command, folders=(str(folder),))
    base = TrialSpec(workload=" ".join(command), directory=str(folder), script=script)
    told: list[Event] = []
    with Launcher(fork_server=False) as launcher:
        runner = TrialRunner(launcher, base, load_strategies([]), tmp_path / "logs")
        found = profile(runner, make_options({"budget": "6s", "device": "cpu"}), Choice(), announce=told.append)
    kinds = [event.phase if event.__class__.__name__ == "PhaseStarted" else type(event) for event in told]  # type: ignore[attr-defined]
    assert kinds.index(FirstLook) < kinds.index(Opportunities) < kinds.index("simplify")
    assert [event.at for event in told] == sorted(event.at for event in told)
    assert found.sites is not None


FED = """
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.sort(torch.rand(20000, generator=torch.Generator().manual_seed(index)))[0][:8], index % 2


model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000):
    for inputs, labels in DataLoader(Slow(), batch_size=8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
"""


def test_steps_of_a_script_that_workers_would_feed_are_measured(start_script: StartScript, folder: Path) -> None:
    """A script's own lines make what its model is called with: a batch of its loader is no such thing."""
    (folder / "fed.py").write_text(FED)
    with start_script("fed.py") as process:
        sites = sites_of(process)
    with start_script("fed.py", sites=sites) as process:
        process.call("autoopt.benchmark.tasks:warm_up", timeout=60.0, max_seconds=2.0)
        timings = process.call("autoopt.simplify.tasks:measure_stages", timeout=120.0, seconds=4.0)
    assert not [note for note in timings["notes"] if "fed by workers" in note]
    assert timings["overlaps"]
    assert all(fed["timing"]["seconds"] > 0 for fed in timings["overlaps"])
