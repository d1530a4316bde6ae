"""Native operators: activations, normalizations and convolutions over whole rows, as torch computes them fastest."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, operator_share, tried_or_at_most
from autoopt_strategies.compute.rewriting.operators import statements
from autoopt_strategies.compute.rewriting.source import RewriteFunctions, edits_of


def transforms(setting: Setting) -> list[Callable[[Any], Any]]:
    """``model -> model`` of a setting, in their order."""
    found: list[Callable[[Any], Any]] = []
    if setting.get("functions"):
        found.append(RewriteFunctions(tuple(setting["functions"]), statements))
    if setting.get("convolutions"):
        from autoopt_strategies.compute.rewriting.windows import MultiplyWindows

        found.append(MultiplyWindows(tuple(setting["convolutions"]["paths"])))
    return found


EXAMPLE = {"functions": [{"file": "model.py", "module": "model", "function": "NewGELU.forward", "native": "gelu_tanh"}]}


class NativeOperators(Strategy):
    """Computes hand-written operators by torch's own ones.

    What it does: GELU (both forms), SiLU, Mish, RMSNorm and LayerNorm that a module writes out become one call in its
        ``forward``. A convolution whose kernel spans the whole width of its input becomes a product of its weights
        with windows of rows. What a module computes decides, not its source: outputs and gradients are compared on the
        real input and on random ones, and each operator is timed on that input.
    When it helps: activations written as several operations, each of which reads and writes the tensor; Kim's
        sentence classifier on a CPU.
    When it does not: a model of torch's own layers; a compiled model, whose operations are fused already.
    What it costs: results differ in the last bits.
    Source: https://docs.pytorch.org/docs/stable/nn.functional.html;
        Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP 2014.
    """

    name = "native_operators"
    title = "native operators"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    example = Example(EXAMPLE, inspected=EXAMPLE, losses=1e-4)

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if found.get("functions") or found.get("convolutions"):
            return Applies.yes()
        if found.get("error"):
            return Applies.no(f"looking for operators failed: {found['error']}")
        return Applies.no("no hand-written operator was found that torch's own computes faster")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Seconds of forward and backward with it on a copy; else what all such operators take is the most it saves."""
        share = operator_share(case, kinds=("elementwise",), names=("conv",))
        return tried_or_at_most(case, case.inspected(self.name).get("ratio"), None if share is None else 1 - share)

    def settings(self, case: Case) -> list[Setting]:
        found = case.inspected(self.name)
        return [{kind: found[kind] for kind in ("functions", "convolutions") if found.get(kind)}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return reduce(lambda one, change: one.with_model(change), transforms(setting), setup)

    def recipe(self, setting: Setting) -> Recipe:
        functions, convolutions = setting.get("functions", []), setting.get("convolutions", {})
        lines = [f"# in {each['function']}: torch's own {each['native']}" for each in functions]
        lines += [f"# {path}: F.linear(windows, weight, bias)" for path in convolutions.get("paths", ())]
        places = tuple(
            Edit(
                "call",
                (each["file"], str(each["line"]), each["called"], "convolved({called}, {arguments})"),
                parts=("autoopt_strategies.compute.rewriting.windows:convolved",),
            )
            for each in convolutions.get("places", ())
        )
        return Recipe.noted("\n".join(lines), edits=(*edits_of(functions, statements), *places))

    def inspect(self, live: Any) -> Setting:
        """Operators that a model writes out and that torch has equal and faster, and what they bring on a copy."""
        from autoopt_strategies.compute.rewriting.native import survey_operators

        training = live.training
        found = survey_operators(training.model, training.loss, training.next()[0])
        changes = transforms(found)
        if changes:
            found["ratio"] = live.ratio_with(lambda copied: reduce(lambda one, change: change(one), changes, copied))
        return found
