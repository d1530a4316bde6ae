"""Smaller models: ``build()`` is asked for fewer channels or layers by the parameters that it has for them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from time import perf_counter
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, UserBuild, Wrap
from autoopt_strategies.compute.rewriting.source import Refused
from autoopt_strategies.predictions import LEAST_SAVING, compute_gain, declared
from autoopt_strategies.trying import Setting, Settings, first_line, kept

SHARES = (0.5, 0.25, 0.75)
MOST_SIZES = 3
PATIENCE_SECONDS = 30.0
"""For all calls of ``build``; one that loads a large data set is asked less often."""

Shapes = list[tuple[int, ...]]
OTHER_MODELS = ("pruning", "distillation", "lora", "freezing")
TINY = {
    "build": "autoopt.testing.strategies:tiny_workload",
    "sizes": [{"name": "width", "whole": 8, "values": {"0.5": [4, 422, 0.32], "0.25": [2, 142, 0.12]}}],
    "parameters": 1410,
}


def sized(model: Any, build: Callable[..., Any], arguments: Mapping[str, int]) -> Any:
    """The model that the user's ``build`` gives for other arguments; the one given is let go of.

    Args:
        build: the user's, called afresh.
        arguments: whole numbers by the names of its parameters.
    """
    model.to("cpu")  # its weights need no room on the device
    return build(**arguments).model


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
            half, now = values.get("0.5"), arguments.get(name)
            further = "0.75" if half is None else "0.25" if now == half else ""
            if half is not None and now is None:
                trial = yield setting(name, half)
                if kept(trial):
                    arguments[name], further = half, "0.25"
                elif trial is not None and trial.verdict in ("quality_lost", "inconclusive"):
                    further = "0.75"  # where it learnt too little, something between it and the whole may do
            if further in values and kept((yield setting(name, values[further]))):
                arguments[name] = values[further]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        smaller = Wrap.of(sized, build=UserBuild(setting["build"]), arguments=dict(setting["arguments"]))
        # It stands before all changes of the model: what they did to the one that is let go of would be lost.
        return dataclasses.replace(setup, model=(smaller, *setup.model))

    def recipe(self, setting: Setting) -> Recipe:
        arguments = ", ".join(f"{name}={value}" for name, value in setting["arguments"].items())
        code = f"workload.model = {setting['build'].rpartition(':')[2]}({arguments}).model"
        return Recipe.noted(code, f"{code}  # before the optimizer is made")

    def inspect(self, live: Any) -> Setting:
        """Sizes of a live workload's ``build``, by asking it for smaller ones; what saves most work comes first.

        Returns:
            ``build`` (its import string), ``parameters`` of the whole model, and ``sizes``: name, whole value and, by
            share, smaller values that were tried, each with its parameters and its share of the work; ``refused``:
            reasons by value. Only a ``reason`` where there are no sizes.
        """
        if getattr(live.spec, "script", None) is not None:
            return {"reason": "a script as it is has no build() that could be asked for another size"}
        if live.workload.adapter is not None:
            return {"reason": "build() gives a trainer's objects, whose steps are bound to the model that it made"}
        build = UserBuild(live.spec.workload)
        if not callable(build.function):
            return {"reason": "the import string names a workload, not a function that could be asked for another size"}
        wholes = integer_defaults(build.function)
        if not wholes:
            return {"reason": "build() has no whole-number parameter with a default, such as build(width: int = 64)"}
        batch, began = live.training.to_device(live.training.next()[0]), perf_counter()
        try:
            whole = asked(live, build, {}, batch)
        except Refused as problem:
            return {"reason": f"build() called once more gives no model like the first: {problem}"}
        each = perf_counter() - began
        sizes: list[Setting] = []
        refused: dict[str, str] = {}
        for name, value in wholes.items():
            if perf_counter() - began + len(SHARES) * each > PATIENCE_SECONDS:
                refused[name] = f"a call of build() takes {each:.1f} s, so that it was not asked for another {name}"
                continue
            values, reasons = _smaller(live, build, name, value, whole, batch)
            refused |= reasons
            if values:
                sizes.append({"name": name, "whole": value, "values": values})
        if not sizes:
            text = "; ".join(f"{name}: {why}" for name, why in refused.items())
            return {"reason": f"no parameter of build() is a size of the model alone: {text}"}
        sizes.sort(key=lambda size: min(work for _, _, work in size["values"].values()))
        return {"build": build.spec, "parameters": whole.parameters, "sizes": sizes[:MOST_SIZES], "refused": refused}


def _arguments(case: Case) -> Mapping[str, int]:
    """The incumbent's, where it has another size already."""
    found: Mapping[str, int] = (case.plan.setting(ModelSize.name) or {}).get("arguments", {})
    return found


