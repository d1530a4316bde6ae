"""LoRA: the weights stay, and matrices of low rank next to them are trained."""

from __future__ import annotations

import importlib.util
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.trying import Setting, Settings, kept

RANKS = (8, 32, 2)
FASTER = 4.0
"""Adapters want a learning rate several times that of the weights: at the same one the target comes far later."""
LEAST_SAVING = 2.0
"""Where fewer times less is trained, there is little to be had."""


def adapted(model: Any, rank: int, targets: tuple[str, ...], heads: tuple[str, ...]) -> Any:
    """The model, in place, with adapters of low rank at the targets; heads are trained as they are.

    Args:
        rank: of the two matrices next to each weight; their product is scaled by 2.
        targets: names of linear modules.
        heads: names of modules that are trained as a whole.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(targets))
    model = inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        whole = name.startswith(tuple(f"{head}." for head in heads))
        parameter.requires_grad_("lora_" in name or whole)
    return model


class Lora(Strategy):
    """Trains adapters of low rank in place of the weights.

    What it does: peft's LoRA next to linear layers, rank and layers searched; the last layer is trained as a whole. The
        learning rate is four times as high.
    When it helps: fine-tuning of a pretrained transformer: 5 to 100 times fewer trained parameters, and the optimizer's
        state and the gradients shrink as much.
    When it does not: training from scratch, where weights must move by more than a low rank; small models, whose memory
        is activations. Steps are hardly faster: forward is longer, backward through the frozen weights stays.
    What it costs: another model is learnt, so that it is trained to the target, with more than one seed.
        ``torch-autoopt[model]`` brings peft.
    Source: Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022; Schulman et al., "LoRA without
        regret", 2025 (all layers before those of attention alone; a learning rate several times as high)
    """

    name = "lora"
    title = "LoRA"
    stages = frozenset({"backward", "optimizer"})
    risk = Risk.MODEL
    example = Example(
        {"rank": 2, "targets": ["4"], "heads": []},
        inspected={"groups": [["4"]], "heads": ["5"], "installed": True, "saving": 8.0},
        losses=None,
        trains=importlib.util.find_spec("peft") is not None,
    )

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if not found.get("groups"):
            return Applies.no(found.get("reason") or "no linear layer but the last one can carry an adapter")
        if not found["installed"]:
            return Applies.no("peft is not installed: pip install 'torch-autoopt[model]'")
        if found["saving"] < LEAST_SAVING:
            return Applies.no(f"adapters would train only {found['saving']:.1f} times fewer parameters")
        return Applies.yes()

    def settings(self, case: Case) -> Settings:
        found = case.inspected(self.name)
        rest = {"heads": list(found["heads"]), "learning_rate_factor": FASTER}
        for targets in found["groups"]:
            first = yield {"rank": RANKS[0], "targets": list(targets), **rest}
            other = RANKS[2] if kept(first) else RANKS[1]
            if kept((yield {"rank": other, "targets": list(targets), **rest})) or kept(first):
                return

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        names = {name: tuple(setting[name]) for name in ("targets", "heads")}
        factor = setup.batch.learning_rate_factor * setting.get("learning_rate_factor", 1.0)
        changed = setup.with_model(Wrap.of(adapted, rank=setting["rank"], **names))
        return changed.with_batch(learning_rate_factor=factor)

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            f"config = LoraConfig(r={setting['rank']}, lora_alpha={2 * setting['rank']}, "
            f"target_modules={setting['targets']!r}, modules_to_save={setting['heads']!r})\n"
            "model = get_peft_model(model, config)  # from peft; merge_and_unload() before it is served"
        )
        factor = setting.get("learning_rate_factor", 1.0)
        if factor != 1.0:
            code += f"\nlr = {factor:g} * lr"
        return Recipe.noted(code)

    def inspect(self, live: Any) -> Setting:
        """Linear layers that can carry adapters: all, then those of attention by their names; the last as head."""
        return {**adaptable(live.training.model), "installed": importlib.util.find_spec("peft") is not None}


def open_linear_layers(model: Any) -> list[tuple[str, Any]]:
    """Names and modules of the linear layers that another product may replace.

    torch's own attention and encoder layers read the weights of their parts directly, past any other product.
    """
    from torch import nn

    closed = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    shut = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, closed))
    found = ((name, module) for name, module in model.named_modules() if type(module) is nn.Linear)
    return [(name, module) for name, module in found if name and not name.startswith(shut)]


def adaptable(model: Any) -> Setting:
    """``groups`` of names, ``heads``, and how many times fewer parameters adapters of the first rank train."""
    linear = open_linear_layers(model)
    if len(linear) < 2:
        return {
            "reason": "no linear layer but the last one can carry an adapter: torch's own attention reads past adapters"
        }
    head, bodies = linear[-1][0], linear[:-1]
    words = ("query", "key", "value", "q_proj", "k_proj", "v_proj", "qkv", "c_attn", "q_lin", "k_lin", "v_lin")
    attention = [name for name, _ in bodies if name.rpartition(".")[2] in words]
    every = [name for name, _ in bodies]
    groups = [every] if attention in ([], every) else [every, attention]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    size = RANKS[0] * sum(m.in_features + m.out_features for name, m in bodies if name in groups[0])
    size += sum(p.numel() for p in linear[-1][1].parameters())
    return {"groups": groups, "heads": [head], "saving": trained / max(size, 1)}
