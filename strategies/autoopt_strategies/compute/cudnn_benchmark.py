"""cuDNN's search for the fastest convolution algorithm."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import of_convolutions
from autoopt_strategies.trying import Setting


class CudnnBenchmark(Strategy):
    """Lets cuDNN try its algorithms out for each shape of convolution.

    No run and no benchmark has kept it so far.

    What it does: ``torch.backends.cudnn.benchmark = True``.
    When it helps: convolutions whose shapes stay the same from step to step.
    When it does not: shapes that change, each of which is searched anew; no convolutions; the CPU.
    What it costs: a slower first step for each shape; algorithms, and the last bits, may differ between runs.
    Source: https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.benchmark
    """

    name = "cudnn_benchmark"
    title = "cuDNN's search"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    example = Example({"enabled": True}, device="cuda:0")

    def applies(self, case: Case) -> Applies:
        if case.device != "cuda":
            return Applies.no(f"cuDNN runs on CUDA devices; the device is {case.device}")
        if not any("Conv" in kind for kind in case.workload.model.modules):
            return Applies.no("the model has no convolution")
        if case.workload.static_shapes is False:
            return Applies.no("shapes change from batch to batch, and each would be searched anew")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        return of_convolutions(case, "conv")

    def settings(self, case: Case) -> list[Setting]:
        return [{"enabled": True}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_flags(cudnn_benchmark=setting["enabled"])

    def recipe(self, setting: Setting) -> Recipe:
        line = f"torch.backends.cudnn.benchmark = {setting['enabled']}"
        return Recipe.noted(line, lightning={"benchmark": setting["enabled"]})
