"""CUDA graphs: forward and backward of the model recorded once and replayed by one launch."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Estimate, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, at_most, gain, seconds_of


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
            torch.cuda.make_graphed_callables(model, samples)
            known.update(key=key(args), replay=model.forward)
            model.forward = forward
        return known["replay"](*args) if known["key"] == key(args) else plain(*args)

    model.forward = forward
    return model


class CudaGraphs(Strategy):
    """Records the model's forward and backward as CUDA graphs.

    What it does: ``torch.cuda.make_graphed_callables`` at the first training step; batches of another
        shape, and evaluation, run as before.
    When it helps: many short kernels, so that the device waits for their launches.
    When it does not: long kernels; a forward that synchronizes, branches on values or draws from the CPU
        cannot be recorded; under autocast its cache of weights must be off.
    What it costs: memory of its own for all activations; inputs are copied into it.
    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """

    name = "cuda_graphs"
    title = "CUDA graphs"
    stages = frozenset({"forward", "backward", "host"})
    risk = Risk.NUMERIC
    after = frozenset({"channels_last", "flash_attention", "checkpointing"})

    def applies(self, case: Case) -> Applies:
        if case.device != "cuda":
            return Applies.no(f"CUDA graphs need a CUDA device; the device is {case.device}")
        if case.workload.static_shapes is False:
            return Applies.no("shapes change from batch to batch, and a graph replays one")
        if case.setup.precision.dtype or case.workload.precision:
            return Applies.no(
                "autocast keeps a cache of weights that a graph cannot replay; compile's reduce-overhead can"
            )
        if case.setup.compile is not None or case.plan.setting("checkpointing") is not None:
            return Applies.no("the model is compiled or checkpointed already")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        simulation = case.pipeline.round.simulation if case.pipeline is not None else None
        cost = case.environment.peaks.launch_seconds
        if simulation is None or simulation.launches is None or cost is None:
            return None
        both = seconds_of(case, "forward") + seconds_of(case, "backward")
        left = max(0.0, 1 - simulation.launches * cost / both) if both else 1.0
        return at_most(gain(case, {name: seconds_of(case, name) * left for name in ("forward", "backward")}))

    def settings(self, case: Case) -> list[Setting]:
        return [{}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_model(graphed)

    def recipe(self, setting: Setting) -> Recipe:
        return Recipe(pytorch="model = torch.cuda.make_graphed_callables(model, (sample_input,))")
