"""Ceilings of stages and operators by the machine's peaks, and which stage holds the step back. Pure."""

from __future__ import annotations

from autoopt.records import Deeper, Operator, Peaks, Simulation, Stage
from autoopt.simplify.pipeline import INTERRUPTIONS, LINK, Pipeline
from autoopt.simplify.stage_timings import StageTimings, scaled

_CLASS = {
    "storage": "storage",
    "preparation": "preparation",
    "collate": "preparation",
    "pin": "transfer",
    "copy": "transfer",
    "optimizer": "optimizer",
    "host": "host",
    "evaluate": "interruption",
    "checkpoint": "interruption",
    "epoch": "interruption",
}


def stage_ceilings(timings: StageTimings, peaks: Peaks) -> dict[str, float]:
    """Seconds per optimizer step by stage; a stage whose ceiling is not known is left out.

    Preparation: its CPU seconds over all cores. Storage: waiting over the reads that a storage is commonly
    asked for at once. Collate and pinning: bytes over the
    host's bandwidth. Copies and the optimizer: bytes over bandwidth. Forward and backward: arithmetic at the best
    allowed precision. Host: nothing, since all of it can be compiled away.
    """
    samples = timings.batch_size * timings.accumulation
    found: dict[str, float] = {"host": 0.0}
    inputs, speed = timings.inputs, peaks.bandwidth()
    host = peaks.host_bandwidth(timings.device, timings.batch_bytes or None)
    batches = timings.batch_bytes * timings.accumulation
    if inputs.sample:
        found["preparation"] = inputs.sample.cpu * samples / timings.cores
        # a storage answers so many requests at once in the time of one, about
        found["storage"] = (inputs.sample.wait_seconds or 0.0) * samples / 32
    if host:
        found["collate"] = batches / host / timings.cores
        found["pin"] = batches / host
    if speed:
        # what is moved lies in at least half as many bytes, of which the caches keep as much as they do of those
        found["optimizer"] = timings.optimizer_bytes / (peaks.bandwidth(timings.optimizer_bytes / 2 or None) or speed)
        found["checkpoint"] = 0.0
    link = peaks.copy_pinned_to_device_bytes_per_second
    if timings.device == "cpu":
        found["copy"] = 0.0  # there is nothing to copy
    elif link:
        found["copy"] = batches / link
    both = fused_ceiling(timings.operators, peaks, timings.allowed_precisions)
    if both is not None:
        share = timings.operators_forward_share if timings.operators_forward_share is not None else 1 / 3
        found["forward"] = both * share * timings.accumulation
        found["backward"] = both * (1 - share) * timings.accumulation
        if timings.evaluation_samples and timings.evaluate_every:  # at the forward's rate
            each = both * share / timings.batch_size
            found["evaluate"] = each * timings.evaluation_samples / timings.evaluate_every
    # where the machine is faster now than it was when its peaks were measured, these are none
    now, then = timings.reference, peaks.pace_seconds
    faster = min(1.0, now / then) if now and then else 1.0
    return {name: seconds * (1.0 if name in ("preparation", "storage") else faster) for name, seconds in found.items()}


def ceiling_step(pipeline: Pipeline, timings: StageTimings, peaks: Peaks) -> float | None:
    """The best step when everything that can overlap does, from the ceilings as they were computed.

    None where that of the model or of the preparation is not known. It may lie above the measured step, which
    contradicts it. On the CPU, preparation and compute share the cores, so that their best times add up.
    """
    present = {stage.name for stage in pipeline.stages}
    best = {name: value for name, value in stage_ceilings(timings, peaks).items() if name in present}
    if {"forward", "backward"} - best.keys() or "preparation" in present - best.keys():
        return None
    compute = best["forward"] + best["backward"] + best.get("optimizer", 0.0)
    preparation = best.get("preparation", 0.0) + best.get("collate", 0.0)
    link = max((best.get(name, 0.0) for name in LINK), default=0.0)
    together = preparation + compute if timings.device == "cpu" else max(preparation, compute)
    return max(together, best.get("storage", 0.0), link)


def matmul_peak(peaks: Peaks, precisions: tuple[str, ...]) -> float | None:
    rates = [getattr(peaks, f"matmul_{name}_flops_per_second") for name in precisions]
    return max((rate for rate in rates if rate), default=None)


def operator_ceiling(operator: Operator, peaks: Peaks, precisions: tuple[str, ...]) -> float | None:
    """The roofline of an operator as it stands: the larger of arithmetic at its best precision and traffic."""
    rate = matmul_peak(peaks, precisions)
    each = (operator.bytes or 0.0) / max(operator.calls or 1, 1)
    speed = peaks.bandwidth(each)
    if speed is None or (operator.flops and rate is None):
        return None
    halved = 0.5 if set(precisions) & {"bf16", "fp16"} else 1.0
    return max((operator.flops or 0.0) / (rate or 1.0), (operator.bytes or 0.0) * halved / speed)


def fused_ceiling(found: tuple[Operator, ...], peaks: Peaks, precisions: tuple[str, ...]) -> float | None:
    """The step's best: arithmetic of the matmul-like operators alone.

    Traffic between operators is left out, since fusing removes it and caches hide it; what is left no
    program that does the same arithmetic can beat.
    """
    rate = matmul_peak(peaks, precisions)
    if rate is None or not found:
        return None
    return sum(operator.flops or 0.0 for operator in found) / rate


