"""A lower precision: matrix products in bfloat16 or float16, sums and weights in float32; of a double model, all."""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

from autoopt import Applies, Case, Change, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.compute.channels_last import to_channels_last
from autoopt_strategies.predictions import FASTER, at_most, compute_gain, operator_share, peak_ratio, ranged, tried_gain
from autoopt_strategies.trying import Setting

SHORT = {"bfloat16": "bf16", "float16": "fp16"}
FULL = Wrap("autoopt_strategies.compute.rewriting.layers:sigmoids_in_full")
"""``model -> model``, whose probabilities are in float32."""
SINGLE = Wrap("autoopt_strategies.compute.rewriting.layers:in_float32")
"""``model -> model`` of float64, which computes in float32."""


class Amp(Strategy):
    """Runs the forward pass under autocast.

    What it does: matrix products and convolutions in bfloat16 or float16; float16 with a gradient scaler.
        A model in float64 computes in float32, and takes and gives float64 as before.
    When it helps: matrix products take most of the step and the device multiplies the low precision faster;
        memory-bound operators gain too, since activations are half as large.
    When it does not: many tiny operators, where casting costs more than it saves; a device without units
        for it; input-bound steps; a loss of probabilities, which a low precision rounds to 0 and 1. On a CPU those
        that ``nn.Sigmoid`` layers give are computed in float32; logits are the better way.
    What it costs: about three decimal digits; the metric is checked against the baseline. float16 can
        overflow, so the scaler skips steps.
    Source: Micikevicius et al., "Mixed precision training", ICLR 2018;
        https://docs.pytorch.org/docs/stable/amp.html
    """

    name = "amp"
    title = "mixed precision"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    switchable = True
    excludes = frozenset({"matmul_precision"})  # its products are short already
    example = Example({"dtype": "bfloat16"}, losses=0.02)

    def applies(self, case: Case) -> Applies:
        if case.device not in ("cpu", "cuda"):
            return Applies.no(f"not tried on {case.device}: autocast there does not cover training")
        if case.workload.precision and not case.setup.precision.dtype:
            return Applies.no(f"the workload trains in {case.workload.precision} already")
        if case.inspected(self.name).get("probabilities") == "low":
            return Applies.no(
                "the loss is binary_cross_entropy of probabilities, which a low precision rounds to 0 and 1 "
                "(torch refuses it under autocast on CUDA): give logits to binary_cross_entropy_with_logits"
            )
        dtypes = case.workload.model.dtypes
        if dtypes and "float32" not in dtypes and not _double(dtypes):
            return Applies.no(f"the parameters are {', '.join(dtypes)}, autocast works on float32")
        if case.fits and not self._dtypes(case):
            return Applies.no("this device multiplies bfloat16 and float16 no faster than float32 (measured)")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Seconds of forward and backward under autocast on a copy; where that was not tried, from the peaks."""
        found = case.inspected(self.name)
        ratio = found.get(f"{setting['dtype']}_channels_last") if self.companions(case, setting) else None
        ratio = ratio or found.get(setting["dtype"])
        if ratio is not None:
            # next to changes of the model that a low precision takes longer than it takes without them
            others = [case.inspected(change.strategy) for change in case.plan.changes]
            known = [each for each in others if each.get("ratio") and each.get("ratio_low")]
            return tried_gain(case, ratio * prod(float(each["ratio_low"] / each["ratio"]) for each in known))
        ratio = peak_ratio(case, SHORT[setting["dtype"]]) if setting["dtype"] in SHORT else None
        share = operator_share(case, {"matmul"})
        if ratio is None or share is None:
            return None
        likely = at_most(compute_gain(case, 1 - share * (1 - 1 / ratio)))
        best = compute_gain(case, share / ratio + (1 - share) / 2)
        if likely is None or best is None:
            return None
        return ranged(likely, likely.value, likely.low, max(likely.high, best.high))

    def settings(self, case: Case) -> list[Setting]:
        full: Setting = {"sigmoid": "float32"} if case.inspected(self.name).get("probabilities") else {}
        return [
            {"dtype": dtype, "loss_scaling": True} if dtype == "float16" else {"dtype": dtype, **full}
            for dtype in self._dtypes(case)
        ]

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """Activations of half the size, in another precision than the user's: the last resort."""
        return [(1.0, {"dtype": "float32" if _double(case.workload.model.dtypes) else "bfloat16"})]

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """Convolutions in a low precision want their channels last: alone each brings less (on both devices)."""
        if case.workload.model.has_conv2d and case.plan.setting("channels_last") is None:
            return [Change(strategy="channels_last")]
        return []

    def inspect(self, live: Any) -> Setting:
        """Forward and backward under autocast over those without, tried on copies of the model."""
        import torch

        if live.setup.precision.dtype is not None or live.training.scaler is not None:
            return {}
        training, probabilities = live.training, live.training.takes_probabilities
        last, model = torch.channels_last, training.model
        double = _double([str(each.dtype).removeprefix("torch.") for each in model.parameters()])
        if probabilities and not double:  # torch's autocast on CUDA refuses their loss
            from autoopt_strategies.compute.rewriting.layers import gives_full_probabilities as full

            batch = training.next()[0] if live.device.kind == "cpu" else None
            if batch is None or not full(model, lambda model: training.loss(model, batch), torch.bfloat16):
                return {"probabilities": "low"}
        convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
        laid_out = all(module.weight.is_contiguous(memory_format=last) for module in convolutions)

        def changed(model: Any) -> Any:  # convolutions in the layout that they want besides
            model = SINGLE(model) if double else FULL(model) if probabilities else model
            return model if laid_out else to_channels_last(model)

        low = {"bfloat16": torch.bfloat16} | ({"float16": torch.float16} if live.device.kind == "cuda" else {})
        autocast: dict[str, Any] = {"float32": None} if double else low
        layout = "" if laid_out else "_channels_last"
        found = {f"{name}{layout}": live.ratio_with(changed, dtype=dtype) for name, dtype in autocast.items()}
        return found | ({"probabilities": "full"} if probabilities else {})

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        if setting["dtype"] == "float32":
            return setup.with_model(SINGLE)
        scaled = bool(setting.get("loss_scaling", False))
        changed = setup.with_precision(dtype=setting["dtype"], loss_scaling=scaled)
        return changed.with_model(FULL) if setting.get("sigmoid") else changed

    def recipe(self, setting: Setting) -> Recipe:
        if setting["dtype"] == "float32":
            lines = "model.float()  # and what it takes: batch.float()"
            return Recipe(pytorch=lines, lightning={"precision": "32-true"})
        short = SHORT[setting["dtype"]]
        lines = f"with torch.autocast(device.type, dtype=torch.{setting['dtype']}):\n    loss = ..."
        if setting.get("loss_scaling"):
            lines += "\nscaler.scale(loss).backward()  # scaler = torch.amp.GradScaler(device.type)"
            lines += "\nscaler.step(optimizer)\nscaler.update()"
        if setting.get("sigmoid"):
            lines = f"sigmoids_in_full(model)  # probabilities in float32\n{lines}"
        return Recipe(
            pytorch=lines,
            lightning={"precision": "16-mixed" if short == "fp16" else "bf16-mixed"},
            transformers={short: True},
            accelerate={"mixed_precision": short},
        )

    def _dtypes(self, case: Case) -> list[str]:
        """The likeliest first; those that are known to be no faster left out."""
        if _double(case.workload.model.dtypes):
            return ["float32"]
        wanted = ["bfloat16", "float16"] if case.device == "cuda" else ["bfloat16"]
        ratios = {dtype: peak_ratio(case, SHORT[dtype]) for dtype in wanted}
        fit = [dtype for dtype in wanted if (ratio := ratios[dtype]) is None or ratio >= FASTER]
        if case.device == "cuda" and len(fit) == 2 and ratios["float16"] and ratios["bfloat16"]:
            # Where both are as fast, bfloat16 needs no scaler and does not overflow.
            return fit if ratios["float16"] > FASTER * ratios["bfloat16"] else ["bfloat16"]
        return fit


def _double(dtypes: Collection[str]) -> bool:
    return {*dtypes} == {"float64"}
