"""From an assembled training to what the stubs need of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from autoopt.benchmark.evaluation import evaluating
from autoopt.benchmark.training import Training
from autoopt.benchmark.transfer import mover
from autoopt.simplify.parts import Parts


def parts_of(training: Training) -> Parts:
    """The parts of a training; using them and restoring them leaves the training as it was."""
    workload, setup, evaluation = training.workload, training.setup, training.evaluation
    return Parts(
        model=training.model,
        loss=training.loss,
        optimizer=training.optimizer,
        loader=training.loader.loader,
        device=training.device.torch,
        setup=setup,
        accumulation=training.lengths.accumulation,
        move=mover(training.device.torch, non_blocking=setup.transfer.non_blocking) or _as_it_is,
        step=training.one_step,
        scaler=training.scaler,
        clip_grad_norm=workload.clip_grad_norm,
        evaluate=_evaluate(training) if evaluation else None,
        valid_batches=evaluation.batches if evaluation else None,
        evaluate_every=training.evaluate_every if evaluation else None,
        checkpoint_every=setup.cadence.checkpoint_every,
        autocast=lambda: training.autocast or nullcontext(),
        schedule=training.schedule,
        forget=training.clock.start,
        user_objects={
            "loss": workload.loss,
            "model": workload.model,
            "dataset": training.loader.loader.dataset,
            "collate": training.loader.loader.collate_fn,
            "evaluate": workload.evaluate,
        },
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _evaluate(training: Training) -> Callable[[Iterable[Any]], Any]:
    """The user's evaluation on batches that are at hand."""
    workload = training.workload
    assert workload.evaluate is not None
    evaluate = workload.evaluate

    def run(batches: Iterable[Any]) -> Any:
        with evaluating(training.model), training.autocast or nullcontext():
            return evaluate(training.model, batches)

    return run
