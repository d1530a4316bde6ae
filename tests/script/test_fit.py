"""Scripts that do not fit into a device's memory: watched all the same, and their first process as a run starts it."""

from __future__ import annotations

import pytest

from autoopt.errors import TrialFailed
from tests.script.conftest import StartScript, sites_of

LIMIT = 3 << 20


def test_a_script_that_does_not_fit_is_watched_in_little_memory(start_script: StartScript) -> None:
    with pytest.raises(TrialFailed) as failed:
        start_script("deep.py", memory_limit=LIMIT)
    assert failed.value.kind == "out_of_memory"
    process = start_script("deep.py", memory_limit=LIMIT, lean=True)
    sites = sites_of(process)
    facts = process.call("autoopt.benchmark.tasks:facts", timeout=60.0)
    fits = start_script("deep.py")
    seen = [[each.model_copy(update={"seconds_per_step": None}) for each in s.sites] for s in (sites, sites_of(fits))]
    assert seen[0] == seen[1]
    known = fits.call("autoopt.benchmark.tasks:facts", timeout=60.0)
    assert {**facts, "available_ram_bytes": 0} == {**known, "available_ram_bytes": 0}


def test_it_trains_the_same(start_script: StartScript) -> None:
    task = "autoopt.benchmark.tasks:probe_losses"
    lean = start_script("deep.py", memory_limit=LIMIT, lean=True).call(task, timeout=60.0, steps=4)
    assert lean["losses"] == start_script("deep.py").call(task, timeout=60.0, steps=4)["losses"]
