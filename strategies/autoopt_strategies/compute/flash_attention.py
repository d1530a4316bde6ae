"""Flash attention: softmax(Q K^T) V as one operator that never writes the scores to memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.compute.rewriting.attention_source import statements
from autoopt_strategies.compute.rewriting.source import edits_of, rewrite_functions
from autoopt_strategies.predictions import LEAST_SAVING, operator_share, ratio_there, tried_or_at_most
from autoopt_strategies.trying import Setting, Settings, kept, tried_on_copies

SCORES = ("softmax", "masked_fill", "bmm", "baddbmm", "where")
"""Operators of hand-written attention, as parts of their names."""
BACKENDS = ("cudnn", "flash", "mem_efficient")


def switched(model: Any) -> Any:
    """A model that uses ``scaled_dot_product_attention`` where its library lets one choose."""
    switch_attention(model)
    return model


def switch_attention(model: Any) -> int:
    """Asks transformers and timm models for ``scaled_dot_product_attention``; how many places were switched."""
    switched = 0
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        eager = getattr(config, "_attn_implementation", None) == "eager" and hasattr(module, "set_attn_implementation")
        asked = getattr(config, "output_attentions", False)  # for the probabilities, which the operator does not give
        if eager and getattr(type(module), "_supports_sdpa", False) and not asked:
            module.set_attn_implementation("sdpa")
            switched += 1
        if getattr(module, "fused_attn", None) is False:  # timm
            module.fused_attn = True
            switched += 1
    return switched


def transforms(setting: Setting) -> list[Callable[[Any], Any]]:
    """``model -> model`` of a setting, in their order."""
    found: list[Callable[[Any], Any]] = [switched] if setting.get("switch") else []
    if setting.get("functions"):
        found.append(Wrap.of(rewrite_functions, functions=setting["functions"], statements=statements))
    return found


EXAMPLE = {
    "functions": [
        {"file": "model.py", "module": "model", "function": "Attention.forward", "scale": "default", "mask": "causal"}
    ]
}


class FlashAttention(Strategy):
    """Computes attention by ``torch.nn.functional.scaled_dot_product_attention``.

    What it does: switches models that offer the choice (transformers, timm). Elsewhere it edits the source of the
        function in which a softmax of scores runs: ``softmax(Q K^T) V``, with scale, bias, masks and dropout, becomes
        one call. Each edit is checked on a copy: outputs and gradients, in both modes, at two lengths and under
        autocast. A patch holds the edited lines; a library's own function is edited in the process alone. ``off``: on
        CUDA, the back ends (cuDNN, flash, memory-efficient) that stand before a faster one are turned off.
    When it helps: long sequences; memory, since the scores are never stored.
    When it does not: short sequences; attention that is a small part of the step. On a CPU it may cost several times as
        much in low precision: it is tried on copies in both.
    What it costs: sums in another order; dropout draws other random numbers. What the back end that is left refuses,
        such as a mask, is written out. A function that also returns the probabilities returns None in their place,
        where the training computes nothing with them.
    Source: Dao et al., "FlashAttention", NeurIPS 2022;
        https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html;
        https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cuda.enable_flash_sdp
    """

    name = "flash_attention"
    title = "flash attention"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    example = Example(EXAMPLE, inspected=EXAMPLE)

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if found.get("functions") or found.get("switch") or _off(case):
            return Applies.yes()
        if found.get("error"):
            return Applies.no(f"looking for attention failed: {found['error']}")
        refused = found.get("refused") or {}
        if refused:
            name, reason = next(iter(refused.items()))
            return Applies.no(f"{name or 'the model'} is left alone: {reason}")
        if found.get("backends"):
            return Applies.no("attention takes its fastest back end already (tried)")
        return Applies.no("no hand-written attention was found in the model")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Seconds of forward and backward with it on a copy; else: scores are neither written nor read."""
        found = case.inspected(self.name)
        ratio = ratio_there(case, self.name)
        if setting.get("off") and found.get("backends"):
            ratio = min(found["backends"].values())
        return tried_or_at_most(case, ratio, operator_share(case, names=SCORES))

    def settings(self, case: Case) -> Settings:
        found = case.inspected(self.name)
        setting: Setting = {name: found[name] for name in ("switch", "functions") if found.get(name)}
        if setting and not kept((yield setting)):
            return
        off = _off(case)
        if off:
            yield {**setting, "off": off}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        setup = reduce(lambda one, change: one.with_model(change), transforms(setting), setup)
        return setup.with_flags(attention_off=tuple(setting["off"])) if setting.get("off") else setup

    def recipe(self, setting: Setting) -> Recipe:
        lines, functions = list[str](), [] if setting.get("switch") else setting.get("functions", [])
        if setting.get("switch"):
            lines.append('model.set_attn_implementation("sdpa")  # timm: attention.fused_attn = True')
        elif functions:
            where = ", ".join(each["function"] for each in functions)
            call = "y = F.scaled_dot_product_attention(q, k, v, is_causal=...)"
            lines.append(f"{call}  # in {where}, for softmax(q @ k.T) @ v")
        lines += [f"torch.backends.cuda.enable_{each}_sdp(False)" for each in setting.get("off", ())]
        return Recipe.noted("\n".join(lines), edits=edits_of(functions, statements))

    def inspect(self, live: Any) -> Setting:
        """Where attention is, whether the rewritten one is equal on a real batch, and what it brings on a copy."""
        from autoopt_strategies.compute.rewriting.attention import ratios, survey_training

        training = live.training
        found = survey_training(training.model, training.loss, training.next()[0], switch_attention)
        changes = transforms(found)
        if changes:
            found |= tried_on_copies(live, changes)
        if live.device.kind == "cuda" and (changes or found["fused"]):
            found["backends"] = ratios(live, changes)
        return found


def _off(case: Case) -> list[str]:
    """The back ends to be turned off so that the fastest one is taken; empty where none is worth it."""
    found = case.inspected(FlashAttention.name)
    ratios, now = found.get("backends") or {}, found.get("ratio") or 1.0
    best = min(ratios, key=lambda name: ratios[name], default="")
    if not best or ratios[best] > (1.0 - LEAST_SAVING) * now:
        return []
    return [each for each in BACKENDS if each != best]
