"""LAMB: each layer's update of the Adam family is as large as its weights, for large batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Setup
from autoopt_strategies.common import Setting, Settings, kept
from autoopt_strategies.training.large_batch import RatesByLayer, refused

FAMILY = frozenset({"Adam", "AdamW", "NAdam", "RAdam"})


@dataclass(frozen=True)
class ScaleUpdates:
    """``factory -> factory``: updates of matrices get the size of the matrix, times the learning rate and a factor.

    Args:
        factor: of the learning rate; weights are smaller than Adam's updates, so that larger ones suit.
        most: the largest quotient of the sizes of weights and update.
    """

    factor: float = 10.0
    most: float = 10.0

    def __call__(self, factory: Callable[[Any], Any]) -> Callable[[Any], Any]:
        import torch

        kept: list[Any] = []

        def before(optimizer: Any, *_: Any) -> None:
            kept[:] = [p.detach().clone() for p in _matrices(optimizer)]

        @torch.no_grad()
        def after(optimizer: Any, *_: Any) -> None:
            matrices = list(_matrices(optimizer))
            rates = [group["lr"] for group in optimizer.param_groups for p in group["params"] if p.ndim > 1]
            updates = torch._foreach_sub(matrices, kept)
            sizes, steps = torch._foreach_norm(kept), torch._foreach_norm(updates)
            for p, old, update, size, step, rate in zip(matrices, kept, updates, sizes, steps, rates, strict=True):
                quotient = torch.clamp(rate * size / step, max=self.most) * self.factor  # the step is rate times Adam's
                scaled = torch.where((size > 0) & (step > 0), quotient, torch.ones_like(quotient))
                p.copy_(old + scaled * update)

        def made(params: Any) -> Any:
            optimizer = factory(params)
            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(after)
            return optimizer

        return made


def _matrices(optimizer: Any) -> Any:
    return (p for group in optimizer.param_groups for p in group["params"] if p.ndim > 1)


class Lamb(RatesByLayer):
    """Scales the updates of the Adam family layer by layer, together with a batch four times as large.

    What it does: after your optimizer's step, the update of each matrix gets the size of its weights times the learning
        rate; biases and norms are left as they are.
    When it helps: batches so large that one learning rate for all layers no longer learns.
    When it does not: the batch that is trained with now, where it rarely learns faster; tuned rates.
    What it costs: a copy of the matrices and two norms in each step; another training path, so that time to the target
        decides, with more than one seed.
    Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020
    """

    name = "lamb"
    title = "LAMB with a larger batch"
    example = Example({"factor": 10.0}, losses=None)

    def applies(self, case: Case) -> Applies:
        if case.workload.optimizer.type not in FAMILY:
            return Applies.no(f"{case.workload.optimizer.type} is not of the Adam family")
        return refused(case, ("lars", "muon"))

    def settings(self, case: Case) -> Settings:
        for factor in (10.0, 30.0):
            if not kept((yield {"factor": factor})):
                return

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(ScaleUpdates(setting["factor"]))

    def recipe(self, setting: Setting) -> Recipe:
        code = f"optimizer = Lamb(params, lr={setting['factor']:g} * lr)  # such as apex.optimizers.FusedLAMB"
        note = {"_note": code}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)
