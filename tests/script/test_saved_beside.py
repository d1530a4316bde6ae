"""A script whose checkpoints are written while it trains: timed as they are, and read back as what was saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import Change, Plan
from autoopt.records.evaluating import HeldEvaluations
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from tests.script.conftest import StartScript, sites_of

STRATEGY = load_strategies()["checkpoints"]


@pytest.mark.slow
def test_the_same_file_comes_without_waiting_for_it(start_script: StartScript, folder: Path) -> None:
    with start_script("walked.py") as process:
        sites = sites_of(process, steps=17, seconds=60.0)
    (site,) = sites.of("checkpoint")
    (setting,) = STRATEGY.settings(replace(sample_case(), sites=sites.model_copy(update={"cwd": str(folder)})))
    assert setting == {"lines": [f"walked.py:{site.line}"], "loads": []}
    found = []
    for plan in (Plan(), Plan(changes=(Change(strategy="checkpoints", setting=setting),))):
        with start_script("walked.py", sites=sites, plan=plan) as process:
            told = process.call(
                "autoopt.benchmark.tasks:evaluations", timeout=120.0, count=2, seconds=60.0, stage="checkpoint"
            )
        found.append(HeldEvaluations.model_validate(told))
    now, beside = found
    assert len(now.seconds) == len(beside.seconds) == 2
    assert now.value == beside.value == 1.0, "the file holds what was saved"
    assert now.metric == beside.metric
