"""The rewritten forward of one module: captured in both modes, and proven equal on a copy, on a real call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from inspect import isroutine
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.attention.capture import (
    Captured,
    Refused,
    bound,
    capture,
    described,
    first_line,
    one_smaller,
    tensors_of,
)
from autoopt_strategies.compute.attention.encode import encoded, fixes_dtype, sizes, without_devices
from autoopt_strategies.compute.attention.forward import MODES, acceptance, check_attributes, rewritten_class
from autoopt_strategies.compute.attention.prove import Places, compare, few, sample_places
from autoopt_strategies.compute.attention.rewrite import drop_probabilities
from autoopt_strategies.compute.attention.rewrite import rewrite as rewrite_graph


class Known:
    """Findings in the modules of a model so far: forwards that others may have as well, and refusals."""

    def __init__(self) -> None:
        self.forwards: dict[str, dict[str, Any]] = {}
        self.causal: dict[str, bool] = {}
        self.likeness: dict[str, Any] = {}
        self.refusals: dict[Any, tuple[str, bool]] = {}

    def add(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Proves the rewritten forward of a module on a call of it.

        Raises:
            Refused: why it stays as it is.
        """
        if "forward" in vars(module):
            raise Refused("its forward was replaced from outside")
        given = bound(module, args, kwargs)
        call = {name: described(value, name) for name, value in given.items()}
        key = likeness(module, call)
        self.forwards[name], self.causal[name] = self._proven(module, given, call, key)
        self.likeness[name] = key

    def _proven(
        self, module: nn.Module, given: dict[str, Any], call: dict[str, Any], key: Any
    ) -> tuple[dict[str, Any], bool]:
        # Several modules may have one forward, which is tried once.
        like = {id(self.forwards[name]): name for name in self.forwards if self.likeness[name] == key}
        if not like and key in self.refusals:
            raise self._refusal(key)
        twin = twin_of(module)
        places = sample_places(twin, given)
        for name in like.values():
            if fits(module, twin, given, self.forwards[name], places):
                return self.forwards[name], self.causal[name]
        if key in self.refusals:
            raise self._refusal(key)
        try:
            return fresh(module, twin, given, call, places)
        except Refused as error:
            self.refusals[key] = str(error), error.outside
            raise
        except Exception as error:  # a model that does not like to be looked at is left alone, too
            self.refusals[key] = f"it cannot be looked at: {first_line(error)}", False
            raise self._refusal(key) from None

    def _refusal(self, key: Any) -> Refused:
        reason, outside = self.refusals[key]
        return Refused(reason, outside=outside)


def twin_of(module: nn.Module) -> nn.Module:
    """A copy without hooks, in the modes of the module.

    Raises:
        Refused: it cannot be copied.
    """
    try:
        twin = copy.deepcopy(module)
    except Exception as error:
        raise Refused(f"it cannot be copied: {type(error).__name__}") from None
    for each in twin.modules():
        each._forward_hooks.clear()
        each._forward_pre_hooks.clear()
    return twin


def likeness(module: nn.Module, call: dict[str, Any]) -> Any:
    """Classes, shapes, truth values, names and functions inside a module, and its call.

    Of modules that are alike one may have the forward of the other, which is proven for each, or is refused for the
    same reason. Numbers are left out, since layers are often numbered: a forward tells those that it reads.
    """
    inside = tuple((path, type(each), said_of(each)) for path, each in module.named_modules())
    tensors = chain(module.named_parameters(), module.named_buffers())
    return inside, tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors), repr(call)


