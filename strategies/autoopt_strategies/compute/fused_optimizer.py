"""Fused or grouped optimizer: all parameters updated in a few kernels."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import at_most, gain, issued, seconds_of, tried_gain
from autoopt_strategies.trying import ChangedOptimizer, Setting, Settings, ratio_in_turns, until_kept

FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
GROUPED = FUSED | {"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"}


def updating_by(optimizer: Any, implementation: str) -> Any:
    """The same optimizer with another of torch's implementations; as it is, where its class has none such.

    Args:
        implementation: ``fused`` (one kernel for many parameters) or ``foreach`` (one per operation).
    """
    if implementation not in optimizer.defaults:  # of several optimizers of a script, one may be L-BFGS
        return optimizer
    other = "foreach" if implementation == "fused" else "fused"
    return rebuilt(optimizer, **{implementation: True, **({other: False} if other in optimizer.defaults else {})})


def rebuilt(optimizer: Any, **options: Any) -> Any:
    """The same optimizer over the same groups with other options; it must not have stepped yet."""
    groups = [{**group, **options} for group in optimizer.param_groups]
    made = type(optimizer)(groups, lr=optimizer.defaults["lr"], **options)
    made.defaults.update({**optimizer.defaults, **options})
    return made


def update_ratios(optimizer: Any, room: float) -> Setting:
    """Seconds of an update by each implementation over those of the one in use, on copies; empty where none can be.

    Args:
        room: bytes that copies of the parameters, their gradients and states may take; nothing is tried beyond.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if 10 * sum(p.numel() * p.element_size() for p in parameters) > room:
        return {}
    if not type(optimizer).__module__.startswith("torch.optim") or type(optimizer).__name__ not in GROUPED:
        return {}
    ways = ["foreach", *(["fused"] if type(optimizer).__name__ in FUSED else [])]
    device = parameters[0].device if parameters else None
    try:
        pairs = {way: (on_copies(optimizer), updating_by(on_copies(optimizer), way)) for way in ways}
        return {way: ratio_in_turns(one.step, other.step, device) for way, (one, other) in pairs.items()}
    except RuntimeError:  # no room for copies, or an implementation that does not know these tensors
        return {}


def on_copies(optimizer: Any) -> Any:
    """The same optimizer over copies of its parameters, with gradients."""
    import torch

    def copied(parameter: Any) -> Any:
        made = parameter.detach().clone().requires_grad_()
        made.grad = torch.full_like(made, 1e-4)
        return made

    groups = [
        {**group, "params": [copied(p) for p in group["params"] if p.requires_grad]} for group in optimizer.param_groups
    ]
    return type(optimizer)(groups, lr=optimizer.defaults["lr"])


class FusedOptimizer(Strategy):
    """Updates all parameters in a few kernels rather than one after the other.

    What it does: ``fused=True`` or ``foreach=True`` of torch's own optimizers.
    When it helps: many small parameters, where launches cost more than the update; memory-bound updates,
        which the fused one reads and writes once.
    When it does not: the optimizer is a small part of the step; an optimizer of one's own.
    What it costs: nothing for ``fused``; ``foreach`` takes memory for intermediate lists.
    Source: https://docs.pytorch.org/docs/stable/optim.html#algorithms
    """

    name = "fused_optimizer"
    title = "fused optimizer"
    stages = frozenset({"optimizer"})
    risk = Risk.NUMERIC
    switchable = True
    example = Example({"implementation": "fused"}, losses=1e-4)

    def applies(self, case: Case) -> Applies:
        optimizer = case.workload.optimizer
        if not optimizer.module.startswith("torch.optim") or optimizer.type not in GROUPED:
            return Applies.no(f"{optimizer.type} has no fused or grouped update")
        if optimizer.options.get("fused"):
            return Applies.no(f"{optimizer.type} is fused already")
        if optimizer.options.get("differentiable") or optimizer.options.get("sparse"):
            return Applies.no("a differentiable or sparse optimizer cannot be fused")
        if not self._ways(case):
            return Applies.no(f"{optimizer.type} updates in groups already")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Seconds of an update of copies; where that was not tried, at the very best its bytes over bandwidth."""
        stage = case.pipeline.stage("optimizer") if case.pipeline is not None else None
        if stage is None:
            return None
        ratio = case.inspected(self.name).get(setting["implementation"])
        if ratio is not None:
            return tried_gain(case, ratio, ("optimizer",), issued(case, update=min(1.0, ratio)))
        best = stage.ceiling_seconds if stage.ceiling_seconds is not None else stage.seconds / 4
        fewer = issued(case, update=0.0)
        return at_most(gain(case, {"optimizer": min(best, seconds_of(case, "optimizer")), **fewer}))

    def settings(self, case: Case) -> Settings:
        return until_kept({"implementation": way} for way in self._ways(case))

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """The copies of all parameters that torch's grouped update makes, which is its choice on CUDA."""
        grouped = case.device == "cuda" and case.workload.optimizer.options.get("foreach") is not False
        return [(0.0, {"implementation": "fused"})] if grouped and "fused" in self._ways(case) else []

    def memory_saved(self, case: Case) -> float | None:
        return float(case.workload.model.parameter_bytes)

    def inspect(self, live: Any) -> Setting:
        """Seconds of an update of copies by each implementation, over those of the one in use."""
        import torch

        cuda = live.device.kind == "cuda"  # room where the parameters are
        free = torch.cuda.mem_get_info(live.device.torch)[0] if cuda else live.facts.available_ram_bytes
        return update_ratios(live.training.optimizer, float(free or 0))

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(ChangedOptimizer(updating_by, (setting["implementation"],)))

    def recipe(self, setting: Setting) -> Recipe:
        word = setting["implementation"]
        code = f"optimizer = torch.optim.AdamW(params, {word}=True)  # or SGD, Adam ..."
        edits = (Edit("optimizer", arguments={word: True}),)
        theirs = {"optim": "adamw_torch_fused" if word == "fused" else "adamw_torch"}
        return Recipe.noted(code, f"pass {word}=True to the optimizer", edits, transformers=theirs)

    def _ways(self, case: Case) -> list[str]:
        optimizer = case.workload.optimizer
        ways = ["fused"] if optimizer.type in FUSED and case.device in ("cpu", "cuda") else []
        # On CUDA torch groups by default.
        if case.device == "cpu" and not optimizer.options.get("foreach"):
            ways.append("foreach")
        return ways
