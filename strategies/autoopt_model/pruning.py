"""Structured pruning: the weakest channels are taken out before training goes on."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.predictions import LEAST_SAVING
from autoopt_strategies.trying import Setting, Settings, first_line, more_or_less

RATIOS = (0.3, 0.5, 0.15)
ROUND_TO = 4
"""Channels are left in multiples of this, which vector units and heads of attention want."""


def narrowed(model: Any, ratio: float, inputs: Any) -> Any:
    """The model, in place, with a part of the channels of each layer removed.

    Args:
        ratio: of channels that go, those with the smallest weights first.
        inputs: shape and dtype of each tensor that the model is called with.
    """
    import torch
    import torch_pruning as tp  # type: ignore[import-untyped]
    from torch import nn

    device = next(model.parameters()).device
    example = []
    for shape, name in inputs:
        dtype = getattr(torch, name)
        make = torch.randn if dtype.is_floating_point else torch.zeros
        example.append(make(shape, dtype=dtype, device=device))
    weighty = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    training = model.training
    state = torch.get_rng_state()
    pruner = tp.pruner.BasePruner(
        model.eval(), tuple(example), importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio, ignored_layers=weighty[-1:], round_to=ROUND_TO,
    )  # fmt: skip
    pruner.step()
    torch.set_rng_state(state)
    return model.train(training)


def to_users_model(case: Case, name: str, unknown: str) -> Applies:
    """Whether a narrower model can be made of the user's: where its inputs are known, and nothing else replaced it."""
    found = case.inspected(name)
    if "inputs" not in found:
        return Applies.no(found.get("reason") or unknown)
    if any(case.plan.setting(other) is not None for other in {"distillation", "lora", "pruning"} - {name}):
        return Applies.no("the model is another one already")
    return Applies.yes()


class Pruning(Strategy):
    """Takes the weakest channels out, then trains.

    What it does: torch-pruning finds the layers whose channels belong together and removes a part of each, by the size
        of their weights; the smaller model is then trained (fine-tuned) as before. Steps are really shorter.
    When it helps: convolution nets and MLPs that are wider than the task needs, pretrained or not.
    When it does not: masks on single weights (unstructured pruning) bring no speed on dense kernels; none are tried.
        Attention whose heads are counted in the code cannot be narrowed; it is tried on a copy first.
    What it costs: another model is learnt, so that it is trained to the target, with more than one seed.
        ``torch-autoopt[model]`` brings torch-pruning.
    Source: Fang et al., "DepGraph: towards any structural pruning", CVPR 2023
    """

    name = "pruning"
    title = "structured pruning"
    stages = frozenset({"forward", "backward", "optimizer", "evaluate"})
    risk = Risk.MODEL
    example = Example(
        {"ratio": 0.5, "inputs": [[[2, 3, 8, 8], "float32"]]},
        inspected={"inputs": [[[2, 3, 8, 8], "float32"]], "parameters": {"0.3": [1410, 800]}},
        losses=None,
        trains=importlib.util.find_spec("torch_pruning") is not None,
    )

    def applies(self, case: Case) -> Applies:
        return to_users_model(case, self.name, "how the model is called is not known")

    def settings(self, case: Case) -> Settings:
        inputs = case.inspected(self.name)["inputs"]
        return more_or_less(*({"ratio": ratio, "inputs": inputs} for ratio in RATIOS))

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_model(Wrap.of(narrowed, **setting))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            "pruner = torch_pruning.pruner.BasePruner(\n"
            "    model, example_inputs, importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),\n"
            f"    pruning_ratio={setting['ratio']:g}, ignored_layers=[the_last_layer], round_to={ROUND_TO},\n"
            ")\npruner.step()  # before the optimizer is made"
        )
        return Recipe.noted(code, f"torch-pruning, ratio {setting['ratio']:g}, before the optimizer is made")

    def inspect(self, live: Any) -> Setting:
        return narrowing(live.training)


def narrowing(training: Any) -> Setting:
    """How the model is called, and whether a narrowed copy answers; or the reason why it cannot be narrowed."""
    if importlib.util.find_spec("torch_pruning") is None:
        return {"reason": "torch-pruning is not installed: pip install 'torch-autoopt[model]'"}
    inputs = inputs_of(training)
    return {"reason": inputs} if isinstance(inputs, str) else narrowed_copy(training.model, inputs)


def inputs_of(training: Any) -> list[list[Any]] | str:
    """Shape (of two samples) and dtype of the tensors that the loss calls the model with, or why that is not known."""
    import torch

    calls: list[tuple[Any, Any]] = []
    hook = training.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    try:
        with torch.no_grad():
            training.forward(training.to_device(training.next()[0]))
    finally:
        hook.remove()
    if not calls:
        return "the loss does not call the model itself"
    args, kwargs = calls[0]
    if kwargs or not all(isinstance(arg, torch.Tensor) and arg.dim() for arg in args):
        return "the model is called with more than tensors in their places"
    return [[[min(2, arg.shape[0]), *arg.shape[1:]], str(arg.dtype).removeprefix("torch.")] for arg in args]


def narrowed_copy(model: Any, inputs: list[list[Any]]) -> Setting:
    """Whether narrowing works: ``inputs`` and parameters before and after, or the reason why not."""
    import torch

    before = sum(p.numel() for p in model.parameters())
    try:
        copied = narrowed(copy.deepcopy(model), RATIOS[0], inputs)
        tensors = [torch.zeros(shape, dtype=getattr(torch, name)) for shape, name in inputs]
        device = next(model.parameters()).device
        with torch.no_grad():
            copied.eval()(*(tensor.to(device) for tensor in tensors))
    except Exception as error:  # whatever a user's forward does not like about fewer channels
        return {"reason": f"it does not run with fewer channels: {first_line(error)}"}
    after = sum(p.numel() for p in copied.parameters())
    if after > (1 - LEAST_SAVING) * before:
        return {"reason": f"hardly any channel can be taken out: {before} parameters would become {after}"}
    return {"inputs": inputs, "parameters": {str(RATIOS[0]): [before, after]}}
