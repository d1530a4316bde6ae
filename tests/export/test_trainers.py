"""Exports to Trainers: their code, run by themselves, and arguments that they take; nothing is dropped silently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sample
from autoopt.cli import main
from autoopt.errors import UsageError
from autoopt.export import export
from autoopt.export.targets import snippets, trainer_code
from autoopt.records import Change, Plan, Result
from autoopt.registry import load_strategies
from modules import module_of, run_python
from scripted import BF16, FUSED, LAYOUT, THREADS

EXAMPLES = Path(__file__).parents[2] / "examples"
KEPT = Change(strategy="prepared_samples", setting={"form": "samples", "where": "memory"})
INDEXED = Change(strategy="prepared_samples", setting={"form": "batches", "where": "dataset", "index": "list"})
CHANGES = (
    KEPT,  # its own helpers are copied as well
    Change(strategy="workers", setting={"num_workers": 1, "persistent_workers": True}),
    LAYOUT,
    FUSED,
    BF16,
    Change(strategy="batch_size", setting={"size": 64, "learning_rate_factor": 2.0, "warmup_steps": 5}),
    THREADS,
)


@pytest.fixture(autouse=True)
def threads(their_warnings: None) -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def result(changes: tuple[Change, ...] = CHANGES) -> Result:
    document, plan = sample.win(), Plan(changes=changes)
    best = document.best.model_copy(update={"plan": plan})
    asked = document.reproduce.model_copy(update={"strategies": ()})
    return document.model_copy(update={"best": best, "snippets": snippets(plan, load_strategies()), "reproduce": asked})


def written(folder: Path, target: str, changes: tuple[Change, ...] = CHANGES) -> Any:
    path = folder / "optimized_trainer.py"
    path.write_text(trainer_code(result(changes), target, load_strategies()).text)
    return module_of(path)


QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
QUIET |= {"accelerator": "cpu"}


def trainer(**options: Any) -> Any:
    """Lightning's, which writes nothing."""
    return pytest.importorskip("lightning").Trainer(**QUIET, **options)


def looking(seen: dict[str, Any]) -> Any:
    """A callback that notes what a training is made of."""
    lightning = pytest.importorskip("lightning")

    class Look(lightning.Callback):  # type: ignore[name-defined,misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
            seen.setdefault("size", len(batch[0]))
            weight = pl_module.layers[0].weight
            seen["channels_last"] = weight.is_contiguous(memory_format=torch.channels_last)

    return Look()


@pytest.mark.parametrize("target", ["lightning", "transformers"])
def test_code_and_arguments_hold_the_whole_plan(target: str, tmp_path: Path) -> None:
    code = trainer_code(result(), target, load_strategies())
    text, notes = export(result(), target, code=code, module="optimized_trainer")
    assert notes == code.notes == ()
    assert ("optimized_trainer.Optimized" in text) == (target == "lightning")
    assert "warmup" not in text
    path = tmp_path / "optimized_trainer.py"
    path.write_text(code.text)
    for check in ("check --select E,F,I", "format --check"):
        done = run_python("-m", "ruff", *check.split(), "--line-length", "120", path, codes=(0, 1))
        assert done.returncode == 0, done.stdout
    assert "autoopt." not in code.text.replace("autoopt measured", "")


def test_lightning_trains_with_the_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    module, seen = written(tmp_path, "lightning"), dict[str, Any]()
    example = module_of(EXAMPLES / "lightning_digits.py")
    fitted = trainer(max_epochs=2, precision="bf16-mixed", callbacks=[module.Optimized(), looking(seen)])
    fitted.fit(example.Classifier(width=4), example.Digits())
    assert seen == {"size": 64, "channels_last": True}
    assert (fitted.optimizers[0].param_groups[0]["fused"], fitted.train_dataloader.num_workers) == (True, 1)
    assert fitted.lr_scheduler_configs[0].scheduler.total_steps == 2 * 23
    assert torch.get_num_threads() == 1
    assert fitted.callback_metrics["accuracy"] > 0.3


