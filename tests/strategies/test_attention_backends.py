"""Back ends of attention: found where the operator runs, tried on copies, and turned off in lines of a script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
from autoopt_strategies.compute.rewriting.backends import Through, attends, ratios
from scripted import PLAIN, changed_lines, patched

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


def test_where_the_operator_runs_it_is_seen() -> None:
    x = torch.randn(2, 4, 16, 8)
    assert attends(lambda: Attending()(x))
    assert not attends(lambda: nn.Linear(8, 8)(x))


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
    told = STRATEGY.predict(case, setting)
    assert told is not None
    assert told.kind == "tried"
    none = replace(case, workload=sample_case(inspected={"flash_attention": {"backends": {"cudnn": 0.99}}}).workload)
    assert "fastest back end already" in STRATEGY.applies(none).reason


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
