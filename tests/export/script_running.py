"""Runs an exported script, and the training of a trial next to it, inside the test's own process."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

from autoopt.benchmark.facts import workload_facts
from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.loading import importing, validation
from autoopt.records import Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import Registry, load_strategies
from modules import module_of

SEED = 3


def loaded(text: str, folder: Path) -> ModuleType:
    """A script as a module."""
    path = folder / "optimized_train.py"
    path.write_text(text)
    return module_of(path)


def script_losses(module: ModuleType, *words: str) -> tuple[list[float], list[float]]:
    """Losses and accuracies of the whole run of a script, with these arguments, on the CPU."""
    threads = torch.get_num_threads()
    args = module.arguments(["--device", "cpu", *words])
    losses, metrics = [], []
    for _, loss, found in module.train(args):
        losses.append(float(loss))
        metrics += [found["accuracy"]] if found else []
    torch.set_num_threads(threads)
    return losses, metrics


def training(spec: str, plan: Plan, registry: Registry) -> Training:
    seed_everything(SEED)
    workload = validation.build(importing.load(spec))
    return Training(workload, registry.fold(plan, workload.setup), device="cpu", seed=SEED)


def facts_of(spec: str) -> WorkloadFacts:
    assembled = training(spec, Plan(), load_strategies())
    try:
        return workload_facts(assembled, spec)
    finally:
        assembled.close()


def trial_losses(spec: str, plan: Plan, registry: Registry) -> tuple[list[float], list[float]]:
    """Losses and accuracies of the engine's own loop."""
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    run = training(spec, plan, registry)
    losses, metrics = [], []
    for batches in run:
        losses.append(float(run.step(batches)))
        if run.evaluation and (run.steps % run.evaluate_every == 0 or run.steps == run.total_steps):
            metrics.append(run.evaluate()["accuracy"])
    run.close()
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    return losses, metrics
