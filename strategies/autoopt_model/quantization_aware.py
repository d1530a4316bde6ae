"""Quantization-aware training: linear layers train with the rounding that they are served with."""

from __future__ import annotations

import importlib.util
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.trying import Setting, Settings


def fake_quantized(model: Any, activations: bool = True) -> Any:
    """The model, whose linear layers round weights, and inputs, to eight bits and compute in floating point.

    Names and shapes of the weights stay, so that a checkpoint loads into the model as it was.

    Args:
        activations: rounds inputs as well, token by token, as ``int8_dynamic`` serves; else weights alone, as
            ``int8_weight_only`` does.
    """
    import torch
    from torchao.quantization import quantize_  # type: ignore[import-untyped]
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig  # type: ignore[import-untyped]

    weights = IntxFakeQuantizeConfig(torch.int8, "per_channel", is_symmetric=True)
    inputs = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False) if activations else None
    quantize_(model, QATConfig(activation_config=inputs, weight_config=weights, step="prepare"))
    return model


class QuantizationAware(Strategy):
    """Trains with the rounding of 8-bit serving, so that less is lost there.

    No run and no benchmark has kept it so far.

    What it does: torchao's fake quantization in linear layers: products see rounded weights and inputs, gradients pass
        through as if they were not.
    When it helps: ``autoopt latency`` finds that ``int8_dynamic`` or ``int8_weight_only`` loses more of the metric than
        is allowed: train, or go on training, with this in the plan (``autoopt train --plan``), and ask again.
    When it does not: it makes no step shorter, rather longer, so that a search for a shorter
        training never tries it.
    What it costs: rounding in each product of each step; another model is learnt. ``torch-autoopt[model]`` brings
        torchao.
    Source: Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only
        inference", CVPR 2018; https://docs.pytorch.org/ao/stable/
    """

    name = "quantization_aware"
    title = "quantization-aware training"
    stages = frozenset({"forward", "backward"})
    risk = Risk.MODEL
    after = frozenset({"pruning", "distillation", "lora", "fp8"})
    example = Example(
        {"activations": True},
        losses=None,
        searched=False,
        trains=importlib.util.find_spec("torchao") is not None,
    )

    def applies(self, case: Case) -> Applies:
        """Never in a search, whose measure is the time of a training; a plan may hold it all the same."""
        return Applies.no(
            "it makes no training shorter, but lets serving in 8 bits lose less: put it into the plan.json of "
            "autoopt train, then ask autoopt latency --checkpoint"
        )

    def settings(self, case: Case) -> Settings:
        yield {"activations": True}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_model(Wrap.of(fake_quantized, activations=bool(setting["activations"])))

    def recipe(self, setting: Setting) -> Recipe:
        inputs = 'IntxFakeQuantizeConfig(torch.int8, "per_token")' if setting["activations"] else "None"
        code = (
            "from torchao.quantization import quantize_\n"
            "from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig\n"
            f"inputs = {inputs}\n"
            'weights = IntxFakeQuantizeConfig(torch.int8, "per_channel")\n'
            'quantize_(model, QATConfig(activation_config=inputs, weight_config=weights, step="prepare"))'
        )
        return Recipe.noted(code)
