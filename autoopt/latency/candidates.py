"""Which ways of serving are tried, in which order, and why not the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoopt.latency.serving.variants import Variant

EXTRAS = {"onnxruntime": ("onnxruntime", "onnx", "onnxscript"), "torchao": ("torchao",)}
BATCHING = 8


@dataclass(frozen=True)
class Model:
    """Facts that the candidates depend on. ``kinds``: names of the model's module classes."""

    device: str
    linear: bool
    convolutions: bool
    threads: int
    clients: int = 1
    students: tuple[str, ...] = ()


def missing(extra: str) -> str:
    """The first package of an extra that is not installed; empty where all are."""
    return next((name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None), "")


def candidates(model: Model) -> Iterator[tuple[Variant, str]]:
    """Variants with the reason why each is not applicable (empty: it is), the quickest to try first."""
    cpu, layers = model.device == "cpu", "" if model.linear else "the model has no linear layer"
    convolutions = "" if model.convolutions else "the model has no 2-d convolution"
    onnx = _lacking("onnxruntime") or ("" if cpu else "its build for this device is not asked for: CPU only")
    ao = _lacking("torchao")
    yield Variant(threads=1), "" if cpu and model.threads > 1 else "one thread is what there is"
    for spec in model.students:
        yield Variant(model=spec), ""
    yield Variant(engine="onnxruntime"), onnx
    yield Variant(engine="onnxruntime", precision="int8_dynamic"), onnx or layers
    yield Variant(precision="bfloat16"), ""
    yield Variant(precision="float16"), "" if not cpu else "CPUs compute float16 slower than bfloat16"
    yield Variant(channels_last=True), convolutions
    yield (
        Variant(engine="onnxruntime", precision="int8_static"),
        onnx or ("" if model.convolutions else "without convolutions, dynamic quantization serves as well"),
    )
    yield Variant(engine="compile"), ""
    yield Variant(precision="int8_weight_only"), ao or layers
    yield Variant(engine="aotinductor"), ""
    yield Variant(engine="compile", precision="int8_dynamic"), ao or layers
    yield Variant(batching=BATCHING), "" if model.clients > 1 else "one client at a time leaves nothing to batch"


def _lacking(extra: str) -> str:
    name = missing(extra)
    return f"{name} is not installed: pip install 'torch-autoopt[serving]'" if name else ""


def merged(one: Variant, other: Variant) -> Variant | None:
    """Both together; None where they exclude each other, or nothing comes out that is new."""
    default, changes = Variant(), {}
    for name, value in other.document().items():
        if value == getattr(default, name):
            continue
        if getattr(one, name) not in (getattr(default, name), value):
            return None
        changes[name] = value
    together = replace(one, **changes)
    if together in (one, other) or not possible(together):
        return None
    return together


def possible(variant: Variant) -> bool:
    """Whether engine, precision and layout go together."""
    if variant.engine == "onnxruntime":
        return variant.precision in ("as_is", "int8_dynamic", "int8_static") and not variant.channels_last
    if variant.engine == "aotinductor":
        return not variant.precision.startswith("int8")
    if variant.precision == "int8_static":
        return False
    return not (variant.precision == "int8_dynamic" and variant.engine == "eager")


def combinations(best: Variant, others: Sequence[Variant]) -> Iterator[Variant]:
    """The best with each other one that goes with it, the better ones first."""
    seen = set()
    for other in others:
        together = merged(best, other)
        if together is not None and together not in seen:
            seen.add(together)
            yield together
