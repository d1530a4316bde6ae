"""Muon: hidden weight matrices are updated by orthogonalized momentum, everything else as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, while_kept

ADAM = frozenset({"Adam", "AdamW", "NAdam", "RAdam"})
LEAST_SHARE = 0.5
"""Share of the parameters that hidden matrices must hold for the optimizer to matter."""


@dataclass(frozen=True)
class UpdateMatrices:
    """``factory -> factory``: torch's Muon for some parameters, the user's optimizer for the rest, as one optimizer.

    Args:
        matrices: places of Muon's parameters in the order of ``model.parameters()``.
        factor: of the user's learning rate; updates are scaled to the size of AdamW's, so that 1 is a good one.
    """

    matrices: tuple[int, ...]
    factor: float = 1.0

    def __call__(self, factory: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def made(params: Any) -> Any:
            import torch

            params = list(params)
            places = {place for place in self.matrices if place < len(params) and params[place].ndim == 2}
            theirs = factory([p for place, p in enumerate(params) if place not in places])
            if not places:  # another change of the plan has left none of them a matrix
                return theirs
            rate = float(theirs.param_groups[0]["lr"])
            decay = float(theirs.param_groups[0].get("weight_decay", 0.0))
            matrices = [params[place] for place in sorted(places)]
            muon = torch.optim.Muon(matrices, lr=self.factor * rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            return side_by_side(muon, theirs)

        return made


def side_by_side(*optimizers: Any) -> Any:
    """Several optimizers of different parameters as one, for loops, schedules and checkpoints."""
    import torch

    class SideBySide(torch.optim.Optimizer):
        def __init__(self) -> None:
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            super().__init__([{"params": group["params"]} for group in groups], dict(optimizers[-1].defaults))
            self.param_groups = groups  # the same dicts, so that a schedule reaches all of them

        def step(self, closure: Any = None) -> Any:
            for optimizer in optimizers:
                optimizer.step()

        def state_dict(self) -> Any:
            return {"optimizers": [optimizer.state_dict() for optimizer in optimizers]}

        def load_state_dict(self, state: Any) -> None:
            for optimizer, own in zip(optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(own)
            self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]

    return SideBySide()


class Muon(Strategy):
    """Updates hidden weight matrices by Muon, embeddings, heads, norms and biases as before.

    No run and no benchmark has kept it so far.

    What it does: ``torch.optim.Muon`` for the weights of linear layers but the last, your optimizer for the rest.
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
    example = Example({"matrices": [6], "factor": 1.0}, inspected={"matrices": [2, 4], "share": 0.9}, losses=None)

    def applies(self, case: Case) -> Applies:
        found, optimizer = case.inspected(self.name), case.workload.optimizer
        if case.sites is not None:
            return Applies.no("it replaces the optimizer, which a script holds on to: it needs build()")
        if optimizer.type not in ADAM:
            return Applies.no(f"{optimizer.type} is not of the Adam family, to whose updates Muon's are scaled")
        if optimizer.groups > 1:
            return Applies.no("parameters are in groups of your own, which a plan does not take apart")
        if "matrices" not in found:
            return Applies.no(found.get("reason") or "which parameters are hidden matrices is not known")
        if found["share"] < LEAST_SHARE:
            return Applies.no(f"hidden matrices hold {found['share']:.0%} of the parameters")
        if any(case.plan.setting(name) is not None for name in ("optimizer_in_backward", "cuda_graphs")):
            return Applies.no("the update is part of the backward pass, or of a recorded step")
        return Applies.yes()

    def settings(self, case: Case) -> Settings:
        matrices = case.inspected(self.name)["matrices"]
        return while_kept({"matrices": list(matrices), "factor": factor} for factor in (1.0, 2.0))

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(UpdateMatrices(tuple(setting["matrices"]), setting["factor"]))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            "hidden = [m.weight for m in model.modules() if isinstance(m, nn.Linear)][:-1]\n"
            f"muon = torch.optim.Muon(hidden, lr={setting['factor']:g} * lr, adjust_lr_fn='match_rms_adamw')\n"
            "adamw = torch.optim.AdamW(the_other_parameters, lr=lr)  # step and zero both"
        )
        return Recipe.noted(code, "two optimizers: torch.optim.Muon for hidden linear weights, yours for the rest")

    def inspect(self, live: Any) -> Setting:
        """Places of the weights of linear layers but the last, and their share of the parameters."""
        import torch

        if not hasattr(torch.optim, "Muon"):
            return {"reason": f"torch {torch.__version__} has no Muon; 2.9 has"}
        return hidden_matrices(live.training.model)


def hidden_matrices(model: Any) -> Setting:
    """``{"matrices": places in model.parameters(), "share": of the parameters}``, those of embeddings left out."""
    from torch import nn

    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    hidden = {id(weight) for weight in weights[:-1] if weight.requires_grad} - shared
    params = list(model.parameters())
    whole = sum(p.numel() for p in params if p.requires_grad)
    places = [place for place, p in enumerate(params) if id(p) in hidden]
    return {"matrices": places, "share": sum(params[place].numel() for place in places) / max(1, whole)}
