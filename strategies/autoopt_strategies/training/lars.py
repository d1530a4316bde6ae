"""LARS: SGD whose learning rate follows the size of each layer's weights, for large batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Setup
from autoopt_strategies.common import Setting, Settings, kept
from autoopt_strategies.training.large_batch import RatesByLayer, refused


@dataclass(frozen=True)
class ScaleGradients:
    """``factory -> factory``: gradients of matrices are scaled so that a step is a share of the weights at the most.

    Args:
        trust: that share, for a learning rate of 1; the user's learning rate is never exceeded.
    """

    trust: float = 0.02

    def __call__(self, factory: Callable[[Any], Any]) -> Callable[[Any], Any]:
        import torch

        decays: list[float] = []

        @torch.no_grad()
        def before(optimizer: Any, *_: Any) -> None:
            for group, decay in zip(optimizer.param_groups, decays, strict=True):
                held = [p for p in group["params"] if p.grad is not None]
                gradients = [p.grad for p in held]
                if decay:
                    torch._foreach_add_(gradients, held, alpha=decay)  # scaled with the gradient, as the paper has it
                matrices = [p for p in held if p.ndim > 1]
                if not matrices:
                    continue
                sizes = torch._foreach_norm(matrices)
                slopes = torch._foreach_norm([p.grad for p in matrices])
                for p, size, slope in zip(matrices, sizes, slopes, strict=True):
                    local = torch.clamp(self.trust * size / (slope * group["lr"]), max=1.0)
                    p.grad.mul_(torch.where((size > 0) & (slope > 0), local, torch.ones_like(local)))

        def made(params: Any) -> Any:
            optimizer = factory(params)
            decays[:] = [float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.0
            optimizer.register_step_pre_hook(before)
            return optimizer

        return made


class Lars(RatesByLayer):
    """Bounds each layer's step of SGD by the size of its weights, together with a batch four times as large.

    What it does: before your optimizer's step, the gradient of each matrix, weight decay included, is scaled down to a
        share of the weights; the learning rate is never exceeded. Biases and norms are left as they are.
    When it helps: convolution nets with batches so large that one learning rate for all layers no longer learns.
    When it does not: the batch that is trained with now, where it rarely learns faster; optimizers of the Adam family.
    What it costs: two norms of each matrix in a step; another training path, so that time to the target decides, with
        more than one seed.
    Source: You et al., "Large batch training of convolutional networks", 2017; LARC of NVIDIA's apex (the bound)
    """

    name = "lars"
    title = "LARS with a larger batch"
    example = Example({"trust": 0.02}, facts={"optimizer": {"type": "SGD"}}, losses=None)

    def applies(self, case: Case) -> Applies:
        if case.workload.optimizer.type != "SGD":
            return Applies.no(f"LARS is made for SGD; the optimizer is {case.workload.optimizer.type}")
        return refused(case, ("lamb", "muon"))

    def settings(self, case: Case) -> Settings:
        for trust in (0.02, 0.002):
            if not kept((yield {"trust": trust})):
                return

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(ScaleGradients(setting["trust"]))

    def recipe(self, setting: Setting) -> Recipe:
        code = f"optimizer = LARC(optimizer, trust_coefficient={setting['trust']:g}, clip=True)  # apex.parallel.LARC"
        note = {"_note": code}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)
