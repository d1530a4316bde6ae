"""Exports to other trainers: read and accepted by those libraries, nothing dropped silently."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from autoopt.errors import UsageError
from autoopt.export import export
from autoopt.export.targets import snippets
from autoopt.records import Change, Plan, Result
from autoopt.registry import load_strategies

GOLDEN = Path(__file__).parents[1] / "golden"
CHANGES = (
    Change(strategy="workers", setting={"num_workers": 2}),
    Change(strategy="amp", setting={"dtype": "bfloat16"}),
    Change(strategy="accumulation", setting={"size": 4, "accumulation": 2}),
    Change(strategy="threads", setting={"threads": 1}),
)


def result(changes: tuple[Change, ...] = CHANGES) -> Result:
    document = Result.model_validate(json.loads((GOLDEN / "win.json").read_text()))
    plan = Plan(changes=changes)
    best = document.best.model_copy(update={"plan": plan})
    return document.model_copy(update={"best": best, "snippets": snippets(plan, load_strategies())})


def test_every_change_is_in_the_text_or_in_the_notes() -> None:
    for target in ("lightning", "transformers", "accelerate"):
        text, notes = export(result(), target)
        keys = {"lightning": "bf16-mixed", "transformers": '"bf16": true', "accelerate": 'mixed_precision: "bf16"'}
        assert keys[target] in text
        assert any(note.startswith("threads") for note in notes), notes
        assert target == "transformers" or any(note.startswith("workers") for note in notes)


def test_strategy_without_a_recipe_is_said() -> None:
    document = result().model_copy(update={"snippets": ()})
    text, notes = export(document, "lightning")
    assert len(notes) == len(CHANGES)
    assert "trainer: {}" in text


def test_lightning_trainer_takes_it() -> None:
    yaml = pytest.importorskip("yaml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning")
        text, _ = export(result(), "lightning")
        trainer = lightning.Trainer(
            **yaml.safe_load(text)["trainer"], accelerator="cpu", logger=False, enable_checkpointing=False
        )
    assert trainer.precision == "bf16-mixed"
    assert trainer.accumulate_grad_batches == 2


def test_transformers_arguments_take_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        text, _ = export(result(), "transformers")
        path = tmp_path / "arguments.json"
        path.write_text(json.dumps({**json.loads(text), "output_dir": str(tmp_path), "use_cpu": True}))
        parser = transformers.HfArgumentParser(transformers.TrainingArguments)
        (arguments,) = parser.parse_json_file(str(path))
    assert arguments.bf16
    assert arguments.dataloader_num_workers == 2
    assert arguments.gradient_accumulation_steps == 2


def test_accelerate_reads_its_file(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("accelerate")
        from accelerate.commands.config.config_args import load_config_from_file

        text, notes = export(result(), "accelerate")
        path = tmp_path / "accelerate.yaml"
        path.write_text(text)
        config = load_config_from_file(str(path))
    assert config.mixed_precision == "bf16"
    assert any("Accelerator(gradient_accumulation_steps=2)" in note for note in notes)


def test_pytorch_gives_the_runs_own_script(tmp_path: Path) -> None:
    document = result()
    document = document.model_copy(
        update={"reproduce": document.reproduce.model_copy(update={"run_directory": str(tmp_path)})}
    )
    with pytest.raises(UsageError, match=r"optimized_train\.py"):
        export(document, "pytorch")
    (tmp_path / "optimized_train.py").write_text("# Not in this script: a hook\nprint()\n")
    assert export(document, "pytorch") == ("# Not in this script: a hook\nprint()\n", ("Not in this script: a hook",))
    elsewhere = tmp_path / "moved"
    elsewhere.mkdir()
    (elsewhere / "optimized_train.py").write_text("print(1)\n")
    assert export(document, "pytorch", directory=elsewhere) == ("print(1)\n", ())
    with pytest.raises(UsageError, match="there is no target"):
        export(document, "keras")