def _work(sizes: list[Setting], arguments: Mapping[str, int]) -> float | None:
    """Share of the floating-point work of the whole model; None where a value was not asked for."""
    known = {(size["name"], value): work for size in sizes for value, _, work in size["values"].values()}
    shares = [known.get(item) for item in arguments.items()]
    return None if None in shares else prod(share for share in shares if share is not None)


# which parameters are sizes


@dataclass(frozen=True)
class Answer:
    """A model and its forward pass on a batch.

    ``work``: floating-point operations. ``shapes``: of the tensors that it answers with; None where the loss does not
    call the model itself. ``rows``: of its embeddings.
    """

    parameters: int
    work: int
    shapes: Shapes | None
    rows: Mapping[str, int]


def integer_defaults(function: Callable[..., Any]) -> dict[str, int]:
    """Parameters with a whole number above 1 as their default, in their order."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default for p in parameters if p.kind in named and type(p.default) is int and p.default > 1}


def _smaller(
    live: Any, build: UserBuild, name: str, default: int, whole: Answer, batch: Any
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Smaller values that can be trained with, by share, and why others cannot."""
    values: dict[str, list[Any]] = {}
    reasons: dict[str, str] = {}
    tried: set[int] = set()
    for share in SHARES:
        value = int(default * share)
        if value < 1 or value in tried:
            continue
        tried.add(value)
        try:
            found = asked(live, build, {name: value}, batch, whole)
        except Refused as problem:
            reasons[f"{name}={value}"] = str(problem)
            continue
        if found.parameters >= whole.parameters:
            return {}, {name: "the model has as many parameters with less of it"}
        work = found.work / whole.work if whole.work else found.parameters / whole.parameters
        if work > 1 - LEAST_SAVING:
            reasons[f"{name}={value}"] = f"it saves hardly any work: {work:.2f} of it stays"
            continue
        values[f"{share:g}"] = [value, found.parameters, work]
    return values, reasons


def asked(live: Any, build: UserBuild, arguments: Mapping[str, int], batch: Any, whole: Answer | None = None) -> Answer:
    """The model that ``build`` gives for these arguments, tried on a batch as training calls it.

    Args:
        whole: the one that it must answer as; None: it is that one.

    Raises:
        Refused: it cannot be built, does not take every batch, answers something else, or its optimizer trains another
            model.
    """
    import torch
    from torch import nn

    try:
        model = build(**arguments).model
        model.to(live.training.device.torch).train()
    except Exception as error:  # whatever a user's build does not like
        raise Refused(f"it cannot be built: {first_line(error)}") from None
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rows = {name: each.num_embeddings for name, each in model.named_modules() if isinstance(each, nn.Embedding)}
    if whole is not None:
        # Before anything is looked up: an index without a row ends all work of the process on a CUDA device.
        short = [at for at, count in rows.items() if count < whole.rows.get(at, count)]
        if short:
            raise Refused(f"the embedding {short[0]} would not have a row for every input")
    factory = live.workload.optimizer
    if not isinstance(factory, torch.optim.Optimizer):  # one is made anew over the model, by names of its parameters
        try:
            made = factory(list(model.parameters()))
        except Exception as error:
            raise Refused(f"its optimizer cannot be made: {first_line(error)}") from None
        own = {id(p) for p in model.parameters()}
        if any(id(p) not in own for group in made.param_groups for p in group["params"]):
            raise Refused("the optimizer takes parameters of the model that build() made, not those that it is given")
    try:
        work, shapes, loss = _forward(live, model, batch, whole.shapes if whole is not None else None)
    except Refused:
        raise
    except Exception as error:  # and whatever the forward pass does not
        raise Refused(f"it does not take the same batch: {first_line(error)}") from None
    if not isfinite(loss):
        raise Refused(f"its loss is {loss}")
    return Answer(parameters, work, shapes, rows)


def _forward(live: Any, model: Any, batch: Any, wanted: Shapes | None) -> tuple[int, Shapes | None, float]:
    """Floating-point operations of matrix products and convolutions, shapes of the answer, and the loss.

    Args:
        wanted: shapes that the answer must have, before a loss is made of it; None: any.
    """
    import torch
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import FlopCounterMode

    answers: list[Shapes] = []

    def look(_: Any, __: Any, answer: Any) -> None:
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(answer) if isinstance(leaf, torch.Tensor)]
        if wanted is not None and not answers and shapes != wanted:
            raise Refused(f"it answers with {shapes} where the whole model answers with {wanted}")
        answers.append(shapes)

    hook = model.register_forward_hook(look)
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), counter:
            loss = live.training.loss(model, batch)
    finally:
        hook.remove()
    return counter.get_total_flops(), answers[0] if answers else None, float(loss)
