"""Which stage holds the step back, of what kind that is, and what lies below it. Pure."""

from __future__ import annotations

from autoopt.records import Deeper, Peaks, Simulation
from autoopt.simplify.pipeline import INTERRUPTIONS, Pipeline
from autoopt.simplify.survey import Survey

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
}
_NO_BOTTLENECK = 1.1
_FULL_MEMORY = 0.95


def bottleneck(pipeline: Pipeline) -> str | None:
    """The stage whose absence would save the most; where none saves much, the heaviest on the critical path.

    None where the step is within a tenth of its ceiling.
    """
    ceiling = pipeline.round.ceiling_step_seconds
    interruptions = sum(stage.seconds for stage in pipeline.stages if stage.name in INTERRUPTIONS)
    step = pipeline.simulate() + interruptions
    if not pipeline.stages or (ceiling and step <= ceiling * _NO_BOTTLENECK):
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
    if name in _CLASS:
        return _CLASS[name]
    known = pipeline.round.simulation or Simulation()
    if known.memory_used and known.memory_used > _FULL_MEMORY:
        return "memory capacity"
    both = sum(stage.seconds for stage in pipeline.stages if stage.name in ("forward", "backward", "optimizer"))
    launches = (known.launches or 0) * (peaks.launch_seconds or 0.0) * known.accumulation
    if both and launches >= 0.5 * both:
        return "launch overhead"
    operators = pipeline.round.operators
    total = sum(operator.seconds for operator in operators)
    arithmetic = sum(operator.seconds for operator in operators if operator.kind == "matmul")
    if total and arithmetic < 0.5 * total:
        return "memory bandwidth"
    return "compute"


def deeper_chain(pipeline: Pipeline, name: str | None, survey: Survey, peaks: Peaks) -> tuple[Deeper, ...]:
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
    if name in ("storage", "preparation"):
        samples = survey.batch_size * survey.accumulation / stage.parallel
        below = tuple(link.model_copy(update={"seconds": link.seconds * samples}) for link in survey.inputs.deeper)
    elif name in ("forward", "backward"):
        below = survey.deeper
    else:
        below = ()
    return (top, *below)
