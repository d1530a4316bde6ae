"""Optimizer in backward: each parameter is updated as soon as its gradient is there, which is then freed."""

from __future__ import annotations

from types import MethodType
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import at_most, batch_now, gain, memory_short
from autoopt_strategies.trying import ChangedOptimizer, Setting


def spread(optimizer: Any) -> Any:
    """The same optimizer, its update moved into hooks on the parameters.

    Each parameter gets an optimizer of its own over the very group that schedulers write to. ``step``
    and ``zero_grad`` of the whole do nothing any more.
    """
    import torch

    def single(parameter: Any, number: int) -> Any:
        own = type(optimizer)([parameter], lr=optimizer.defaults["lr"])

        def update(_: Any) -> None:
            # Looked up each time: loading a checkpoint puts new groups and states in place.
            group = optimizer.param_groups[number]
            own.param_groups[0].update({key: value for key, value in group.items() if key != "params"})
            own.state = optimizer.state
            own.step()
            parameter.grad = None

        return update

    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(single(parameter, number))

    @torch.no_grad()
    def step(self: Any, closure: Any = None) -> None:
        return None

    optimizer.step = MethodType(step, optimizer)  # a method, since schedulers wrap it as one
    optimizer._opt_called = True  # for schedulers, which ask whether a step came before theirs
    return optimizer


class OptimizerInBackward(Strategy):
    """Updates each parameter during the backward pass, so that no two gradients need to live at once.

    No run and no benchmark has kept it so far.

    What it does: a hook on each parameter takes its optimizer step and frees its gradient.
    When it helps: gradients are a good part of the memory (large models, small batches).
    When it does not: memory to spare; accumulation, clipping and gradient scalers need all gradients at
        the end, so it is refused with them.
    What it costs: the update is spread over many small kernels.
    Source: https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html
    """

    name = "optimizer_in_backward"
    title = "optimizer within the backward pass"
    stages = frozenset({"backward", "optimizer"})
    risk = Risk.NUMERIC
    after = frozenset({"fused_optimizer"})
    example = Example(device="cuda:0", losses=1e-5)

    def applies(self, case: Case) -> Applies:
        facts = case.workload
        if case.setup.distributed.processes > 1:
            return Applies.no("gradients are averaged over processes after the backward pass has made them")
        if not facts.optimizer.module.startswith("torch.optim"):
            return Applies.no(f"{facts.optimizer.type} is not one of torch's, whose updates are known to be separable")
        if facts.optimizer.type == "LBFGS":
            return Applies.no("LBFGS needs all gradients at once")
        if batch_now(case)[1] > 1:
            return Applies.no("gradients are accumulated over several micro-batches")
        if facts.clip_grad_norm is not None:
            return Applies.no("clipping the norm needs all gradients at once")
        if case.setup.precision.loss_scaling:
            return Applies.no("the gradient scaler needs all gradients before the step")
        return Applies.yes() if memory_short(case) else Applies.no("memory is not short, and that is all it saves")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        return at_most(gain(case, {"optimizer": 0.0}))

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """The gradients of all parameters but one."""
        return [(0.02, {})]

    def memory_saved(self, case: Case) -> float | None:
        """All gradients at once, which are of the parameters' size."""
        return float(case.workload.model.parameter_bytes)

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(ChangedOptimizer(spread))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            "for p in model.parameters():\n    own = torch.optim.AdamW([p], lr=lr)\n"
            "    p.register_post_accumulate_grad_hook(lambda p, own=own: (own.step(), own.zero_grad()))"
        )
        return Recipe(pytorch=code)
