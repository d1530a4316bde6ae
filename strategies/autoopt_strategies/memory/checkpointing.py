"""Activation checkpointing: activations of repeated blocks are computed again instead of kept."""

from __future__ import annotations

import functools
from typing import Any

from autoopt import Applies, Case, Change, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.compute.rewriting.source import with_method
from autoopt_strategies.predictions import batch_now, gain, memory_short, memory_used, per_sample, ranged, seconds_of
from autoopt_strategies.training.batch_size import BatchSize
from autoopt_strategies.trying import Setting, Settings, until_kept


def checkpoint_blocks(model: Any, every: int = 1, selective: bool = False) -> Any:
    """The model, whose repeated blocks keep only their inputs for the backward pass and compute the rest again there.

    Args:
        every: of so many blocks one is checkpointed.
        selective: keeps what is expensive to compute (products with weights, fused attention), recomputes the rest.
    """
    for block in repeated_blocks(model)[::every]:
        block.__class__ = checkpointed(type(block), selective)
    return model


def checkpointed(kind: type, selective: bool) -> type:
    """A class like the block's own whose forward runs again in the backward pass; plain in evaluation."""
    import torch
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    options: dict[str, Any] = {"use_reentrant": False}
    if selective:
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, expensive_operators())
    plain = kind.forward  # type: ignore[attr-defined]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return plain(self, *args, **kwargs)
        return checkpoint(plain, self, *args, **options, **kwargs)

    return with_method(kind, "forward", forward)


def expensive_operators() -> list[Any]:
    """Operators whose results are worth their memory.

    ``bmm`` is none of them: in attention written out its result is the scores, batch x heads x length x length,
    which are most of the memory and cheap to compute again.
    """
    import torch

    aten = torch.ops.aten
    names = (
        "mm", "addmm", "convolution", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention_for_cpu",
    )  # fmt: skip
    return [getattr(aten, name).default for name in names if hasattr(aten, name)]


def repeated_blocks(model: Any) -> list[Any]:
    """Blocks that repeat: children of one class, with parameters and parts, in one list; the outermost ones."""
    from torch import nn

    found: list[Any] = []
    inside: set[int] = set()
    for container in model.modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)) or id(container) in inside:
            continue
        by_class: dict[type, list[Any]] = {}
        for child in container.children():
            if len(list(child.children())) and any(True for _ in child.parameters()):
                by_class.setdefault(type(child), []).append(child)
        for blocks in by_class.values():
            if len(blocks) > 1:
                found += blocks
                inside |= {id(module) for block in blocks for module in block.modules()}
    return found


class Checkpointing(Strategy):
    """Keeps only the inputs of repeated blocks and computes the rest again in the backward pass.

    What it does: ``torch.utils.checkpoint`` around each repeated block, found automatically; ``selective``
        keeps the results of products with weights and of fused attention, not the scores of attention written out.
    When it helps: memory ends before the device is busy: the batch that then fits must bring more than
        the second forward pass costs. Or nothing fits without it.
    When it does not: memory to spare; alone it is always slower, by up to a third.
    What it costs: one more forward pass of the blocks (20-30 % of a step) for half of the activations or more.
    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016;
        https://docs.pytorch.org/docs/stable/checkpoint.html
    """

    name = "checkpointing"
    title = "activation checkpointing"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    after = frozenset({"channels_last", "flash_attention"})
    example = Example({"every": 1, "selective": True}, device="cuda:0", losses=1e-5)

    def applies(self, case: Case) -> Applies:
        if len(case.workload.model.repeated_blocks) < 2:
            return Applies.no("the model has no block that repeats")
        if case.plan.setting("cuda_graphs") is not None:
            return Applies.no("blocks inside a CUDA graph cannot be run again")
        if memory_short(case):
            return Applies.yes()
        used = memory_used(case)
        if case.device == "cpu" and used is None:
            return Applies.no("memory does not limit the batch on the CPU, and checkpointing alone only costs time")
        share = f"{used:.0%} of" if used is not None else "an unknown share of"
        return Applies.no(f"{share} the device memory is used: there is room without it")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """The second forward pass against what the larger batch saves per sample."""
        forward = seconds_of(case, "forward") * (0.3 if setting.get("selective") else 1.0) / setting.get("every", 1)
        changed = {"backward": seconds_of(case, "backward") + forward}
        alone = gain(case, changed)
        factor = per_sample(case, 2.0)
        if alone is None or factor is None or not self.companions(case, setting):
            return alone
        saved = {name: seconds_of(case, name) / 2 for name in ("optimizer", "host")}
        saved |= {"forward": seconds_of(case, "forward") * factor, "backward": changed["backward"] * factor}
        together = gain(case, {**changed, **saved})
        if together is None:
            return alone
        return ranged(together, together.value, min(alone.low, together.low), max(1.5, together.high))

    def settings(self, case: Case) -> Settings:
        return until_kept([{"every": 1, "selective": True}, {"every": 1}])

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """Keeping what is expensive first; a whole second forward pass is a quarter of a step or more."""
        return [(0.1, {"every": 1, "selective": True}), (0.3, {"every": 1})]

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """The batch that it makes room for."""
        facts = case.workload
        if not facts.batch_size or facts.loader.custom_batch_sampler or case.plan.setting("accumulation") is not None:
            return []
        return [Change(strategy="batch_size", setting=BatchSize().setting_of(case, 2 * batch_now(case)[0]))]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        options = {"every": setting.get("every", 1), "selective": bool(setting.get("selective", False))}
        return setup.with_model(Wrap.of(checkpoint_blocks, **options))

    def recipe(self, setting: Setting) -> Recipe:
        code = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # for each repeated block"
        theirs = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
        return Recipe.noted(code, transformers=theirs)
