"""Scripts that do not fit into a device's memory: watched all the same, and their first process as a run starts it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoopt.errors import TrialFailed
from autoopt.export.script_patch import placed
from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import ScriptSpec, TrialSpec
from tests.script.conftest import StartScript, sites_of

LIMIT = 6 << 20


def test_a_script_that_does_not_fit_is_watched_in_little_memory(start_script: StartScript) -> None:
    with pytest.raises(TrialFailed) as failed:
        start_script("deep.py", memory_limit=LIMIT)
    assert failed.value.kind == "out_of_memory"
    process = start_script("deep.py", memory_limit=LIMIT, lean=True)
    sites = sites_of(process)
    facts = process.call("autoopt.benchmark.tasks:facts", timeout=60.0)
    fits = start_script("deep.py")
    assert sites.sites == sites_of(fits).sites
    known = fits.call("autoopt.benchmark.tasks:facts", timeout=60.0)
    assert {**facts, "available_ram_bytes": 0} == {**known, "available_ram_bytes": 0}


def test_it_trains_the_same(start_script: StartScript) -> None:
    task = "autoopt.benchmark.tasks:probe_losses"
    lean = start_script("deep.py", memory_limit=LIMIT, lean=True).call(task, timeout=60.0, steps=4)
    assert lean["losses"] == start_script("deep.py").call(task, timeout=60.0, steps=4)["losses"]


CUT = Change(strategy="accumulation", setting={"size": 64, "accumulation": 8})


def test_pieces_of_a_batch_train_the_same_and_fit(
    start_script: StartScript, folder: Path, launcher: Launcher, tmp_path: Path
) -> None:
    sites = sites_of(start_script("deep.py"))
    registry = load_strategies(())
    command = (sys.executable, "deep.py")
    script = ScriptSpec(command=command, sites=sites, folders=(str(folder),))
    base = TrialSpec(workload="deep", directory=str(folder), script=script, memory_limit_bytes=LIMIT)
    runner = TrialRunner(launcher, base, registry, tmp_path / "logs")
    runner.patched_files = lambda plan: {
        str(folder / name): text for name, text in placed(sites, plan, registry, "cpu").texts.items()
    }
    plan = Plan(changes=(CUT,))
    with runner.trial(plan, "pieces") as process:
        facts = process.call("autoopt.benchmark.tasks:facts", timeout=60.0)
        losses = process.call("autoopt.benchmark.tasks:probe_losses", timeout=60.0, steps=4)["losses"]
        assert process.call("autoopt.benchmark.tasks:largest_batch", timeout=60.0)["peak_memory_bytes"] < LIMIT
    whole = start_script("deep.py", sites=sites)
    assert losses == pytest.approx(whole.call("autoopt.benchmark.tasks:probe_losses", timeout=60.0, steps=4)["losses"])
    known = whole.call("autoopt.benchmark.tasks:facts", timeout=60.0)
    assert (facts["max_steps"], facts["steps_per_epoch"]) == (known["max_steps"], known["steps_per_epoch"])
