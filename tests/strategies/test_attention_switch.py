"""Libraries that let one choose how attention is computed: the choice is found, taken, and computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoopt_strategies.compute.flash_attention import switch_attention

# What a model computes with is seen at the dispatcher: a flag that nothing reads would be no switch.


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def fused(model: nn.Module, **inputs: Any) -> bool:
    with Operators() as operators, torch.no_grad():
        model(**inputs)
    return any("scaled_dot_product" in name for name in operators.seen)


def bert(**options: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=50, **size, **options)).eval()


def words() -> dict[str, torch.Tensor]:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": torch.arange(16).view(2, 8), "attention_mask": mask}


def test_a_transformers_model_that_computes_step_by_step_is_switched() -> None:
    pytest.importorskip("transformers")
    model = bert(attn_implementation="eager")
    assert not fused(model, **words())
    before = model(**words()).logits
    assert switch_attention(model) >= 1
    assert fused(model, **words())
    torch.testing.assert_close(model(**words()).logits, before, rtol=1e-4, atol=1e-5)
    assert switch_attention(model) == 0


def test_a_decoder_of_transformers_keeps_its_causal_mask() -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **size, attn_implementation="eager")).eval()
    before = model(**words()).logits
    assert switch_attention(model) >= 1
    assert fused(model, **words())
    real = words()["attention_mask"].bool()
    torch.testing.assert_close(model(**words()).logits[real], before[real], rtol=1e-4, atol=1e-5)


def test_a_transformers_model_whose_probabilities_are_asked_for_is_left_alone() -> None:
    pytest.importorskip("transformers")
    model = bert(attn_implementation="eager", output_attentions=True)
    assert switch_attention(model) == 0


def test_a_transformers_model_that_has_it_already_offers_nothing() -> None:
    pytest.importorskip("transformers")
    assert switch_attention(bert()) == 0


class OfTimm(nn.Module):
    """The choice as timm's attention offers it: an attribute that its forward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.fused_attn = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused_attn:
            return nn.functional.scaled_dot_product_attention(x, x, x)
        return (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) @ x


def test_the_choice_of_timm_is_taken() -> None:
    model = nn.Sequential(OfTimm(), OfTimm())
    assert switch_attention(model) == 2
    assert fused(model, input=torch.randn(1, 2, 4, 8))
    assert switch_attention(model) == 0


def test_a_real_model_of_timm_is_switched() -> None:
    # Not among the extras: it needs a torchvision that is tied to one version of torch.
    timm = pytest.importorskip("timm", exc_type=ImportError)
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, patch_size=8, num_classes=2).eval()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    image = torch.randn(2, 3, 32, 32)
    before = model(image)
    assert not fused(model, x=image)
    assert switch_attention(model) == 2
    assert fused(model, x=image)
    torch.testing.assert_close(model(image), before, rtol=1e-4, atol=1e-5)
