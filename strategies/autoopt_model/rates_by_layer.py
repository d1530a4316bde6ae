"""Rates by layer: optimizers whose steps have another size in each layer, for large batches (LARS and LAMB)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoopt import Applies, Case, Change, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_model.muon import ADAM, around
from autoopt_strategies.predictions import at_most, batch_now, declared
from autoopt_strategies.training.batch_size import BatchSize
from autoopt_strategies.trying import ChangedOptimizer, Setting, Settings, while_kept

TIMES = 4
"""Of the batch that is there: less needs no rates by layer."""


def lars(optimizer: Any, trust: float) -> Any:
    """The optimizer, in place, with gradients of matrices scaled so that a step is a share of the weights at the most.

    Args:
        trust: that share, for a learning rate of 1; the user's learning rate is never exceeded.
    """
    import torch

    decays = [float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0

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
                local = torch.clamp(trust * size / (slope * group["lr"]), max=1.0)
                p.grad.mul_(torch.where((size > 0) & (slope > 0), local, torch.ones_like(local)))

    optimizer.register_step_pre_hook(before)
    return optimizer


def lamb(optimizer: Any, factor: float, most: float = 10.0) -> Any:
    """The optimizer, in place, with updates of matrices of the size of the matrix, times learning rate and a factor.

    Args:
        factor: of the learning rate; weights are smaller than Adam's updates, so that larger ones suit.
        most: the largest quotient of the sizes of weights and update.
    """
    import torch

    kept: list[Any] = []

    def matrices(optimizer: Any) -> list[tuple[Any, float]]:
        return [(p, group["lr"]) for group in optimizer.param_groups for p in group["params"] if p.ndim > 1]

    def before(optimizer: Any, *_: Any) -> None:
        kept[:] = [p.detach().clone() for p, _ in matrices(optimizer)]

    @torch.no_grad()
    def after(optimizer: Any, *_: Any) -> None:
        now = matrices(optimizer)
        updates = torch._foreach_sub([p for p, _ in now], kept)
        sizes, steps = torch._foreach_norm(kept), torch._foreach_norm(updates)
        for (p, rate), old, update, size, step in zip(now, kept, updates, sizes, steps, strict=True):
            quotient = torch.clamp(rate * size / step, max=most) * factor  # the step is rate times Adam's
            scaled = torch.where((size > 0) & (step > 0), quotient, torch.ones_like(quotient))
            p.copy_(old + scaled * update)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return optimizer


RULES: dict[str, Callable[..., Any]] = {"lars": lars, "lamb": lamb}


class RatesByLayer(Strategy):
    """Sizes each layer's step by its weights, together with a batch four times as large.

    No run and no benchmark has kept it so far.

    What it does: LARS next to SGD: before the step the gradient of each matrix, weight decay included, is scaled down
        to a share of the weights; the learning rate is never exceeded. LAMB next to the Adam family: after the step the
        update of each matrix gets the size of its weights times the learning rate. Biases and norms stay as they are.
    When it helps: batches so large that one learning rate for all layers no longer learns.
    When it does not: the batch that is trained with now, where it rarely learns faster; tuned rates.
    What it costs: two norms of each matrix in a step, and for LAMB a copy; another training path, so that time to the
        target decides, with more than one seed.
    Source: You et al., "Large batch training of convolutional networks", 2017; LARC of NVIDIA's apex (the bound); You
        et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020
    """

    name = "rates_by_layer"
    title = "LARS or LAMB with a larger batch"
    stages = frozenset({"optimizer", "host"})
    risk = Risk.TRAINING
    after = frozenset({"fused_optimizer"})
    example = Example({"rule": "lamb", "by": 10.0}, losses=None)

    def applies(self, case: Case) -> Applies:
        if case.workload.optimizer.type not in ADAM | {"SGD"}:
            return Applies.no(f"{case.workload.optimizer.type} is neither SGD nor of the Adam family")
        if case.plan.setting("muon") is not None:
            return Applies.no("another optimizer of the plan decides how large the steps of layers are")
        if case.plan.setting("optimizer_in_backward") is not None:
            return Applies.no("the update is part of the backward pass")
        if case.plan.setting("batch_size") is None and not larger(case):
            return Applies.no(f"a batch {TIMES} times as large, for which it is made, is none that can be trained with")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """That of the larger batch, if samples teach as much in it: by itself it makes no step faster."""
        found = [BatchSize().predict(case, change.setting) for change in larger(case)]
        return declared(at_most(found[0] if found else None))

    def settings(self, case: Case) -> Settings:
        """LAMB's factor of the learning rate; LARS's share of the weights."""
        adam = case.workload.optimizer.type in ADAM
        rule, values = ("lamb", (10.0, 30.0)) if adam else ("lars", (0.02, 0.002))
        return while_kept({"rule": rule, "by": by} for by in values)

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        return larger(case)

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(ChangedOptimizer(RULES[setting["rule"]], (setting["by"],)))

    def recipe(self, setting: Setting) -> Recipe:
        return around(RULES[setting["rule"]], f"{setting['by']:g}", f"{setting['rule'].upper()}'s steps")


def larger(case: Case) -> list[Change]:
    """The change to a batch so many times as large; none where there is one already, or it cannot be."""
    strategy, wanted = BatchSize(), TIMES * batch_now(case)[0]
    if case.plan.setting(strategy.name) is not None or not strategy.applies(case) or wanted > strategy.most(case):
        return []
    return [Change(strategy=strategy.name, setting=strategy.setting_of(case, wanted))]
