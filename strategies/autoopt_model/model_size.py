"""Smaller models: ``build()`` is asked for fewer channels or layers by the parameters that it has for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, UserBuild
from autoopt_model.sizes import survey
from autoopt_strategies.common import Setting, Settings, compute_gain, declared, kept

OTHER_MODELS = ("pruning", "distillation", "lora", "freezing")
TINY = {
    "build": "autoopt.testing.strategies:tiny_workload",
    "sizes": [{"name": "width", "whole": 8, "values": {"0.5": [4, 422, 0.32], "0.25": [2, 142, 0.12]}}],
    "parameters": 1410,
}


@dataclass(frozen=True)
class Sized:
    """``model -> model``: the one that the user's ``build`` gives for other arguments; the one given is let go of.

    Args:
        build: the user's, called afresh.
        arguments: whole numbers by the names of its parameters.
    """

    build: Callable[..., Any]
    arguments: Mapping[str, int]

    def __call__(self, model: Any) -> Any:
        model.to("cpu")  # its weights need no room on the device
        return self.build(**self.arguments).model


class ModelSize(Strategy):
    """Trains a narrower or shallower model, as your own ``build()`` makes it.

    No run and no benchmark has kept it so far.

    What it does: whole-number parameters of ``build`` with a default, such as ``width: int = 64``, are halved, then
        quartered where that was kept, or set to three quarters where it missed the target. What saves most
        floating-point work goes first. The model alone is taken; data, loss and optimizer stay.
    When it helps: a model that is larger than the target needs: each step is shorter, and so is every later request.
    When it does not: the target needs all of the model; steps that wait for data or for launches; a ``build()`` without
        such parameters, Lightning modules and Trainers, scripts as they are.
    What it costs: another model is learnt, so that it is trained to the target, with more than one seed. The learning
        rate stays, which may not be the best one of another width. Each start calls ``build()`` twice.
    Source: Kaplan et al., "Scaling laws for neural language models", 2020; Hoffmann et al., "Training compute-optimal
        large language models", NeurIPS 2022
    """

    name = "model_size"
    title = "smaller model of the same build()"
    stages = frozenset({"forward", "backward", "optimizer", "evaluate"})
    risk = Risk.MODEL
    example = Example({"arguments": {"width": 4}, "build": TINY["build"]}, inspected=TINY, losses=None)

    def applies(self, case: Case) -> Applies:
        if case.sites is not None:
            return Applies.no("a script as it is has no build() that could be asked for another size")
        found = case.inspected(self.name)
        if not found.get("sizes"):
            return Applies.no(found.get("reason") or "whether build() can be asked for another size is not known")
        other = next((name for name in OTHER_MODELS if case.plan.setting(name) is not None), None)
        if other is not None:
            return Applies.no(f"{other} changes the model already")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Forward and backward in their share of the floating-point work, at the very best."""
        sizes = case.inspected(self.name).get("sizes", [])
        ratio, before = _work(sizes, setting["arguments"]), _work(sizes, _arguments(case))
        return None if ratio is None or not before else declared(compute_gain(case, ratio / before))

    def settings(self, case: Case) -> Settings:
        found, arguments = case.inspected(self.name), dict(_arguments(case))

        def setting(name: str, value: int) -> Setting:
            return {"arguments": {**arguments, name: value}, "build": found["build"]}

        for size in found["sizes"]:
            name, values = size["name"], {share: each[0] for share, each in size["values"].items()}
            half = values.get("0.5")
            smaller = half is not None and arguments.get(name) == half
            larger = half is None
            if half is not None and name not in arguments:
                trial = yield setting(name, half)
                # Where it learnt too little, or that was left open, something between it and the whole may do.
                larger = trial is not None and trial.verdict in ("quality_lost", "inconclusive")
                smaller = kept(trial)
                if smaller:
                    arguments[name] = half
            if smaller and "0.25" in values:
                if kept((yield setting(name, values["0.25"]))):
                    arguments[name] = values["0.25"]
            elif larger and "0.75" in values and kept((yield setting(name, values["0.75"]))):
                arguments[name] = values["0.75"]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        sized = Sized(UserBuild(setting["build"]), dict(setting["arguments"]))
        # It stands before all changes of the model: what they did to the one that is let go of would be lost.
        return dataclasses.replace(setup, model=(sized, *setup.model))

    def recipe(self, setting: Setting) -> Recipe:
        arguments = ", ".join(f"{name}={value}" for name, value in setting["arguments"].items())
        code = f"workload.model = {setting['build'].rpartition(':')[2]}({arguments}).model"
        return Recipe.noted(code, f"{code}  # before the optimizer is made")

    def inspect(self, live: Any) -> Setting:
        """Parameters of ``build`` that are sizes of its model, by asking it for smaller ones."""
        return survey(live)


def _arguments(case: Case) -> Mapping[str, int]:
    """The incumbent's, where it has another size already."""
    found: Mapping[str, int] = (case.plan.setting(ModelSize.name) or {}).get("arguments", {})
    return found


def _work(sizes: list[Setting], arguments: Mapping[str, int]) -> float | None:
    """Share of the floating-point work of the whole model; None where a value was not asked for."""
    known = {(size["name"], value): work for size in sizes for value, _, work in size["values"].values()}
    shares = [known.get(item) for item in arguments.items()]
    return None if None in shares else prod(share for share in shares if share is not None)
