"""``transformers.Trainer`` as a workload: model, arguments, collator, optimizer, schedule and metrics."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from autoopt.errors import WorkloadError
from autoopt.setup import Setup
from autoopt.workload import Target, Workload


def workload(trainer: Any) -> Workload:
    """The run that ``trainer.train()`` would do, in parts.

    Raises:
        WorkloadError: it trains in a way that has no equivalent workload.
    """
    args = trainer.args
    _refuse(trainer, args)
    if getattr(args, "gradient_checkpointing", False):
        trainer.model.gradient_checkpointing_enable(getattr(args, "gradient_checkpointing_kwargs", None))
    return Workload(
        model=trainer.model,
        train_data=_loader(trainer, trainer.train_dataset, args.train_batch_size, "Training"),
        loss=Loss(trainer),
        optimizer=trainer.create_optimizer(),
        scheduler=_scheduler(trainer, args),
        valid_data=_valid_loader(trainer, args),
        evaluate=Evaluate(trainer) if trainer.eval_dataset is not None else None,
        target=_target(trainer, args),
        max_epochs=args.num_train_epochs if args.max_steps <= 0 else None,
        max_steps=args.max_steps if args.max_steps > 0 else None,
        evaluate_every=_evaluate_every(args),
        accumulation=args.gradient_accumulation_steps,
        clip_grad_norm=args.max_grad_norm or None,
        setup=_setup(args),
        name=type(trainer.model).__name__,
        adapter="transformers",
    )


def _refuse(trainer: Any, args: Any) -> None:
    from transformers import Trainer

    whys = {
        "it trains with DeepSpeed": getattr(args, "deepspeed", None),
        "it trains with FSDP": getattr(args, "fsdp", None),
        f"it trains with {args.world_size} processes": args.world_size > 1,
        f"it trains on {args.n_gpu} devices at once": args.n_gpu > 1,
        "it has no train_dataset": trainer.train_dataset is None,
        "its model is made by model_init for each trial": trainer.model is None,
        f"{type(trainer).__name__} overrides training_step": type(trainer).training_step is not Trainer.training_step,
    }
    for why, holds in whys.items():
        if holds:
            raise WorkloadError(
                f"this transformers.Trainer cannot become a workload: {why}",
                hint="return an autoopt.Workload with the loss, the optimizer and the data instead",
            )


def _loader(trainer: Any, dataset: Any, size: int, description: str, **options: Any) -> DataLoader[Any]:
    """A loader as the Trainer makes it: without the columns that the model does not take.

    Args:
        options: of the loader, over the Trainer's own.
    """
    read, collate = dataset, trainer.data_collator
    if hasattr(dataset, "column_names"):
        if hasattr(trainer, "_remove_unused_columns"):
            read = trainer._remove_unused_columns(dataset, description=description.lower())
    elif hasattr(trainer, "_get_collator_with_removed_columns"):
        collate = trainer._get_collator_with_removed_columns(collate, description=description)
    args = trainer.args
    own = {
        "num_workers": args.dataloader_num_workers,
        "pin_memory": bool(args.dataloader_pin_memory) and torch.cuda.is_available(),
        "drop_last": args.dataloader_drop_last,
    }
    if args.dataloader_num_workers:
        own["prefetch_factor"] = args.dataloader_prefetch_factor
        own["persistent_workers"] = args.dataloader_persistent_workers
    options = {**own, **options}
    if description == "Training" and not isinstance(read, IterableDataset):
        # the Trainer's own, such as one that groups samples by length; random order by default
        make: Any = getattr(trainer, "_get_train_sampler", None) or RandomSampler
        options["sampler"] = make(read) if inspect.signature(make).parameters else make()
    return DataLoader(read, batch_size=size, collate_fn=collate, **options)


def _valid_loader(trainer: Any, args: Any) -> DataLoader[Any] | None:
    dataset = trainer.eval_dataset
    if dataset is None:
        return None
    if isinstance(dataset, dict):
        raise WorkloadError(
            f"eval_dataset is a dict of {len(dataset)} datasets", hint="give the one that the target is measured on"
        )
    return _loader(trainer, dataset, args.eval_batch_size, "Evaluation", drop_last=False)


class Loss:
    """``loss(model, batch)`` as the Trainer computes it; its ``compute_loss`` may be overridden."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = self._trainer.compute_loss(model, dict(batch))
        return loss


def _scheduler(trainer: Any, args: Any) -> Any:
    given = trainer.lr_scheduler
    if given is not None:
        factors = getattr(given, "lr_lambdas", None)
        if factors is None:
            raise WorkloadError(
                f"the Trainer was given a {type(given).__name__} that is bound to its optimizer",
                hint="set lr_scheduler_type in TrainingArguments instead, so that it can be made anew",
            )
        return lambda optimizer, total_steps: torch.optim.lr_scheduler.LambdaLR(optimizer, factors)

    def make(optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        from transformers import get_scheduler

        return get_scheduler(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(total_steps),
            num_training_steps=total_steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )

    return make


def _setup(args: Any) -> Setup:
    setup = Setup()
    if args.bf16:
        setup = setup.with_precision(dtype="bfloat16")
    if args.fp16:
        setup = setup.with_precision(dtype="float16", loss_scaling=True)
    if args.tf32:
        setup = setup.with_precision(matmul="high")
    if args.torch_compile:
        setup = setup.with_compile(mode=args.torch_compile_mode)
    return setup


def _evaluate_every(args: Any) -> int | None:
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    return int(args.eval_steps) if strategy == "steps" and args.eval_steps and args.eval_steps >= 1 else None


def _target(trainer: Any, args: Any) -> Target | None:
    if trainer.eval_dataset is None:
        return None
    metric = args.metric_for_best_model or "eval_loss"
    metric = metric if metric.startswith("eval_") else f"eval_{metric}"
    better = args.greater_is_better
    if better is None:
        better = not metric.endswith("loss")
    return Target(metric, mode="max" if better else "min")


class Evaluate:
    """``evaluate(model, batches)`` with the names that the Trainer reports, such as ``eval_loss``."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __call__(self, model: Any, batches: Any) -> dict[str, float]:
        from transformers.trainer_pt_utils import nested_concat, nested_detach, nested_numpify
        from transformers.trainer_utils import EvalPrediction

        detached: Any = nested_detach  # they have no annotations
        concatenated: Any = nested_concat
        trainer, losses, samples = self._trainer, 0.0, 0
        every: Any = None
        for batch in batches:
            names = [name for name in trainer.label_names if name in batch]
            loss, outputs = trainer.compute_loss(model, dict(batch), return_outputs=True)
            count = next(len(value) for value in batch.values() if isinstance(value, torch.Tensor))
            losses += float(loss) * count
            samples += count
            if trainer.compute_metrics is None:
                continue
            parts = [v for k, v in outputs.items() if k != "loss"] if hasattr(outputs, "items") else outputs[1:]
            logits = detached(parts[0] if len(parts) == 1 else tuple(parts))
            labels = batch[names[0]] if len(names) == 1 else tuple(batch[name] for name in names)
            if trainer.preprocess_logits_for_metrics is not None:
                logits = trainer.preprocess_logits_for_metrics(logits, labels)
            now = (logits, labels)
            every = now if every is None else concatenated(every, now, padding_index=-100)
        metrics = {"eval_loss": losses / samples}
        if every is not None:
            found = trainer.compute_metrics(EvalPrediction(*map(nested_numpify, every)))
            metrics |= {name if name.startswith("eval_") else f"eval_{name}": value for name, value in found.items()}
        return metrics