def bottleneck(pipeline: Pipeline, ceiling: float | None) -> str | None:
    """The stage whose absence would save the most; where none saves much, the heaviest on the critical path.

    None where the step is within a quarter of its ceiling, and where the stages that could be measured are next to
    nothing of it: what holds it back is not among them.
    """
    interruptions = sum(stage.seconds for stage in pipeline.stages if stage.name in INTERRUPTIONS)
    step = pipeline.simulate() + interruptions
    # peaks are the best of many calls, and no step is made of such alone
    if not pipeline.stages or (ceiling and step <= ceiling * 1.25):
        return None
    if step < 0.1 * pipeline.round.step_seconds:
        return None
    savings = {stage.name: pipeline.saving(stage.name) for stage in pipeline.stages}
    best = max(savings, key=lambda name: savings[name])
    path = pipeline.critical_path()
    if savings[best] < 0.1 * step and path:
        weights = {stage.name: stage.seconds for stage in pipeline.stages}
        return max(path, key=lambda name: weights[name])
    return best


def classify(pipeline: Pipeline, name: str | None, peaks: Peaks) -> str | None:
    """The kind of bottleneck: what would have to be more for the stage to be faster."""
    if name is None:
        return None
    known, host = pipeline.round.simulation or Simulation(), pipeline.stage("host")
    launches, each = (known.launches or 0) * known.accumulation, peaks.launch_seconds or 0.0
    # the rest of what the training process needs to issue a step is Python
    if name == "host" and known.device != "cpu" and host is not None and launches * each >= 0.5 * host.seconds:
        return "launch overhead"
    if name in _CLASS:
        return _CLASS[name]
    # from there on the allocator gives memory back and asks for it again
    if known.memory_used and known.memory_used > 0.95:
        return "memory capacity"
    both = sum(stage.seconds for stage in pipeline.stages if stage.name in ("forward", "backward"))
    issuing = host.seconds if known.device != "cpu" and host is not None else 0.0
    # on the CPU an operator with autograd costs several bare dispatches before it has done anything: with more launches
    # in that time, issuing them sets the speed
    if launches and each and (issuing >= both if issuing else both / launches < 6 * each):
        return "launch overhead"
    operators = pipeline.round.operators
    total = sum(operator.seconds for operator in operators)
    moving = sum(operator.seconds for operator in operators if operator.kind in ("elementwise", "memory"))
    if total and moving > 0.5 * total:
        return "memory bandwidth"
    return "compute"


def deeper_chain(pipeline: Pipeline, name: str | None, timings: StageTimings) -> tuple[Deeper, ...]:
    """From the bottleneck stage down: transforms and lines of the dataset, or modules and operators."""
    stage = pipeline.stage(name) if name else None
    if stage is None:
        return ()
    top = Deeper(
        name=stage.name,
        kind="stage",
        seconds=stage.seconds,
        ceiling_seconds=stage.ceiling_seconds,
        gap=stage.gap,
    )
    samples, inputs = timings.batch_size * timings.accumulation / stage.parallel, timings.inputs
    below: tuple[Deeper, ...]
    if stage.name in ("storage", "preparation"):
        below = scaled(inputs.waiting if stage.name == "storage" else inputs.deeper, samples)
    elif stage.name == "collate":
        below = scaled(inputs.collating, timings.accumulation / stage.parallel)
    elif stage.name in ("forward", "backward"):
        chain = scaled(timings.deeper.get(stage.name, ()), timings.accumulation)
        modules, lines = ([item for item in chain if item.kind == kind] for kind in ("module", "line"))
        below = (*modules, *_operator(pipeline, stage), *lines)
    elif stage.name == "evaluate":
        below = scaled(timings.deeper.get("evaluate", ()), 1 / (timings.evaluate_every or 1))
    else:
        below = timings.deeper.get(stage.name, ())
    if stage.gap:  # below preparation and waiting the same holds as for the stage: more hands at once
        below = tuple(
            item.model_copy(update={"ceiling_seconds": item.seconds / stage.gap, "gap": stage.gap})
            if item.ceiling_seconds is None and item.kind != "operator"
            else item
            for item in below
        )
    return (top, *below)


def _operator(pipeline: Pipeline, stage: Stage) -> tuple[Deeper, ...]:
    """The costliest operator of the step with its distance to its own roofline, if it weighs something in the stage."""
    found = [o for o in pipeline.round.operators if o.name.endswith("backward") is (stage.name == "backward")]
    if stage.name == "backward":  # matrix products serve both directions under one name
        found = [*found, *(o for o in pipeline.round.operators if o.kind == "matmul" and o not in found)]
    top = max(found, key=lambda operator: operator.seconds, default=None)
    if top is None or top.seconds < 0.1 * stage.seconds:
        return ()
    ceiling = top.ceiling_seconds
    return (
        Deeper(
            name=top.name,
            kind="operator",
            seconds=top.seconds,
            ceiling_seconds=ceiling,
            gap=top.seconds / ceiling if ceiling else None,
            note=f"{top.calls} calls in a micro-batch, forward and backward together" if top.calls else "",
        ),
    )
