"""Which stage holds the step back, of what kind that is, and what lies below it. Pure."""

from __future__ import annotations

from autoopt.records import Deeper, Peaks, Simulation, Stage
from autoopt.simplify.pipeline import INTERRUPTIONS, Pipeline
from autoopt.simplify.stage_timings import StageTimings

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
WITHIN_REACH = 1.25
"""A step this near its ceiling has no bottleneck: peaks are the best of many calls, no step is made of such alone."""
_LEAST_EXPLAINED = 0.1
"""Share of the measured step that the graph's own must make for one of its stages to be called the bottleneck."""
_FULL_MEMORY = 0.95
_DISPATCHES = 6


def bottleneck(pipeline: Pipeline, reach: float | None = None) -> str | None:
    """The stage whose absence would save the most; where none saves much, the heaviest on the critical path.

    None where the step is within a quarter of its ceiling, and where the stages that could be measured are next to
    nothing of it: what holds it back is not among them.

    Args:
        reach: the ceiling at the share of its peak that the machine gave meanwhile, where that is known.
    """
    ceiling = reach or pipeline.round.ceiling_step_seconds
    interruptions = sum(stage.seconds for stage in pipeline.stages if stage.name in INTERRUPTIONS)
    step = pipeline.simulate() + interruptions
    if not pipeline.stages or (ceiling and step <= ceiling * WITHIN_REACH):
        return None
    if step < _LEAST_EXPLAINED * pipeline.round.step_seconds:
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
    known = pipeline.round.simulation or Simulation()
    if name == "host" and known.device != "cpu" and _mostly_launches(pipeline, known, peaks):
        return "launch overhead"
    if name in _CLASS:
        return _CLASS[name]
    if known.memory_used and known.memory_used > _FULL_MEMORY:
        return "memory capacity"
    if _launch_bound(pipeline, known, peaks):
        return "launch overhead"
    operators = pipeline.round.operators
    total = sum(operator.seconds for operator in operators)
    moving = sum(operator.seconds for operator in operators if operator.kind in ("elementwise", "memory"))
    if total and moving > 0.5 * total:
        return "memory bandwidth"
    return "compute"


def _mostly_launches(pipeline: Pipeline, known: Simulation, peaks: Peaks) -> bool:
    """Whether launching is at least half of what the training process needs to issue a step; the rest is Python."""
    stage = pipeline.stage("host")
    launching = (known.launches or 0) * known.accumulation * (peaks.launch_seconds or 0.0)
    return stage is not None and launching >= 0.5 * stage.seconds


def _launch_bound(pipeline: Pipeline, known: Simulation, peaks: Peaks) -> bool:
    """Whether an operator of forward and backward takes little more than dispatching one that does nothing.

    On the CPU an operator with autograd costs several bare dispatches before it has done anything.
    """
    both = sum(stage.seconds for stage in pipeline.stages if stage.name in ("forward", "backward"))
    launches = (known.launches or 0) * known.accumulation
    if not launches or not peaks.launch_seconds:
        return False
    if known.device != "cpu" and known.host_seconds:
        return known.host_seconds >= both
    return both / launches < _DISPATCHES * peaks.launch_seconds


def deeper_chain(pipeline: Pipeline, name: str | None, timings: StageTimings, peaks: Peaks) -> tuple[Deeper, ...]:
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
    below = _below(pipeline, stage, timings)
    if stage.gap:  # below preparation and waiting the same holds as for the stage: more hands at once
        below = tuple(_as_far(item, stage) if item.ceiling_seconds is None else item for item in below)
    return (top, *below)


def _below(pipeline: Pipeline, stage: Stage, timings: StageTimings) -> tuple[Deeper, ...]:
    samples = timings.batch_size * timings.accumulation / stage.parallel
    inputs = timings.inputs
    if stage.name in ("storage", "preparation"):
        return _scaled(inputs.waiting if stage.name == "storage" else inputs.deeper, samples)
    if stage.name == "collate":
        return _scaled(inputs.collating, timings.accumulation / stage.parallel)
    if stage.name in ("forward", "backward"):
        chain = _scaled(timings.deeper.get(stage.name, ()), timings.accumulation)
        return (*_modules(chain), *_operator(pipeline, stage), *_lines(chain))
    if stage.name == "evaluate":
        return _scaled(timings.deeper.get("evaluate", ()), 1 / (timings.evaluate_every or 1))
    return timings.deeper.get(stage.name, ())


def _scaled(chain: tuple[Deeper, ...], times: float) -> tuple[Deeper, ...]:
    return tuple(item.model_copy(update={"seconds": item.seconds * times}) for item in chain)


def _modules(chain: tuple[Deeper, ...]) -> tuple[Deeper, ...]:
    return tuple(item for item in chain if item.kind == "module")


def _lines(chain: tuple[Deeper, ...]) -> tuple[Deeper, ...]:
    return tuple(item for item in chain if item.kind == "line")


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


def _as_far(item: Deeper, stage: Stage) -> Deeper:
    if item.kind == "operator" or not stage.gap:
        return item
    return item.model_copy(update={"ceiling_seconds": item.seconds / stage.gap, "gap": stage.gap})
