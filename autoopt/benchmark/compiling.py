"""``torch.compile`` as a setup asks for it, and how often it had to compile again."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import nn

from autoopt.setup import Compile

GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes that replay CUDA graphs."""


def compile_model(model: nn.Module, compile_: Compile) -> None:
    """Compiles in place: names, parameters and state dict stay as they are."""
    parts = repeated_blocks(model) if compile_.regional else []
    modules = dict(model.named_modules())
    for module in [modules[name] for name in parts] or [model]:
        module.compile(mode=compile_.mode, dynamic=compile_.dynamic, fullgraph=compile_.fullgraph)


def repeated_blocks(model: nn.Module) -> list[str]:
    """The dotted names of blocks that repeat: children of one class, with parameters, in one container.

    The outermost ones where they nest, such as the layers of a transformer.
    """
    found: list[str] = []
    for name, container in model.named_modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        if any(name == block or name.startswith(f"{block}.") for block in found):
            continue
        by_class: dict[type, list[str]] = {}
        for child_name, child in container.named_children():
            if len(list(child.children())) and any(True for _ in child.parameters()):
                by_class.setdefault(type(child), []).append(f"{name}.{child_name}" if name else child_name)
        found += [block for blocks in by_class.values() if len(blocks) > 1 for block in blocks]
    return found


def new_graph_hook(device: torch.device, compile_: Compile | None) -> Callable[[], None] | None:
    """What CUDA graphs need to be told before each forward pass; None where none are replayed."""
    if device.type != "cuda" or compile_ is None or compile_.mode not in GRAPH_MODES:
        return None
    return torch.compiler.cudagraph_mark_step_begin


def compilations() -> int:
    """Graphs that this process has compiled so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return 0 if counters is None else int(counters["stats"]["unique_graphs"])
