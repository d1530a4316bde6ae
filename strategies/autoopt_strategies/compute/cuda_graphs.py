"""CUDA graphs: the whole step recorded once, and replayed by one launch."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import COMPUTE, at_most, busy_share, gain, issued, seconds_of
from autoopt_strategies.trying import ChangedOptimizer, Setting

RECORDABLE = frozenset({"Adam", "AdamW", "SGD"})
"""Optimizers of torch's whose update can read its learning rate, and keep its count of steps, on the device."""


class CudaGraphs(Strategy):
    """Replays whole training steps as CUDA graphs.

    What it does: records one step (forward, backward, clipping, optimizer) after a few that run as they are, and
        launches it at once. Batches of another shape, and evaluation, run as before; the schedule moves on next to
        the graph.
    When it helps: many short kernels, so that the device waits for their launches.
    When it does not: long kernels; a step that waits for the device (``.item()``, a gradient scaler), branches
        on values, or counts in Python cannot be recorded; optimizers other than torch's Adam, AdamW and SGD, next to
        which ``compile`` in the mode ``reduce-overhead`` replays forward and backward alone.
    What it costs: memory of its own for all activations; inputs are copied into it.
    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """

    name = "cuda_graphs"
    title = "CUDA graphs"
    stages = frozenset({"forward", "backward", "optimizer", "host"})
    risk = Risk.NUMERIC
    after = frozenset({"amp", "channels_last", "flash_attention", "checkpointing", "fused_optimizer"})
    example = Example({"whole": True}, device="cuda:0")

    def applies(self, case: Case) -> Applies:
        if case.device != "cuda":
            return Applies.no(f"CUDA graphs need a CUDA device; the device is {case.device}")
        if case.workload.static_shapes is False:
            return Applies.no("shapes change from batch to batch, and a graph replays one")
        if case.setup.compile is not None or case.plan.setting("checkpointing") is not None:
            return Applies.no("the model is compiled or checkpointed already")
        optimizer = case.workload.optimizer
        if not optimizer.module.startswith("torch.optim") or optimizer.type not in RECORDABLE:
            return Applies.no(f"the update of {optimizer.type} cannot be recorded")
        if optimizer.options.get("differentiable"):
            return Applies.no("a differentiable optimizer cannot be recorded")
        if case.setup.precision.loss_scaling:
            return Applies.no("the gradient scaler waits for the device in each step")
        if case.plan.setting("optimizer_in_backward") is not None:
            return Applies.no("the optimizer steps within the backward pass")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At the very best the device computes all the time, and one launch issues what is recorded."""
        if case.pipeline is None or not case.pipeline.round.operators:
            return None
        busy = busy_share(case)
        best = {name: seconds_of(case, name) * busy for name in COMPUTE}
        optimizer = case.pipeline.stage("optimizer")
        if optimizer is not None and optimizer.ceiling_seconds is not None:
            best["optimizer"] = min(optimizer.seconds, optimizer.ceiling_seconds)
        return at_most(gain(case, {**best, **issued(case, passes=0.0, update=0.0)}))

    def settings(self, case: Case) -> list[Setting]:
        return [{"whole": True}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        from autoopt_strategies.compute.whole_step import recordable, recorded

        return setup.with_optimizer(ChangedOptimizer(recordable)).with_step(recorded)

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            "optimizer = torch.optim.AdamW(params, lr=torch.tensor(lr, device='cuda'), capturable=True)\n"
            "graph = torch.cuda.CUDAGraph()  # after a few steps on a side stream\n"
            "with torch.cuda.graph(graph):\n    loss = train_step(static_batch)\n"
            "static_batch.copy_(batch); graph.replay()  # for each batch of that shape"
        )
        return Recipe(pytorch=code)
