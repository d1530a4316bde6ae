"""Every change that has a patch on a script, whether it pays there or not: the patched script trains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoopt.export.script_patch import placed
from autoopt.records import Change, Plan, Sites
from autoopt.script.applicable import inapplicable
from autoopt_model.muon import ADAM
from scripted import REGISTRY
from tests.script.conftest import StartScript

SKIPPED = {
    "compile": "takes a minute; its line is run by the tests of compilation",
    "prepared_samples": "its example needs a dataset that has an index, which not all of these have",
    "chunked_loss": "its example names a layer of another model; test_prepared_module.py runs its lines",
}


def changes(sites: Sites) -> Iterator[tuple[Change, dict[str, str]]]:
    """Each change that may be put on a script by its patch alone, and the files as the patch leaves them."""
    for name, strategy in REGISTRY.items():
        if strategy.example is None or name in SKIPPED:
            continue
        if name == "muon" and not {site.name for site in sites.of("optimizer")} & ADAM:
            continue  # it applies to these alone
        change = Change(strategy=name, setting=strategy.example.setting)
        plan = Plan(changes=(change,))
        if inapplicable(REGISTRY.fold(plan), sites, patched=True) is None:
            found = placed(sites, plan, REGISTRY, "cpu")
            if found.patch.diff:
                yield change, found.texts


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("script", "watched", "short"),
    [
        ("plain.py", ("100000",), ("20",)),
        ("classes.py", ("100000",), ("20",)),
        ("gan.py", ("--epochs", "100000"), ("--epochs", "1")),
        ("get_batch.py", ("--max_iters=100000",), ("--max_iters=3",)),
    ],
)
def test_a_script_trains_with_each_change_that_its_patch_may_hold(
    start_script: StartScript, folder: Path, script: str, watched: tuple[str, ...], short: tuple[str, ...]
) -> None:
    sites = start_script.watch(script, *watched)
    before = {path: path.read_text() for path in folder.glob("*.py")}
    trained, failed = [], {}
    for change, texts in changes(sites):
        for name, text in texts.items():
            (folder / name).write_text(text)
        done = subprocess.run(
            [sys.executable, script, *short], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        trained.append(change.strategy)
        if done.returncode:
            failed[change.strategy] = done.stderr.strip().splitlines()[-1]
        for path, text in before.items():
            path.write_text(text)
    assert not failed
    assert len(trained) >= 4, trained
