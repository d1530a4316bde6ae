"""Ways of serving: which are tried, in which order, and which is taken, with one sentence of reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoopt.errors import EnvironmentLacks, require
from autoopt.latency.options import Serve
from autoopt.latency.serving.variants import Variant
from autoopt.records import Estimate, JsonDict
from autoopt.records.latency import Holds, Latency, Served


def candidates(facts: JsonDict, serve: Serve) -> Iterator[tuple[Variant, str]]:
    """Variants, the quickest to try first, with the reason why each is not applicable to these facts (empty: it is)."""
    cpu, layers = facts["device"] == "cpu", "" if facts["linear"] else "the model has no linear layer"
    convolutions = "" if facts["convolutions"] else "the model has no 2-d convolution"
    onnx = "" if cpu else "its build for this device is not asked for: CPU only"
    onnx = _lacking("onnxruntime", "onnx", "onnxscript") or onnx
    ao = _lacking("torchao")
    yield Variant(threads=1), "" if cpu and facts["threads"] > 1 else "one thread is what there is"
    for spec in serve.students:
        yield Variant(model=spec), ""
    yield Variant(engine="onnxruntime"), onnx
    yield Variant(engine="onnxruntime", precision="int8_dynamic"), onnx or layers
    yield Variant(precision="bfloat16"), ""
    yield Variant(precision="float16"), "" if not cpu else "CPUs compute float16 slower than bfloat16"
    yield Variant(channels_last=True), convolutions
    yield (
        Variant(engine="onnxruntime", precision="int8_static"),
        onnx or ("" if facts["convolutions"] else "without convolutions, dynamic quantization serves as well"),
    )
    yield Variant(engine="compile"), ""
    yield Variant(precision="int8_weight_only"), ao or layers
    yield Variant(engine="aotinductor"), ""
    yield Variant(engine="compile", precision="int8_dynamic"), ao or layers
    yield Variant(batching=8), "" if serve.clients > 1 else "one client at a time leaves nothing to batch"


def _lacking(*packages: str) -> str:
    """Why a variant that is made by these cannot be: the first that is not installed; empty where all are."""
    try:
        require(*packages)
    except EnvironmentLacks as error:
        return f"{error.message}: {error.hint}"
    return ""


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
    if variant.engine == "onnxruntime":
        return variant.precision in ("as_is", "int8_dynamic", "int8_static") and not variant.channels_last
    if variant.engine == "aotinductor":
        return not variant.precision.startswith("int8")
    if variant.precision == "int8_static":
        return False
    return not (variant.precision == "int8_dynamic" and variant.engine == "eager")


def within(estimate: Estimate | None, limit: float | None) -> Holds | None:
    """Whether a quantity stays within a limit by its interval; None where nothing is asked or known."""
    if limit is None:
        return None
    if estimate is None:
        return "undecided"
    return "yes" if estimate.high <= limit else "no" if estimate.low > limit else "undecided"


def marked(variants: Sequence[Served]) -> tuple[Served, ...]:
    """Marks the front (no other is as good on all three axes and better on one) and its knee, of what is verified."""
    points = {
        variant.name: np.array([variant.p95.value, variant.cost_seconds, max(variant.drop.value, 0.0)])
        for variant in variants
        if variant.p95 and variant.cost_seconds is not None and variant.drop
    }
    front = {
        name: point
        for name, point in points.items()
        if not any((other <= point).all() and (other < point).any() for other in points.values())
    }
    bend = knee(front)
    return tuple(v.model_copy(update={"front": v.name in front, "knee": v.name == bend}) for v in variants)


def knee(front: dict[str, NDArray[np.float64]]) -> str | None:
    """The point nearest to the best of every axis, each scaled from 0 to 1; None for fewer than three points."""
    if len(front) < 3:
        return None
    points = np.array([*front.values()])
    spans = np.ptp(points, axis=0)
    scaled = (points - points.min(axis=0)) / np.where(spans > 0, spans, 1.0)
    return [*front][int(np.square(scaled).sum(axis=1).argmin())]


def chosen(found: Latency) -> Latency:
    """The document with what is taken, whether it holds, and why.

    Of those whose P95 and quality hold, the cheapest; without a limit the one with the lowest P95 whose quality holds.
    """
    measured = [variant for variant in found.variants if variant.p95 is not None]
    fitting = [variant for variant in measured if variant.keeps == "yes" and variant.fits in ("yes", None)]
    if not fitting:
        refused = bool(measured) and all("no" in (v.fits, v.keeps) for v in measured)
        unheld: Holds | None = None if found.limit_seconds is None else "no" if refused else "undecided"
        return found.model_copy(update={"chosen": None, "holds": unheld, "reason": _why_not(found, measured)})
    best = min(fitting, key=lambda v: (v.cost_seconds or 0.0) if found.limit_seconds else v.p95.value)  # type: ignore[union-attr]
    holds: Holds | None = None if found.limit_seconds is None else "yes"
    word = "the only variant that holds"
    if len(fitting) > 1:
        word = f"the {'cheapest' if found.limit_seconds else 'lowest P95'} of {len(fitting)} variants that hold"
    text = f"{best.name}: {word}; P95 {best.p95_text}, drop of {found.metric} {best.drop_text}"
    cheapest = best.cost_seconds
    base = next((v for v in found.variants if v.name == "as it is"), None)
    if cheapest and base is not None and base.cost_seconds and base is not best:
        text += f"; a thousand requests take {cheapest:.3g} s of the machine instead of {base.cost_seconds:.3g} s"
    return found.model_copy(update={"chosen": best.name, "holds": holds, "reason": text})


def _why_not(found: Latency, measured: Sequence[Served]) -> str:
    if not measured:
        return "nothing was measured in three fresh processes: a larger --budget"
    order = {"yes": 0, None: 0, "undecided": 1, "no": 2}
    parts = []
    near = min(measured, key=lambda v: (order[v.fits] + order[v.keeps], v.p95.value if v.p95 else 0.0))
    if near.fits in ("no", "undecided"):
        parts.append(f"its P95 is {near.p95_text}")
    if near.keeps in ("no", "undecided"):
        parts.append(f"its drop of {found.metric} is {near.drop_text} where {100 * found.max_drop:g} % is allowed")
        drop = near.drop
        if near.keeps == "undecided" and drop is not None and drop.value < found.max_drop:
            # an interval shrinks with the root of the samples, until it ends at what is allowed
            times = ((drop.high - drop.value) / (found.max_drop - drop.value)) ** 2
            more = int(found.validation_samples * times) + 1
            parts.append(f"about {more} validation samples would decide it, {found.validation_samples} are there")
    return f"no variant is confirmed to hold the limit; the nearest is {near.name}: " + "; ".join(parts)
