"""Scripts whose loop lies in a library: found, measured, and patched at the arguments of its Trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.export.script_patch import patch_of
from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from tests.script.conftest import StartScript, sites_of
from tests.script.test_sites import line_of

WORKERS = Change(strategy="workers", setting={"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True})
BFLOAT16 = Change(strategy="amp", setting={"dtype": "bfloat16"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "made", "wanted"),
    [
        (
            "trainer_transformers.py",
            "arguments = TrainingArguments(",
            {
                "dataloader_num_workers=1,",
                "dataloader_prefetch_factor=2,",
                "dataloader_persistent_workers=True,",
                "bf16=True,",
            },
        ),
        (
            "trainer_lightning.py",
            "trainer = L.Trainer(",
            {"num_workers=1", "persistent_workers=True", 'precision="bf16-mixed"'},
        ),
    ],
)
def test_the_arguments_of_a_trainer_are_what_is_patched(
    start_script: StartScript, folder: Path, script: str, made: str, wanted: tuple[str, ...]
) -> None:
    pytest.importorskip("transformers" if "transformers" in script else "lightning")
    with start_script(script) as process:
        sites = sites_of(process)
    (trainer,) = sites.of("trainer")
    assert trainer.line == line_of(script, made)
    assert len(sites.of("loader_training")) == len(sites.of("model")) == 1
    plan = Plan(changes=(WORKERS, BFLOAT16))
    with start_script(script, sites=sites, plan=plan) as process:
        assert process.ready.facts.max_steps == 100000
        block = process.call("autoopt.benchmark.tasks:run_block", timeout=60.0, seconds=0.0, min_steps=8)
    assert block["samples"] == 8 * 16
    patch = patch_of(sites, plan, load_strategies([]), "cpu")
    assert [change.how for change in patch.changes] == ["patched", "patched"]
    added = " ".join(line[1:] for line in patch.diff.splitlines() if line.startswith("+"))
    assert all(argument in added for argument in wanted)


@pytest.mark.slow
def test_a_loader_that_a_library_rebuilds_is_patched_where_the_user_makes_it(
    start_script: StartScript, folder: Path
) -> None:
    pytest.importorskip("accelerate")
    with start_script("prepared.py") as process:
        sites = sites_of(process)
    (loader,) = sites.of("loader_training")
    assert loader.line == line_of("prepared.py", "loader = DataLoader(")
    assert loader.direct
    plan = Plan(changes=(WORKERS,))
    with start_script("prepared.py", sites=sites, plan=plan) as process:
        assert process.ready.facts.loader.num_workers == 1
        block = process.call("autoopt.benchmark.tasks:run_block", timeout=60.0, seconds=0.0, min_steps=8)
    assert block["samples"] == 8 * 16, "it reads a batch ahead"
    both = Plan(changes=(WORKERS, BFLOAT16))
    changes = patch_of(sites, both, load_strategies([]), "cpu").changes
    lines = [loader.line, line_of("prepared.py", "accelerator = Accelerator(")]
    assert [(change.how, change.line) for change in changes] == [("patched", line) for line in lines]
