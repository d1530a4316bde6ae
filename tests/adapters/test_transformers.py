"""``transformers.Trainer`` as a workload: the same losses, learning rates and metrics as it has by itself."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoopt.adapters import adapt
from autoopt.benchmark.training import Training
from autoopt.errors import WorkloadError

pytestmark = pytest.mark.usefixtures("their_warnings")


def texts(samples: int) -> list[dict[str, Any]]:
    tokens = torch.randint(5, 50, (samples, 12), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": int(row[0]) % 2} for row in tokens]


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


@cache
def library() -> Any:
    """Transformers, which takes seconds to import, and its Trainer that keeps its losses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")

    class Recorded(transformers.Trainer):
        """Keeps its losses; samples in the order of the dataset, so that both loops see the same."""

        losses: list[float]

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            made = super().compute_loss(*args, **options)
            loss = made[0] if isinstance(made, tuple) else made
            self.losses.append(float(loss))
            return made

        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return SimpleNamespace(**locals())


def trainer(folder: Path, **options: Any) -> Any:
    transformers = library().transformers
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(
        vocab_size=50, max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes
    )
    given = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "warmup_steps": 2,
        "max_grad_norm": 0.5,
        "metric_for_best_model": "accuracy",
        **options,
    }
    made = library().Recorded(
        model=transformers.BertForSequenceClassification(config),
        args=transformers.TrainingArguments(
            output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", **given
        ),
        train_dataset=texts(20),
        eval_dataset=texts(10),
        compute_metrics=accuracy,
    )
    made.losses = []
    return made


def test_trains_as_it_does_by_itself(tmp_path: Path) -> None:
    theirs = trainer(tmp_path)
    theirs.train()
    expected = list(theirs.losses)
    metrics = theirs.evaluate()
    ours = trainer(tmp_path)
    workload = adapt(ours)
    run = Training(workload, device="cpu", seed=0)
    for batches in run:
        run.step(batches)
    assert ours.losses == pytest.approx(expected, rel=1e-4)
    found = run.evaluate()
    for name in ("eval_loss", "eval_accuracy"):
        assert found[name] == pytest.approx(metrics[name], rel=1e-4)
    run.close()


def test_arguments_become_setup_and_lengths(tmp_path: Path) -> None:
    workload = adapt(trainer(tmp_path, bf16=True, max_steps=7, gradient_accumulation_steps=2, dataloader_num_workers=1))
    assert workload.setup.precision.dtype == "bfloat16"
    assert (workload.max_steps, workload.max_epochs, workload.accumulation) == (7, None, 2)
    assert workload.train_data.num_workers == 1
    assert (workload.target.metric, workload.target.mode) == ("eval_accuracy", "max")  # type: ignore[union-attr]


def test_own_training_step_is_refused(tmp_path: Path) -> None:
    class Own(library().Recorded):  # type: ignore[misc]
        def training_step(self, *args: Any, **options: Any) -> Any: ...

    made = trainer(tmp_path)
    made.__class__ = Own
    with pytest.raises(WorkloadError, match="overrides training_step"):
        adapt(made)
