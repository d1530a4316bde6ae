"""CUDA graphs: the whole step, or forward and backward of the model, recorded once and replayed by one launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, at_most, busy_share, gain, issued, kept, seconds_of


def graphed(model: Any) -> Any:
    """Replays the model's forward and backward for the first shape it sees in training; others run as before."""
    import torch

    plain = model.forward
    known: dict[str, Any] = {}

    def key(args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple((tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in args)

    def forward(*args: Any, **kwargs: Any) -> Any:
        fits = not kwargs and bool(args) and all(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args)
        if not (fits and model.training and torch.is_grad_enabled()):
            return plain(*args, **kwargs)
        if not known:
            # Recording turns the model itself into its replay; the plain forward stays for everything else.
            model.forward = plain
            samples = tuple(arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args)
            with kept_buffers(model), spoiled_by_this_thread_alone():
                torch.cuda.make_graphed_callables(model, samples)
            known.update(key=key(args), replay=model.forward)
            model.forward = forward
        if known["key"] != key(args):
            return plain(*args)
        for parameter in model.parameters():
            if parameter.grad is not None:  # of an earlier micro-batch, at the place to which the replay writes its own
                parameter.grad = parameter.grad.clone()
        return known["replay"](*args)

    model.forward = forward
    return model


@contextmanager
def kept_buffers(model: Any) -> Iterator[None]:
    """Running statistics stay as they are: the passes before a recording are not training."""
    import torch

    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


@contextmanager
def spoiled_by_this_thread_alone() -> Iterator[None]:
    """Lets a loader's thread pin memory while torch records: ``make_graphed_callables`` asks for the global mode,
    in which calls of any thread spoil the recording, and takes no other."""
    import torch

    usual: Any = torch.cuda.graph
    torch.cuda.graph = partial(usual, capture_error_mode="thread_local")  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        torch.cuda.graph = usual  # type: ignore[misc]


RECORDABLE = frozenset({"Adam", "AdamW", "SGD"})
"""Optimizers of torch's whose update can read its learning rate, and keep its count of steps, on the device."""


class CudaGraphs(Strategy):
    """Replays training steps as CUDA graphs: the whole step, or forward and backward of the model.

    What it does: ``whole`` records one step (forward, backward, clipping, optimizer) after a few that run as
        they are, and launches it at once; otherwise ``torch.cuda.make_graphed_callables`` at the first step.
        Batches of another shape, and evaluation, run as before; the schedule moves on next to the graph.
    When it helps: many short kernels, so that the device waits for their launches.
    When it does not: long kernels; a step that waits for the device (``.item()``, a gradient scaler), branches
        on values, or counts in Python cannot be recorded; without ``whole``, autocast's cache of weights
        must be off.
    What it costs: memory of its own for all activations; inputs are copied into it.
    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """

    name = "cuda_graphs"
    title = "CUDA graphs"
    stages = frozenset({"forward", "backward", "optimizer", "host"})
    risk = Risk.NUMERIC
    after = frozenset({"amp", "channels_last", "flash_attention", "checkpointing", "fused_optimizer"})
    example = Example(device="cuda:0")

    def applies(self, case: Case) -> Applies:
        if case.device != "cuda":
            return Applies.no(f"CUDA graphs need a CUDA device; the device is {case.device}")
        if case.workload.static_shapes is False:
            return Applies.no("shapes change from batch to batch, and a graph replays one")
        if case.setup.compile is not None or case.plan.setting("checkpointing") is not None:
            return Applies.no("the model is compiled or checkpointed already")
        whole, model = not_whole(case), not_model(case)
        return Applies.no(f"{whole}; {model}") if whole and model else Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At the very best the device computes all the time, and one launch issues what is recorded."""
        if case.pipeline is None or not case.pipeline.round.operators:
            return None
        busy = busy_share(case)
        best = {name: seconds_of(case, name) * busy for name in ("forward", "backward")}
        optimizer = case.pipeline.stage("optimizer")
        if setting.get("whole") and optimizer is not None and optimizer.ceiling_seconds is not None:
            best["optimizer"] = min(optimizer.seconds, optimizer.ceiling_seconds)
        left = issued(case, passes=0.0, update=0.0 if setting.get("whole") else 1.0)
        return at_most(gain(case, {**best, **left}))

    def settings(self, case: Case) -> Settings:
        if not_whole(case) is None and kept((yield {"whole": True})):
            return
        if not_model(case) is None:
            yield {}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        if not setting.get("whole"):
            return setup.with_model(graphed)
        from autoopt_strategies.compute.whole_step import RecordStep, recordable

        return setup.with_optimizer(recordable).with_step(RecordStep())

    def recipe(self, setting: Setting) -> Recipe:
        if not setting.get("whole"):
            return Recipe(pytorch="model = torch.cuda.make_graphed_callables(model, (sample_input,))")
        code = (
            "optimizer = torch.optim.AdamW(params, lr=torch.tensor(lr, device='cuda'), capturable=True)\n"
            "graph = torch.cuda.CUDAGraph()  # after a few steps on a side stream\n"
            "with torch.cuda.graph(graph):\n    loss = train_step(static_batch)\n"
            "static_batch.copy_(batch); graph.replay()  # for each batch of that shape"
        )
        return Recipe(pytorch=code)


def not_whole(case: Case) -> str | None:
    """Why the whole step cannot be recorded; None where nothing is known against it."""
    optimizer = case.workload.optimizer
    if not optimizer.module.startswith("torch.optim") or optimizer.type not in RECORDABLE:
        return f"the update of {optimizer.type} cannot be recorded"
    if optimizer.options.get("differentiable"):
        return "a differentiable optimizer cannot be recorded"
    if case.setup.precision.loss_scaling:
        return "the gradient scaler waits for the device in each step"
    if case.plan.setting("optimizer_in_backward") is not None:
        return "the optimizer steps within the backward pass"
    return None


def not_model(case: Case) -> str | None:
    """Why forward and backward cannot be recorded apart from the rest."""
    if case.setup.precision.dtype or case.workload.precision:
        return "autocast keeps a cache of weights that graphs of forward and backward cannot replay"
    return None