def test_lightning_says_where_the_loader_is_out_of_reach(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    module = written(tmp_path, "lightning")
    example = module_of(EXAMPLES / "lightning_digits.py")
    data = example.Digits()
    data.setup("fit")
    with pytest.raises(RuntimeError, match="give fit"):
        trainer(max_epochs=1, callbacks=[module.Optimized()]).fit(example.Classifier(width=4), data.train_dataloader())


@pytest.mark.slow
def test_transformers_trains_with_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    batch = Change(strategy="batch_size", setting={"size": 64, "learning_rate_factor": 2.0, "warmup_steps": 0})
    module = written(tmp_path, "transformers", (THREADS, KEPT, batch))
    example = module_of(EXAMPLES / "hf_text.py")
    trainer = example.build()
    trainer.train_dataset.places = trainer.train_dataset.places[:128]
    trainer.args.max_steps, trainer.args.eval_strategy = 4, transformers.trainer_utils.IntervalStrategy.NO
    rates: list[float] = []
    assert module.optimized(trainer) is trainer
    create = trainer.create_optimizer

    def spied(*args: Any, **keywords: Any) -> Any:
        optimizer = create(*args, **keywords)
        optimizer.register_step_pre_hook(lambda o, *rest: rates.append(o.param_groups[0]["lr"]))
        optimizer.register_step_post_hook(lambda o, *rest: rates.append(o.param_groups[0]["lr"]))
        return optimizer

    trainer.create_optimizer = spied
    trainer.train()
    assert type(trainer.train_dataset).__name__ == "KeptSamples"
    assert torch.get_num_threads() == 1
    stepped, after = rates[::2], rates[1::2]
    assert stepped == [2 * rate for rate in after]
    assert len(stepped) == 4


@pytest.mark.parametrize(
    ("target", "change"),
    [
        ("lightning", Change(strategy="pin_memory", setting={"non_blocking": True, "prefetch": 2})),
        ("transformers", INDEXED),
    ],
)
def test_what_code_cannot_do_whole_is_left_out_and_said(target: str, change: Change) -> None:
    changes = (change, THREADS)
    code = trainer_code(result(changes), target, load_strategies())
    assert code.covered == {"threads"}
    _, (note,) = export(result(changes), target, code=code, module="m")
    assert note.startswith(change.strategy)


def test_variables_of_the_environment_are_said() -> None:
    changes = (Change(strategy="allocator", setting={"expandable_segments": True}),)
    code = trainer_code(result(changes), "lightning", load_strategies())
    assert code.notes == ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True must stand in the environment",)
    assert "# Not here: PYTORCH_CUDA_ALLOC_CONF" in code.text
    with pytest.raises(UsageError, match="no code for accelerate"):
        trainer_code(result(), "accelerate", load_strategies())


def test_the_command_writes_both(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text(result().model_dump_json())
    code = tmp_path / "optimized_trainer.py"
    words = ["export", str(tmp_path), "--to", "lightning", "--code", str(code)]
    assert main(words) == 0
    assert "class_path" in capfd.readouterr().out
    assert "class Optimized" in code.read_text()
    assert main([*words[:-1], str(tmp_path / "not importable.py")]) == 2
    assert "cannot be imported" in capfd.readouterr().err
    assert main([*words[:2], "--to", "accelerate", "--code", str(code)]) == 2


ARGUED = (
    Change(strategy="workers", setting={"num_workers": 2}),
    BF16,
    Change(strategy="accumulation", setting={"size": 4, "accumulation": 2}),
    THREADS,
)


def test_every_change_is_in_the_text_or_in_the_notes() -> None:
    for target in ("lightning", "transformers", "accelerate"):
        text, notes = export(result(ARGUED), target)
        keys = {"lightning": "bf16-mixed", "transformers": '"bf16": true', "accelerate": 'mixed_precision: "bf16"'}
        assert keys[target] in text
        assert any(note.startswith("threads") for note in notes), notes
        assert target == "transformers" or any(note.startswith("workers") for note in notes)


def test_strategy_without_a_recipe_is_said() -> None:
    document = result(ARGUED).model_copy(update={"snippets": ()})
    text, notes = export(document, "lightning")
    assert len(notes) == len(ARGUED)
    assert "trainer: {}" in text


def test_lightning_trainer_takes_it() -> None:
    yaml = pytest.importorskip("yaml")
    made = trainer(**yaml.safe_load(export(result(ARGUED), "lightning")[0])["trainer"])
    assert made.precision == "bf16-mixed"
    assert made.accumulate_grad_batches == 2


def test_transformers_arguments_take_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text, _ = export(result(ARGUED), "transformers")
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps({**json.loads(text), "output_dir": str(tmp_path), "use_cpu": True}))
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (arguments,) = parser.parse_json_file(str(path))
    assert arguments.bf16
    assert arguments.dataloader_num_workers == 2
    assert arguments.gradient_accumulation_steps == 2


def test_accelerate_reads_its_file(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    text, notes = export(result(ARGUED), "accelerate")
    path = tmp_path / "accelerate.yaml"
    path.write_text(text)
    config = load_config_from_file(str(path))
    assert config.mixed_precision == "bf16"
    assert any("Accelerator(gradient_accumulation_steps=2)" in note for note in notes)


def test_pytorch_gives_the_runs_own_script(tmp_path: Path) -> None:
    document = result(ARGUED)
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


LISTED = (LAYOUT, BF16, Change(strategy="accumulation", setting={"size": 16, "accumulation": 2}), THREADS)


@pytest.mark.slow
def test_lightning_cli_trains_with_what_was_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = pytest.importorskip("lightning.pytorch.cli").LightningCLI
    pytest.importorskip("jsonargparse")
    (tmp_path / "result.json").write_text(result(LISTED).model_dump_json())
    yaml, code = tmp_path / "trainer.yaml", tmp_path / "listed_trainer.py"
    assert main(["export", str(tmp_path), "--to", "lightning", "--code", str(code), "--out", str(yaml)]) == 0
    assert "by hand" not in capfd.readouterr().err
    monkeypatch.syspath_prepend(tmp_path)
    example, seen = module_of(EXAMPLES / "lightning_digits.py"), dict[str, Any]()
    trained = command(
        example.Classifier,
        example.Digits,
        trainer_defaults={**QUIET, "max_epochs": 1, "callbacks": [looking(seen)]},
        save_config_callback=None,
        args=["fit", "--config", str(yaml)],
    ).trainer
    assert (seen["size"], seen["channels_last"], torch.get_num_threads()) == (16, True, 1)
    assert (trained.precision, trained.accumulate_grad_batches, trained.global_step) == ("bf16-mixed", 2, 45)
