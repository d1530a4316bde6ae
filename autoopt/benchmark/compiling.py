"""``torch.compile`` as a setup asks for it, and how often it had to compile again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autoopt.setup import Compile

STORM = 8
"""Compilations of one function after which torch gives up on it (``torch._dynamo.config.recompile_limit``)."""
AGAIN = "torch.compile compiled again and again"


def compile_model(model: nn.Module, compile_: Compile) -> None:
    """Compiles in place: names, parameters and state dict stay as they are."""
    if compile_.regional:
        compile_blocks(model, **compile_.arguments)
    else:
        compile_in_place(model, **compile_.arguments)


def compile_blocks(model: nn.Module, **options: Any) -> None:
    """Compiles each repeated block: one graph serves all that are alike, so that the start is faster.

    Blocks of one class share their code, and torch gives up on code that it had to compile again too often: as many
    shapes as there are blocks are allowed for, forward and under ``no_grad``.
    """
    import torch._dynamo

    modules = dict(model.named_modules())
    blocks = [modules[name] for name in repeated_blocks(model)] or [model]
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 2 * len(blocks))
    for block in blocks:
        compile_in_place(block, **options)


def is_torchs(module: nn.Module) -> bool:
    """Whether a module's class is torch's own, whose frames are not compiled by ``Module.compile``."""
    return type(module).__module__.startswith("torch.nn.")


def compile_in_place(module: nn.Module, **options: Any) -> None:
    """Compiles a module where it stands: names and state dict stay as they are."""
    if not is_torchs(module):
        module.compile(**options)
        return
    plain: Any = module._call_impl

    # Frames of torch's own files are not compiled. Where a module of torch's, such as Sequential, is compiled as
    # it is, there is no other frame, and nothing is: this one is ours.
    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    module._compiled_call_impl = torch.compile(call, **options)


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
    """The mark of a step for CUDA graphs, due before each forward pass; None where none are replayed."""
    if device.type != "cuda" or compile_ is None or not compile_.replays_graphs:
        return None
    return torch.compiler.cudagraph_mark_step_begin


def compilations() -> int:
    """Graphs that this process has compiled so far."""
    counters = _dynamo("counters")
    return 0 if counters is None else int(counters["stats"]["unique_graphs"])


def trouble() -> str | None:
    """Trouble that the compiler of this process has had so far, as a sentence; None where it had none."""
    if not compilations():
        counters = _dynamo("counters")  # why the first place that could not be compiled was left out
        reasons = [*counters["graph_break"], *counters["unimplemented"]] if counters is not None else []
        return "torch.compile compiled nothing" + (f": {reasons[0].strip().splitlines()[0]}" if reasons else "")
    for function, reasons in (_dynamo("guard_failures") or {}).items():
        # each compilation notes why none of the earlier graphs of the function would do: "0/3: reason"
        times = len({reason.partition(":")[0] for reason in reasons})
        if times >= STORM - 1:
            why = reasons[-1].partition(":")[2].strip().partition("\n")[0]
            name = getattr(function, "co_name", "a function")
            return f"{AGAIN} ({name}, {times + 1} times or more; the last for: {why})"
    return None


def _dynamo(name: str) -> Any:
    """A value that torch's compiler keeps under a name; None before it was imported, or in a torch without it."""
    return getattr(sys.modules.get("torch._dynamo.utils"), name, None)
