"""float32 matrix products with a shorter mantissa inside: TF32 on CUDA, bfloat16 in oneDNN on the CPU."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import FASTER, operator_share, peak_ratio, tried_or_at_most
from autoopt_strategies.trying import Setting

INSIDE = {"high": "tf32", "medium": "bf16"}


class MatmulPrecision(Strategy):
    """Lets float32 matrix products use TF32 (``high``) or bfloat16 (``medium``) inside.

    What it does: ``torch.set_float32_matmul_precision``; tensors stay float32, nothing is cast in the model.
    When it helps: float32 training bound by matrix products, on a device with such units.
    When it does not: under autocast, whose products are shorter already; convolutions on CUDA, which use
        TF32 by default.
    What it costs: ten bits of mantissa (TF32) or seven (bfloat16) in each product, sums in float32.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
    """

    name = "matmul_precision"
    title = "shorter float32 matrix products"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    switchable = True
    example = Example({"precision": "medium"}, losses=0.02)

    def applies(self, case: Case) -> Applies:
        now = case.setup.precision.dtype or case.workload.precision
        if now:
            return Applies.no(f"matrix products run in {now} already")
        if case.device not in ("cpu", "cuda"):
            return Applies.no(f"{case.device} has no such switch")
        if not self.settings(case):
            return Applies.no("this device multiplies no shorter float32 faster (measured)")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Seconds of forward and backward so on a copy; where that was not tried, from the peaks."""
        ratio, share = peak_ratio(case, INSIDE[setting["precision"]]), operator_share(case, {"matmul"})
        saved = None if ratio is None or share is None else share * (1 - 1 / ratio)
        return tried_or_at_most(case, case.inspected(self.name).get(setting["precision"]), saved)

    def settings(self, case: Case) -> list[Setting]:
        levels = ("high", "medium") if case.device == "cuda" else ("medium",)
        return [{"precision": level} for level in levels[:1] if (peak_ratio(case, INSIDE[level]) or FASTER) >= FASTER]

    def inspect(self, live: Any) -> Setting:
        """Forward and backward so over those in full precision, tried on copies of the model."""
        if live.setup.precision.dtype is not None or live.setup.precision.matmul is not None:
            return {}
        level = "high" if live.training.device.torch.type == "cuda" else "medium"
        return {level: live.ratio_with(matmul=level)}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_precision(matmul=setting["precision"])

    def recipe(self, setting: Setting) -> Recipe:
        line = f'torch.set_float32_matmul_precision("{setting["precision"]}")'
        return Recipe(
            pytorch=line,
            lightning={"_note": f"{line} before Trainer(...)"},
            transformers={"tf32": True} if setting["precision"] == "high" else None,
            accelerate={"_note": f"{line} at the top of the script"},
        )
