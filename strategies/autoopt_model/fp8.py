"""fp8 training: matrix products of linear layers in eight bits, forward and backward."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

from autoopt import Applies, Case, Change, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_model.lora import open_linear_layers
from autoopt_strategies.predictions import compute_gain, declared, operator_share
from autoopt_strategies.trying import Setting, Settings, until_kept

CAPABILITY = (8, 9)
"""Of the first NVIDIA devices that multiply fp8 (Ada; Hopper is 9.0)."""
MULTIPLE = 16
"""Sizes of a product that its kernels take."""
LEAST = 512
"""Below this, finding the scales and casting take what the product saves."""
RECIPES = ("tensorwise", "rowwise")


def in_float8(model: Any, layers: tuple[str, ...], recipe: str = "tensorwise", emulate: bool = False) -> Any:
    """The model, whose named linear layers multiply in fp8; weights, gradients and sums stay as they are.

    Args:
        layers: names of linear modules.
        recipe: one scale for a whole tensor (``tensorwise``) or for each row (``rowwise``).
        emulate: computes the same rounding in float32, for devices without fp8: exact to test with, and slow.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # type: ignore[import-untyped]

    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate, pad_inner_dim=True)
    return convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name in layers)


class Fp8(Strategy):
    """Multiplies in fp8 where the device has units for it.

    No run and no benchmark has kept it so far.

    What it does: torchao swaps large linear layers for ones that scale and cast inputs, weights and gradients to fp8
        before each product, twice as fast on such a device as bfloat16; compilation, tried together with it, fuses the
        casts.
    When it helps: transformers of a billion parameters and up in bfloat16, whose step is large matrix products.
    When it does not: small layers, where scaling costs more than the product; convolutions; devices before Ada and
        Hopper.
    What it costs: two to three bits of mantissa in products: another training, so that it is trained to the target
        with more than one seed. ``torch-autoopt[model]`` brings torchao.
    Source: Micikevicius et al., "FP8 formats for deep learning", 2022; https://docs.pytorch.org/ao/stable/
    """

    name = "fp8"
    title = "fp8 training"
    stages = frozenset({"forward", "backward"})
    risk = Risk.MODEL
    after = frozenset({"amp", "pruning", "distillation"})
    example = Example(
        {"layers": ["4"], "recipe": "tensorwise", "emulate": True},
        device="cuda:0",
        inspected={"layers": ["4"]},
        losses=None,
        trains=importlib.util.find_spec("torchao") is not None,
    )

    def applies(self, case: Case) -> Applies:
        if case.device != "cuda":
            return Applies.no("fp8 products need an NVIDIA device of compute capability 8.9 or later")
        found = case.inspected(self.name)
        if not found.get("layers"):
            return Applies.no(found.get("reason") or "whether the device multiplies fp8 is not known")
        if case.plan.setting("lora") is not None:
            return Applies.no("with LoRA the large weights are not trained")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Matrix products in half their seconds, at the very best."""
        share = operator_share(case, {"matmul"})
        return None if share is None else declared(compute_gain(case, 1 - 0.5 * share))

    def settings(self, case: Case) -> Settings:
        layers = list(case.inspected(self.name)["layers"])
        return until_kept({"layers": layers, "recipe": recipe} for recipe in RECIPES)

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """Uncompiled, the casts are kernels of their own, which read and write what the product saves."""
        return [] if case.setup.compile is not None else [Change(strategy="compile", setting={"mode": "default"})]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_model(Wrap.of(in_float8, **{**setting, "layers": tuple(setting["layers"])}))

    def recipe(self, setting: Setting) -> Recipe:
        line = (
            "torchao.float8.convert_to_float8_training(\n"
            f"    {{model}}, config=torchao.float8.Float8LinearConfig.from_recipe_name({setting['recipe']!r}),\n"
            f"    module_filter_fn=lambda _, name: name in {tuple(setting['layers'])!r},\n)"
        )
        code = f"import torchao.float8\n{line.replace('{model}', 'model')}\nmodel = torch.compile(model)"
        edits = (Edit("model", lines=(line,), imports=("torchao.float8",)),)
        return Recipe.noted(code, edits=edits, accelerate={"mixed_precision": "fp8", "_note": code})

    def inspect(self, live: Any) -> Setting:
        """Large linear layers, where the device has fp8 and a copy of the model trains a micro-batch with them."""
        import torch

        device = live.training.device.torch
        if device.type != "cuda":
            return {}
        found = torch.cuda.get_device_capability(device)
        if found < CAPABILITY:
            return {"reason": f"this device multiplies no fp8: compute capability {found[0]}.{found[1]}, 8.9 is needed"}
        layers = large_layers(live.training.model)
        if not layers:
            return {"reason": f"no linear layer of {LEAST} features or more on both sides, in multiples of {MULTIPLE}"}
        if importlib.util.find_spec("torchao") is None:
            return {"reason": "torchao is not installed: pip install 'torch-autoopt[model]'"}
        if live.ratio_with(Wrap.of(in_float8, layers=tuple(layers))) is None:
            return {"reason": "a copy of the model does not train with fp8 layers"}
        return {"layers": layers}


def large_layers(model: Any) -> list[str]:
    """Names of the linear layers that are worth it: all but the last, whose answers the loss reads."""
    return [
        name
        for name, module in open_linear_layers(model)[:-1]
        if min(module.in_features, module.out_features) >= LEAST
        and module.in_features % MULTIPLE == module.out_features % MULTIPLE == 0
    ]
