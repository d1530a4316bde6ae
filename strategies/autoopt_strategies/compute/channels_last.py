"""channels_last: convolution activations with their channels side by side in memory."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import of_convolutions, tried_gain
from autoopt_strategies.trying import Setting


def to_channels_last(model: Any) -> Any:
    """Stores the weights of 2d convolutions channels last; their inputs follow."""
    import torch

    return model.to(memory_format=torch.channels_last)


to_channels_last.layout_alone = True  # type: ignore[attr-defined]


class ChannelsLast(Strategy):
    """Keeps convolution activations channels last, the layout that tensor cores and oneDNN read.

    What it does: converts the weights; convolutions pass the layout on to their outputs.
    When it helps: 2d convolutions in bfloat16 or float16 on tensor cores; most of them on a CPU.
    When it does not: operators between convolutions that copy back to the default layout; few channels.
    What it costs: sums in another order, so that results differ in the last bits.
    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    name = "channels_last"
    title = "channels last"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    switchable = True
    example = Example(losses=1e-4)

    def applies(self, case: Case) -> Applies:
        if not case.workload.model.has_conv2d:
            return Applies.no("the model has no 2d convolution")
        if case.device not in ("cpu", "cuda"):
            return Applies.no(f"not tried on {case.device}")
        if case.inspected(self.name).get("stored_so"):
            return Applies.no("its weights are stored channels last as they are")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Seconds of forward and backward in this layout on a copy; where that was not tried, the most it may save."""
        tried = tried_gain(case, case.inspected(self.name).get("ratio"))
        return tried or of_convolutions(case, "conv", "batch_norm", "pool")

    def inspect(self, live: Any) -> Setting:
        """Forward and backward in this layout over those as they are, tried on copies of the model."""
        import torch

        model = live.training.model
        if not any(isinstance(module, torch.nn.Conv2d) for module in model.modules()):
            return {}
        images = [parameter for parameter in model.parameters() if parameter.dim() == 4]
        rows = all(image.is_contiguous() for image in images)  # kernels of one weight are in both layouts
        if not rows and all(image.is_contiguous(memory_format=torch.channels_last) for image in images):
            return {"stored_so": True}
        return {"ratio": live.ratio_with(to_channels_last)}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_model(to_channels_last)

    def recipe(self, setting: Setting) -> Recipe:
        line = "model = model.to(memory_format=torch.channels_last)"
        edits = (Edit("model", ("{model}.to(memory_format={torch}.channels_last)",), imports=("torch",)),)
        return Recipe.noted(line, f"{line} before training", edits)
