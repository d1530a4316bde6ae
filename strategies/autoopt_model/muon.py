"""Muon: hidden weight matrices are updated by orthogonalized momentum, everything else as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.compute.rewriting.source import part_of
from autoopt_strategies.predictions import guessed
from autoopt_strategies.trying import ChangedOptimizer, Setting, Settings, more_or_less

ADAM = frozenset({"Adam", "AdamW", "NAdam", "RAdam"})
LEAST_SHARE = 0.5
"""Share of the parameters that hidden matrices must hold for the optimizer to matter."""
FACTORS = (4.0, 10.0, 1.0)
"""Of the learning rate: updates have the size of Adam's, but one direction of a matrix is never far longer than the
others, so that larger steps are stable. Larger first where that learns faster, else the rate as it is."""


def orthogonal(matrices: Any) -> Any:
    """The nearest matrices whose directions are all about as long, by five Newton-Schulz steps.

    Args:
        matrices: a tensor of shape (count, rows, columns).
    """
    import torch

    tall = matrices.size(-2) > matrices.size(-1)
    wide = (matrices.mT if tall else matrices).contiguous()
    wide = wide.float() if wide.device.type == "cpu" else wide.bfloat16()
    wide = wide / (torch.linalg.matrix_norm(wide, keepdim=True) + 1e-7)
    for _ in range(5):
        products = wide @ wide.mT
        inner = torch.baddbmm(products, products, products, beta=-4.7750, alpha=2.0315)
        wide = torch.baddbmm(wide, inner, wide, beta=3.4445)
    return (wide.mT if tall else wide).to(matrices.dtype)


def matrices_by_muon(optimizer: Any, besides: tuple[int, ...], factor: float) -> Any:
    """The optimizer, in place, with steps of its matrices by Muon and of the rest as before.

    Momentum is part of the optimizer's state, so that its checkpoints hold it.

    Args:
        besides: places among its parameters of matrices that it steps as before: embeddings, and the last layer.
        factor: of its learning rate for what Muon steps.
    """
    import torch

    every = [p for group in optimizer.param_groups for p in group["params"]]
    wanted = {id(p) for place, p in enumerate(every) if p.ndim == 2 and place not in besides}

    @torch.no_grad()
    def step_matrices(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            matrices = [p for p in group["params"] if id(p) in wanted and p.grad is not None]
            if not matrices:
                continue
            for p in matrices:
                if "momentum" not in optimizer.state[p]:  # each state of the Adam family has a step
                    optimizer.state[p].update(step=torch.zeros(()), momentum=torch.zeros_like(p))
            momentum = [optimizer.state[p]["momentum"] for p in matrices]
            gradients = [p.grad for p in matrices]
            torch._foreach_lerp_(momentum, gradients, 0.05)
            ahead = torch._foreach_lerp(gradients, momentum, 0.95)  # Nesterov's
            rate = factor * group["lr"]
            torch._foreach_mul_(matrices, 1 - rate * group.get("weight_decay", 0.0))
            for shape in {p.shape for p in matrices}:
                alike = [place for place, p in enumerate(matrices) if p.shape == shape]
                steps = orthogonal(torch.stack([ahead[place] for place in alike]))
                size = 0.2 * max(shape) ** 0.5  # as long as Adam's
                torch._foreach_add_([matrices[place] for place in alike], list(steps * (-rate * size)))
            for p in matrices:
                p.grad = None  # the optimizer's own step leaves them alone

    optimizer.register_step_pre_hook(step_matrices)
    return optimizer


def around(function: Callable[..., Any], arguments: str, note: str) -> Recipe:
    """The recipe of a function that changes an optimizer in place, around the call that makes it."""
    call = f"{function.__name__}({{}}, {arguments})"
    edits = (Edit("optimizer", (call.format("{call}"),), parts=(part_of(function),)),)
    return Recipe.noted(f"optimizer = {call.format('optimizer')}", note, edits)


class Muon(Strategy):
    """Updates hidden weight matrices by Muon, embeddings, heads, norms and biases as before.

    What it does: steps the weights of linear layers but the last by orthogonalized momentum, within your optimizer,
        which steps the rest.
    When it helps: transformers and MLPs trained from scratch by the Adam family: fewer steps to the same loss.
    When it does not: convolutions, whose weights are no matrices; fine-tuning of weights that Adam trained.
    What it costs: a few matrix products for each matrix and step; another training path, so that time to the target
        decides, with more than one seed.
    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024;
        Liu et al., "Muon is scalable for LLM training", 2025 (scaled to AdamW's updates)
    """

    name = "muon"
    title = "Muon for hidden matrices"
    stages = frozenset({"optimizer"})
    risk = Risk.TRAINING
    after = frozenset({"fused_optimizer"})
    example = Example({"besides": [0], "factor": 1.0}, inspected={"besides": [0, 6], "share": 0.9}, losses=None)

    def applies(self, case: Case) -> Applies:
        found, optimizer = case.inspected(self.name), case.workload.optimizer
        if optimizer.type not in ADAM:
            return Applies.no(f"{optimizer.type} is not of the Adam family, to whose updates Muon's are scaled")
        if "besides" not in found:
            return Applies.no(found.get("reason") or "which parameters are hidden matrices is not known")
        if found["share"] < LEAST_SHARE:
            return Applies.no(f"hidden matrices hold {found['share']:.0%} of the parameters")
        if any(case.plan.setting(name) is not None for name in ("optimizer_in_backward", "cuda_graphs", "sharding")):
            return Applies.no("the update is part of the backward pass, of a recorded step, or shared out")
        if case.setup.precision.loss_scaling:
            return Applies.no("gradients are scaled, which the optimizer's own step alone takes back")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """What was published against tuned runs of AdamW: 1.35 times fewer samples, 2 at the best."""
        return guessed(0.7, 2.0, 1.35)

    def settings(self, case: Case) -> Settings:
        besides = list(case.inspected(self.name)["besides"])
        return more_or_less(*({"besides": besides, "factor": factor} for factor in FACTORS))

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(ChangedOptimizer(matrices_by_muon, (tuple(setting["besides"]), setting["factor"])))

    def recipe(self, setting: Setting) -> Recipe:
        arguments = f"besides={tuple(setting['besides'])}, factor={setting['factor']:g}"
        return around(matrices_by_muon, arguments, "Muon for hidden weight matrices")

    def inspect(self, live: Any) -> Setting:
        """Places of matrices that stay with the optimizer, and the share of the parameters that the others hold."""
        return hidden_matrices(live.training.model, live.training.optimizer)


def hidden_matrices(model: Any, optimizer: Any) -> Setting:
    """The weights of linear layers but the last, in an optimizer of their model; those of embeddings are not hidden.

    Returns:
        ``besides``: places of other matrices among the optimizer's parameters; ``share`` of its parameters that the
        hidden ones hold.
    """
    from torch import nn

    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    hidden = {id(weight) for weight in weights[:-1] if weight.requires_grad} - shared
    every = [p for group in optimizer.param_groups for p in group["params"]]
    whole = sum(p.numel() for p in every if p.requires_grad)
    return {
        "besides": [place for place, p in enumerate(every) if p.ndim == 2 and id(p) not in hidden],
        "share": sum(p.numel() for p in every if id(p) in hidden) / max(1, whole),
    }
