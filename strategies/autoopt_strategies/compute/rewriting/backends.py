"""Back ends of ``scaled_dot_product_attention``: whether a model uses the operator, and what it takes with each."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

NAMES = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""As ``torch.backends.cuda.enable_..._sdp`` names them. Next to each stays the one written out, for what it refuses."""


class Through:
    """``model -> model`` whose attention takes one back end: for a copy, whose process goes on with the others."""

    def __init__(self, name: str) -> None:
        self.backends = [NAMES[name], SDPBackend.MATH]

    def __call__(self, model: nn.Module) -> nn.Module:
        plain = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with sdpa_kernel(self.backends):
                return plain(*args, **kwargs)

        model.__dict__["forward"] = forward
        return model


def attends(run: Callable[[], Any]) -> bool:
    """Whether the operator runs by one of its fused back ends."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "scaled_dot_product" in str(func):
                seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch(), torch.compiler.set_stance("force_eager"):  # type: ignore[no-untyped-call]
        run()
    return bool(seen)


def ratios(live: Any, changes: list[Callable[[Any], Any]]) -> dict[str, float]:
    """Forward and backward through each back end over those now, on copies.

    Args:
        changes: ``model -> model`` of what is changed with it.
    """

    def through(name: str) -> Callable[[Any], Any]:
        return lambda copied: Through(name)(reduce(lambda one, change: change(one), changes, copied))

    found = {name: live.ratio_with(through(name)) for name in NAMES}
    return {name: ratio for name, ratio in found.items() if ratio is not None}
