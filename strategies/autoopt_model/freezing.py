"""Freezing: the first layers keep the weights that they have."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.trying import Setting, Settings, more_or_less

SHARES = (0.5, 0.75, 0.25)
"""Of the layers, from the input on; more where half of them may be frozen, fewer where not."""


def frozen(model: Any, prefixes: tuple[str, ...]) -> Any:
    """The model, in place, whose parameters below these names are trained no more."""
    for name, parameter in model.named_parameters():
        if name.startswith(prefixes):
            parameter.requires_grad_(False)
    return model


class Freezing(Strategy):
    """Trains the later layers alone.

    No run and no benchmark has kept it so far.

    What it does: ``requires_grad_(False)`` for the first layers: no gradient, no update and no state of the optimizer.
    When it helps: fine-tuning: what early layers of a pretrained model see is of use for your data as it is.
    When it does not: training from scratch, where their weights are random; the trained metric shows it.
    What it costs: another model is learnt, so that it is trained to the target, with more than one seed. BatchNorm in
        frozen layers still follows the data.
    Source: Yosinski et al., "How transferable are features in deep neural networks?", NeurIPS 2014
    """

    name = "freezing"
    title = "frozen early layers"
    stages = frozenset({"backward", "optimizer"})
    risk = Risk.MODEL
    example = Example(
        {"prefixes": ["0."]},
        inspected={"layers": [["0.", 224], ["1.0.0.", 584], ["1.1.0.", 584], ["4.", 18]]},
        losses=None,
    )

    def applies(self, case: Case) -> Applies:
        layers = case.inspected(self.name).get("layers", [])
        if len(layers) < 3:
            return Applies.no("fewer than three layers with parameters: there is no early half")
        if case.plan.setting("lora") is not None:
            return Applies.no("with LoRA all layers are frozen already")
        return Applies.yes()

    def settings(self, case: Case) -> Settings:
        layers = case.inspected(self.name)["layers"]
        counts = [min(max(1, round(share * len(layers))), len(layers) - 1) for share in SHARES]
        return more_or_less(*({"prefixes": [prefix for prefix, _ in layers[:count]]} for count in counts))

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_model(Wrap.of(frozen, prefixes=tuple(setting["prefixes"])))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            f"for name, parameter in model.named_parameters():\n"
            f"    if name.startswith({tuple(setting['prefixes'])!r}):\n"
            f"        parameter.requires_grad_(False)"
        )
        return Recipe.noted(code, "freeze, before the optimizer is made: " + ", ".join(setting["prefixes"]))

    def inspect(self, live: Any) -> Setting:
        """Layers in the order in which the model holds them, with their trained parameters."""
        return {"layers": layers_of(live.training.model)}


def layers_of(model: Any) -> list[list[Any]]:
    """Prefix and parameters of each layer: the model's children, and in place of containers among them theirs."""
    from torch import nn

    found: list[list[Any]] = []

    def visit(module: Any, prefix: str) -> None:
        children = [(name, child) for name, child in module.named_children() if _trained(child)]
        own = [name for name, p in module.named_parameters(recurse=False) if p.requires_grad]
        opened = isinstance(module, nn.Sequential | nn.ModuleList) or prefix == "" or (len(children) == 1 and not own)
        if not opened or not children:
            found.append([prefix, _trained(module)])
            return
        for name, child in children:
            visit(child, f"{prefix}{name}.")

    visit(model, "")
    return [layer for layer in found if layer[0]]


def _trained(module: Any) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
