"""The exported YAML as LightningCLI takes it: ``python script.py fit --config trainer.yaml``, with the callback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autoopt.cli import main
from autoopt.export.targets import snippets
from autoopt.records import Change, Plan, Result
from autoopt.registry import load_strategies

GOLDEN = Path(__file__).parents[1] / "golden"
EXAMPLES = Path(__file__).parents[2] / "examples"
PLAN = Plan(
    changes=(
        Change(strategy="channels_last", setting={}),
        Change(strategy="amp", setting={"dtype": "bfloat16"}),
        Change(strategy="accumulation", setting={"size": 16, "accumulation": 2}),
        Change(strategy="threads", setting={"threads": 1}),
    )
)
SCRIPT = """
import json, sys
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningCLI
from lightning_digits import Classifier, Digits

class Look(Callback):
    seen = {}

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.seen["size"] = self.seen.get("size") or len(batch[0])
        self.seen["channels_last"] = module.layers[0].weight.is_contiguous(memory_format=torch.channels_last)

class Cli(LightningCLI):
    def add_arguments_to_parser(self, parser):
        parser.set_defaults({"trainer.logger": False, "trainer.enable_checkpointing": False})

look = Look()
cli = Cli(Classifier, Digits, trainer_defaults={"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False,
                                                "callbacks": [look]}, save_config_callback=None)
trainer = cli.trainer
print("SEEN", json.dumps({**look.seen, "threads": torch.get_num_threads(), "precision": trainer.precision,
                          "accumulation": trainer.accumulate_grad_batches, "steps": trainer.global_step}))
"""


@pytest.mark.slow
def test_lightning_cli_trains_with_what_was_exported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    pytest.importorskip("jsonargparse")
    document = Result.model_validate_json((GOLDEN / "win.json").read_text())
    document = document.model_copy(
        update={
            "best": document.best.model_copy(update={"plan": PLAN}),
            "snippets": snippets(PLAN, load_strategies()),
            "reproduce": document.reproduce.model_copy(update={"strategies": ()}),
        }
    )
    (tmp_path / "result.json").write_text(document.model_dump_json())
    yaml, code = tmp_path / "trainer.yaml", tmp_path / "optimized_trainer.py"
    words = ["export", str(tmp_path), "--to", "lightning", "--code", str(code), "--out", str(yaml)]
    assert main(words) == 0
    assert "by hand" not in capfd.readouterr().err
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py", "fit", "--config", "trainer.yaml"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{EXAMPLES}:{tmp_path}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    seen = json.loads(line.removeprefix("SEEN "))
    assert seen == {
        "size": 16,
        "channels_last": True,
        "threads": 1,
        "precision": "bf16-mixed",
        "accumulation": 2,
        "steps": 45,
    }
