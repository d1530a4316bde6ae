"""Distributed data parallel: the batch is shared out between processes, which average their gradients."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import COMPUTE, declared, gain, ranged, seconds_of
from autoopt_strategies.trying import Setting, Settings, until_kept

INPUT = ("storage", "preparation", "collate", "pin", "copy")
CONFLICTS = {
    "optimizer_in_backward": "updates within the backward pass come before gradients are averaged",
    "cuda_graphs": "a step that is replayed as a whole sends no gradients",
}
"""Changes that several processes cannot have."""


def synchronized(model: Any) -> Any:
    """The model with BatchNorm over the samples of all processes."""
    from torch import nn

    return nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]


class DistributedDataParallel(Strategy):
    """Trains in several processes, each on a device of its own, or on its share of a CPU's cores.

    What it does: ``DistributedDataParallel`` over as many processes as pay; each takes its share of the same batches
        in the same order, with no sample padded or read twice, and the gradient is that of the whole batch.
    When it helps: several devices, and steps that take far longer than sending the gradients; on a CPU, where one
        process cannot keep all cores busy.
    When it does not: small batches, large models on a slow link, and an input that is short of cores already.
    What it costs: as many devices, and their price. BatchNorm is made to see all samples (CUDA), which costs a
        message for each; where it cannot be (CPU) the strategy is refused.
    Source: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    name = "ddp"
    title = "training in several processes"
    stages = frozenset({"storage", "preparation", "collate", "forward", "backward"})
    risk = Risk.NUMERIC
    example = Example({"processes": 2}, processes=2, losses=1e-5, trains=False)

    def applies(self, case: Case) -> Applies:
        facts, most = case.workload, case.processes
        if facts.processes > 1:
            return Applies.no(f"the script is started in {facts.processes} processes already")
        if most < 2:
            return Applies.no("one process was asked for; --nproc 1..N lets up to N be tried")
        if case.setup.distributed.processes > 1:
            return Applies.no(f"training is in {case.setup.distributed.processes} processes already")
        if facts.adapter is not None:
            return Applies.no(f"a workload of {facts.adapter} starts its processes in its own way")
        if not facts.dataset.map_style:
            return Applies.no("an iterable dataset cannot be shared out from outside")
        if facts.loader.own_loader and facts.batch_size is None:
            return Applies.no("the loader does not batch, so that a batch cannot be shared out")
        if (facts.batch_size or most) < 2:
            return Applies.no("a batch of one sample cannot be shared out")
        if facts.model.has_batchnorm and case.device != "cuda":
            return Applies.no("BatchNorm would see each process's samples alone, and can see all on CUDA only")
        for name, reason in CONFLICTS.items():
            if case.plan.setting(name) is not None:
                return Applies.no(f"{name} is in the plan: {reason}")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Each process has its share of the samples; what sending costs is not known before it was tried."""
        if case.pipeline is None:
            return None
        count = setting["processes"]
        if case.device == "cpu":
            known = case.pipeline.round.simulation
            table, now = (known.compute_by_threads, known.threads) if known is not None else ({}, 0)
            fewer = table.get(max(1, now // count))  # with the threads that each process has; as now where unknown
            slower = fewer / table[now] if fewer and table.get(now) else 1.0
            found = gain(case, {name: seconds_of(case, name) * slower / count for name in COMPUTE})
        else:
            found = gain(case, {name: seconds_of(case, name) / count for name in (*COMPUTE, *INPUT)})
        return None if found is None else ranged(declared(found) or found, found.value, min(0.2, found.low), found.high)

    def settings(self, case: Case) -> Settings:
        count = min(case.processes, case.workload.batch_size or case.processes)
        others = {"find_unused": True} if case.inspected(self.name).get("unused") else {}
        others |= {"synchronized": True} if case.workload.model.has_batchnorm else {}
        halved = (count >> halvings for halvings in range(count.bit_length() - 1))
        return until_kept({"processes": fewer, **others} for fewer in halved)

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        setup = setup.with_distributed(processes=setting["processes"], find_unused=setting.get("find_unused", False))
        return setup.with_model(synchronized) if setting.get("synchronized") else setup

    def recipe(self, setting: Setting) -> Recipe:
        count, unused = setting["processes"], setting.get("find_unused", False)
        before = "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)\n" if setting.get("synchronized") else ""
        option = ", find_unused_parameters=True" if unused else ""
        return Recipe(
            pytorch=(
                f"# torchrun --standalone --nproc-per-node {count} train.py\n"
                f"{before}model = DistributedDataParallel(model{option})\n"
                f"# each process trains on its {count}th of every batch"
            ),
            lightning={
                "devices": count,
                "strategy": "ddp_find_unused_parameters_true" if unused else "ddp",
                "sync_batchnorm": bool(setting.get("synchronized")),
                "_note": f"batch_size is that of each process: a {count}th of yours",
            },
            transformers={
                "ddp_find_unused_parameters": unused,
                "_note": f"torchrun --nproc-per-node {count}; per_device_train_batch_size is a {count}th of yours",
            },
            accelerate={"distributed_type": "MULTI_GPU", "num_processes": count},
        )

    def inspect(self, live: Any) -> Setting:
        """Names of parameters that a step leaves without a gradient, where several processes may train."""
        return {"unused": live.training.unused_parameters()}


# Questions that strategies of several processes ask of a case.


def replicated(case: Case) -> Applies:
    """Yes where the incumbent trains in several processes, each with the whole model."""
    if case.workload.processes > 1 and case.workload.wrapped is None:
        return Applies.no("the script makes no DistributedDataParallel, whose arguments could be changed")
    if case.workload.wrapped is not None:
        return Applies.yes()
    if case.setup.distributed.processes < 2:
        return Applies.no("training is in one process, which has nobody to send gradients to")
    if case.setup.distributed.fully_sharded is not None:
        return Applies.no("parameters are shared out between the processes, which send them in another way")
    return Applies.yes()


def wrapped(case: Case, option: str) -> Any:
    """An argument of the ``DistributedDataParallel`` that a script makes by itself; None where it makes none."""
    return None if case.workload.wrapped is None else case.workload.wrapped.get(option)


def described(case: Case) -> Applies:
    """No where a script's own lines make the processes and what they share out."""
    if case.workload.processes > 1:
        return Applies.no("the script's own lines say what its processes share out: it needs build()")
    return Applies.yes()


def gradient_bytes(case: Case) -> int:
    """Bytes of the gradients that each process sends in a step."""
    model = case.workload.model
    each = model.parameter_bytes / model.parameters if model.parameters else 4.0
    share = model.trainable_parameters / model.parameters if model.parameters else 1.0
    return int((case.workload.parameters or 0) * share * each)
