"""Attention by torch's operator: models that offer it are switched to it, and the fastest back end is taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoopt import Setup
from autoopt.benchmark.flags import apply_flags
from autoopt.records import Change
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_strategies.compute.flash_attention import switch_attention
from autoopt_strategies.compute.rewriting.attention import Through, attends, ratios
from scripted import PLAIN, changed_lines, patched
from tests.strategies.stand_ins import promised


def fused(model: nn.Module, **inputs: Any) -> bool:
    return attends(lambda: model(**inputs))


def of_transformers(kind: str, **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
    config = getattr(transformers, f"{kind.partition('For')[0]}Config")(vocab_size=50, **size, **options)
    torch.manual_seed(0)
    return getattr(transformers, kind)(config).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "LlamaForCausalLM"])
def test_a_transformers_model_that_computes_step_by_step_is_switched_with_its_masks(kind: str) -> None:
    model = of_transformers(kind, attn_implementation="eager")
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    words = {"input_ids": torch.arange(16).view(2, 8), "attention_mask": mask}
    assert not fused(model, **words)
    before = model(**words).logits
    assert switch_attention(model) >= 1
    assert fused(model, **words)
    real: Any = mask.bool() if "Causal" in kind else ...
    torch.testing.assert_close(model(**words).logits[real], before[real], rtol=1e-4, atol=1e-5)
    assert switch_attention(model) == 0


@pytest.mark.parametrize("options", [{}, {"attn_implementation": "eager", "output_attentions": True}])
def test_a_transformers_model_that_has_it_or_is_asked_for_probabilities_is_left_alone(options: dict[str, Any]) -> None:
    assert switch_attention(of_transformers("BertForSequenceClassification", **options)) == 0


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


STRATEGY = load_strategies()["flash_attention"]
FASTER = {"cudnn": 0.6, "flash": 1.0, "mem_efficient": 1.4}


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


@pytest.fixture
def flags() -> Iterator[None]:
    yield
    for name in FASTER:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(True)


def test_a_copy_takes_one_back_end_and_computes_the_same() -> None:
    model, x = Attending(), torch.randn(2, 4, 16, 8)
    expected = model(x)
    changed = Through("mem_efficient")(model)  # a CPU has no such one: what is written out is left
    assert not attends(lambda: changed(x))
    assert torch.allclose(changed(x), expected, atol=1e-6)
    assert torch.backends.cuda.flash_sdp_enabled(), "the process goes on with all of them"


def test_each_is_tried_on_a_copy_with_what_changes_beside_it() -> None:
    tried: list[list[str]] = []

    def ratio_with(change: Any) -> float | None:
        tried.append(change([]).forward and ["changed"])
        return None if len(tried) == 3 else 0.5

    def add(model: list[str]) -> Any:
        return SimpleNamespace(forward=model)

    assert ratios(SimpleNamespace(ratio_with=ratio_with), [add]) == {"cudnn": 0.5, "flash": 0.5}
    assert tried == [["changed"]] * 3


def test_what_stands_before_the_fastest_is_turned_off() -> None:
    case = sample_case("cuda:0", inspected={"flash_attention": {"fused": True, "backends": FASTER}})
    assert STRATEGY.applies(case)
    (setting,) = STRATEGY.settings(case)
    assert setting == {"off": ["flash", "mem_efficient"]}
    told = promised(STRATEGY, case, setting)
    assert told.kind == "tried"


def test_a_rewritten_attention_is_kept_first() -> None:
    found = {"functions": [{"function": "A.forward"}], "ratio": 0.7, "backends": FASTER}
    settings: Any = STRATEGY.settings(sample_case("cuda:0", inspected={"flash_attention": found}))
    assert "off" not in next(settings)
    assert settings.send(SimpleNamespace(verdict="kept", reason=""))["off"] == ["flash", "mem_efficient"]


def test_the_process_and_the_patch_say_the_same(tmp_path: Path, flags: None) -> None:
    setting = {"off": ["flash", "mem_efficient"]}
    apply_flags(STRATEGY.apply(Setup(), setting))
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert not torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
    x = torch.randn(2, 4, 16, 8)
    assert not attends(lambda: Attending()(x)), "a CPU follows the same switches"
    _, patch = patched(tmp_path, PLAIN, Change(strategy="flash_attention", setting=setting))
    assert changed_lines(patch.diff) == [
        "+",
        "+torch.backends.cuda.enable_flash_sdp(False)",
        "+torch.backends.cuda.enable_mem_efficient_sdp(False)",
    ]