def said_of(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """Attributes of a module that say how it computes: truth values, texts, and functions by their names."""
    plain = {name: item for name, item in vars(module).items() if item is None or type(item) in (bool, str)}
    functions = {name: item for name, item in vars(module).items() if isroutine(item)}
    named = {
        name: (getattr(item, "__module__", None), getattr(item, "__qualname__", None))
        for name, item in functions.items()
    }
    return tuple(sorted((plain | named).items(), key=lambda item: item[0]))


def fits(module: nn.Module, twin: nn.Module, given: dict[str, Any], forward: dict[str, Any], places: Places) -> bool:
    """Whether a forward that was captured in another module is this one's too."""
    try:
        check_attributes(module, forward)
        prove(module, twin, given, forward, dropped=forward.get("dropped", ()), places=places)
    except (Refused, AttributeError):
        return False
    return True


def set_mode(module: nn.Module, twin: nn.Module, training: bool) -> None:
    """Puts a copy into a mode; in the module's own, what is inside has the modes that it has there."""
    if module.training != training:
        twin.train(training)
        return
    for one, other in zip(module.modules(), twin.modules(), strict=True):
        other.training = one.training


def fresh(
    module: nn.Module, twin: nn.Module, given: dict[str, Any], call: dict[str, Any], places: Places
) -> tuple[dict[str, Any], bool]:
    """Captures, matches and rewrites a forward in both modes, and proves it on the call and on a smaller one."""
    set_mode(module, twin, module.training)
    smaller = one_smaller(twin, given)
    try:
        return captured_at(module, twin, given, smaller, call, places)
    except Refused as error:
        if not error.sizes:
            raise
        return captured_at(module, twin, given, given, call, places)


def captured_at(
    module: nn.Module,
    twin: nn.Module,
    given: dict[str, Any],
    smaller: dict[str, Any],
    call: dict[str, Any],
    places: Places,
) -> tuple[dict[str, Any], bool]:
    forward: dict[str, Any] = {"call": call, "attributes": {}, "sizes": {}, "autocast": [], "any_float": True}
    causal, lower, by_mode = True, True, True
    dropped: list[int] = []
    for mode in MODES:
        if dropped and mode != "training":
            break  # whoever asks a trained model for its probabilities gets them
        if mode != "training" and not by_mode:
            forward[mode] = forward["training"]
            for part in ("sizes", "attributes"):
                forward[part][mode] = forward[part]["training"]
            continue
        set_mode(module, twin, mode == "training")
        captured = capture(twin, smaller)
        by_mode = decides_by_mode(twin, captured)
        if returns_probabilities_to_nobody(module):
            dropped = dropped or drop_probabilities(captured.graph)
        if dropped and mode != "training":
            break  # whoever asks a trained model for its probabilities gets them
        causal = all(rewrite_graph(twin, captured)) and causal
        lower = lower and captured.lower
        forward["any_float"] = forward["any_float"] and not fixes_dtype(captured.graph)
        forward["sizes"][mode] = encoded(sizes(captured, given))
        if any(symbols_at(captured, place) & captured.relaxed for place in places):
            places = ()  # the proof must be made at this number of samples
        without_devices(captured)
        forward["attributes"][mode] = captured.flags
        forward[mode] = encoded(captured.graph)
    forward["dropped"] = dropped
    for tried in (given, smaller):
        prove(module, twin, tried, forward, dropped=dropped, places=places)
    for dtype in lower_precisions(given) if lower else ():
        tried = forward | {"autocast": [*forward["autocast"], dtype]}
        try:
            prove(module, twin, given, tried, lower=getattr(torch, dtype), dropped=dropped, places=places)
        except Refused:
            continue
        forward = tried
    return forward, causal


def symbols_at(captured: Captured, place: tuple[int, int]) -> set[Any]:
    """Symbols in the size of an input's dimension."""
    size = captured.inputs[place[0]].meta["val"].shape[place[1]]
    return set(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


def decides_by_mode(twin: nn.Module, captured: Captured) -> bool:
    """Whether a forward may be another in evaluation: it read a mode, or more than the mode is changed with it."""
    plain = all(getattr(each.train, "__func__", None) is nn.Module.train for each in twin.modules())
    return not plain or any("training" in read for read in captured.flags.values())


def lower_precisions(given: dict[str, Any]) -> tuple[str, ...]:
    """Dtypes of autocast that a forward is tried under."""
    return ("bfloat16", "float16") if tensors_of(given)[0].device.type == "cuda" else ("bfloat16",)


def prove(
    module: nn.Module,
    twin: nn.Module,
    given: dict[str, Any],
    forward: dict[str, Any],
    lower: torch.dtype | None = None,
    dropped: Sequence[int] = (),
    places: Places = (),
) -> None:
    """Compares a copy's forward with the rewritten one, in the modes that it has.

    Whether it takes the call is asked of all of it; it is computed on two samples, where there are samples.

    Args:
        places: of the batch dimension in the call's tensors; all samples are computed where empty.
        dropped: places in the flattened output that the rewritten one leaves empty.

    Raises:
        Refused: they differ, or the rewritten one does not take this call.
    """
    kind = type(twin)
    made = rewritten_class(kind, forward)
    accepts = acceptance(kind.forward, forward)
    small = few(given, places)
    for mode in (each for each in MODES if each in forward):
        set_mode(module, twin, mode == "training")
        with torch.autocast(tensors_of(given)[0].device.type, dtype=lower) if lower is not None else nullcontext():
            if accepts(twin, (), given) is None:
                raise Refused("its flags or sizes are not those that it was captured with")
            tried = given if accepts(twin, (), small) is None else small
        compare(_calling(kind, dropped), _calling(made), twin, tried, lower)


def _calling(kind: Any, dropped: Sequence[int] = ()) -> Callable[..., Any]:
    """The forward of a class, without what nobody reads of its output."""

    def call(module: nn.Module, **given: Any) -> Any:
        leaves, spec = pytree.tree_flatten(kind.forward(module, **given))
        kept = [None if place in dropped else leaf for place, leaf in enumerate(leaves)]
        return pytree.tree_unflatten(kept, spec)

    return call


def returns_probabilities_to_nobody(module: nn.Module) -> bool:
    """Whether a module keeps to the rule of transformers: probabilities are returned where they are computed anyway.

    The library's own fused implementations return None in their place; that a training reads none is proven on the
    whole model.
    """
    return type(module).__module__.startswith("transformers.")
