"""From the timings of stages to the round's document: stages, ceilings, bottleneck. Pure."""

from __future__ import annotations

import itertools

from autoopt.benchmark.target import whole_run_seconds
from autoopt.records import Deeper, Peaks, Plan, Resource, Round, RunParts, Simulation, Stage
from autoopt.records.distributed import Communication
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block, Startup
from autoopt.simplify.bottleneck import (
    bottleneck,
    ceiling_step,
    classify,
    deeper_chain,
    operator_ceiling,
    stage_ceilings,
)
from autoopt.simplify.drift import normalized_to_running
from autoopt.simplify.pipeline import STEP, Pipeline
from autoopt.simplify.stage_profile import Description, StageProfile
from autoopt.simplify.stage_timings import DEFAULT_PREFETCH, INPUT, StageTimings, Timing

_EXPOSED = {"copy": "copy", "forward": "forward", "backward": "backward", "optimizer": "optimizer", "host": "other"}


def with_watched(timings: StageTimings, run: RunParts | None) -> StageTimings:
    """The timings with evaluations and checkpoints as a script was seen to make them: they stand in its own loop."""
    if run is None or timings.evaluate_every is not None:
        return timings
    seen: dict[str, object] = {}
    if run.evaluation_seconds is not None and run.evaluate_every:
        seen |= {
            "evaluate": timings.evaluate or Timing(seconds=run.evaluation_seconds),
            "evaluate_every": round(run.evaluate_every),
            "evaluation_samples": run.samples_per_evaluation or None,
        }
    if run.checkpoint_seconds is not None and run.checkpoint_every:
        saved = Timing(seconds=run.checkpoint_seconds)
        seen |= {"checkpoint": saved, "checkpoint_every": round(run.checkpoint_every)}
    return timings.model_copy(update=seen)


def run_parts(facts: WorkloadFacts, startup: Startup, block: Block, timings: StageTimings) -> RunParts:
    """The parts of a whole run of the plan that was profiled.

    Args:
        facts: of the workload; of a script with the parts that its first measurement has shown.
        timings: with evaluations and checkpoints.
    """
    watched, first = facts.run or RunParts(), startup.first_batch_seconds
    build, script = startup.build_seconds + startup.setup_seconds, facts.adapter == "script"
    warm_up = max(startup.fixed_seconds - build, 0.0)
    if script:  # whose first step is a part of its start, one of a build() is not
        warm_up += max(build - (watched.build_seconds or 0.0) - (first or 0.0), 0.0)
    evaluate, saved = timings.evaluate, timings.checkpoint
    found = {
        "build_seconds": watched.build_seconds if script else build,
        "first_batch_seconds": first,
        "warm_up_seconds": warm_up,
        "step_seconds": (block.seconds - block.stage_seconds.get("epoch", 0.0)) / max(block.steps, 1),
        "steps": facts.max_steps if watched.steps is None else watched.steps,
        "steps_per_epoch": facts.steps_per_epoch,
        "epoch_seconds": startup.epoch_seconds if startup.epoch_seconds is not None else watched.epoch_seconds,
        "evaluation_seconds": evaluate.seconds if evaluate is not None else None,
        "evaluate_every": timings.evaluate_every if evaluate is not None else None,
        "checkpoint_seconds": saved.seconds if saved is not None else None,
        "checkpoint_every": timings.checkpoint_every if saved is not None else None,
    }
    return watched.model_copy(update=found)


def analyse(
    index: int,
    plan: Plan,
    timings: StageTimings,
    block: Block,
    peaks: Peaks,
    sent: Communication | None = None,
    parts: RunParts | None = None,
    own: tuple[Deeper, ...] = (),
) -> Round:
    """Everything that a round says of the incumbent.

    Args:
        block: the running system, for the step and what each stage adds to it.
        sent: messages of several processes; None of one.
        parts: of the plan's whole run; none where nothing but steps was measured.
        own: functions of the user's outside of the model's; the dearest opens a bottleneck of the host.

    Stages are normalized to the speed at which the steps ran, so that their sum is as fast as what is measured.
    """
    timings, parts = normalized_to_running(timings), parts or RunParts()
    step = block.seconds / max(block.steps, 1)
    ceilings = stage_ceilings(timings, peaks)
    stages = tuple(_with_gap(stage, ceilings.get(stage.name)) for stage in _stages(timings, block))
    if sent is not None:
        stages = (*stages, communication(sent))
    stages = (*stages, *_starts(parts, block))
    length_known = parts.steps and parts.step_seconds is not None
    present = {stage.name for stage in stages}
    main = [name for name in STEP if name in present]  # each precedes the next of those that this workload has
    before = [(name, main[0]) for name in ("start", "epoch") if main and name in present]
    after = [(main[-1], name) for name in ("evaluate", "checkpoint") if main and name in present]
    round_ = Round(
        index=index,
        plan=plan,
        step_seconds=step,
        stages=stages,
        edges=(*itertools.pairwise(main), *before, *after),
        operators=tuple(
            one.model_copy(update={"ceiling_seconds": operator_ceiling(one, peaks, timings.allowed_precisions)})
            for one in timings.operators
        ),
        simulation=_simulation(timings),
        whole_run=whole_run_seconds(parts) if length_known else None,
        notes=(*timings.notes, *timings.inputs.notes),
        own=own,
    )
    pipeline = Pipeline(round_)
    predicted, best = pipeline.simulate(), ceiling_step(pipeline, timings, peaks)
    name = bottleneck(pipeline, best)
    dearest = [max(own, key=lambda function: function.seconds)] if name == "host" and own else []
    return round_.model_copy(
        update={
            "predicted_step_seconds": predicted,
            "simulation_error": predicted / step - 1.0 if step > 0 else None,
            "critical_path": pipeline.critical_path(),
            "ceiling_step_seconds": None if best is None else min(best, step),
            "bottleneck": name,
            "bottleneck_class": classify(pipeline, name, peaks),
            "deeper": (*deeper_chain(pipeline, name, timings), *dearest),
        }
    )


def build_round(description: Description, profile: StageProfile, index: int = 0) -> tuple[Round, Pipeline | None]:
    """The round's document and, where stages could be measured, its pipeline graph."""
    if not profile.timings:
        step = profile.block.seconds / max(profile.block.steps, 1)
        return Round(index=index, plan=profile.plan, step_seconds=step, stages=()), None
    timings = with_watched(StageTimings.model_validate(profile.timings), description.facts.run)
    peaks = description.environment.peaks
    parts = run_parts(description.facts, profile.startup, profile.block, timings)
    round_ = analyse(index, profile.plan, timings, profile.block, peaks, profile.communication, parts, profile.own)
    return round_, Pipeline(round_)


def model_error(description: Description, profile: StageProfile) -> float | None:
    """The simulated step of a profile over its measured one, less 1 (0.1: a tenth longer); None without stages."""
    return build_round(description, profile)[0].simulation_error


def _stages(timings: StageTimings, block: Block) -> list[Stage]:
    """The stages in their order, seconds per optimizer step; an exposed time where the running system has it."""
    micro = timings.accumulation
    found = _input_stages(timings, block)
    host = _host(timings)
    plain: list[tuple[str, Resource, Timing | None, float]] = [
        ("pin", Resource.HOST, timings.pin if timings.pin_memory else None, micro),
        ("copy", Resource.LINK, timings.transfer, micro),
        ("forward", Resource.DEVICE, timings.forward, micro),
        ("backward", Resource.DEVICE, timings.backward, micro),
        ("optimizer", Resource.DEVICE, timings.optimizer, 1),
        ("host", Resource.HOST, None if host is None else Timing(seconds=host), 1),
    ]
    found += [
        Stage(name=name, resource=resource, seconds=max(0.0, timing.seconds) * times)
        for name, resource, timing, times in plain
        if timing is not None
    ]
    between = (
        ("evaluate", Resource.DEVICE, timings.evaluate, timings.evaluate_every),
        ("checkpoint", Resource.HOST, timings.checkpoint, timings.checkpoint_every),
    )
    for name, resource, timing, every in between:  # what interrupts training, as seconds for each step
        if timing and every:
            note = f"between steps: {timing.seconds:.3g} s once in {every} of them"
            found.append(Stage(name=name, resource=resource, seconds=max(0.0, timing.seconds) * (1 / every), note=note))
    found = [stage.model_copy(update={"exposed_seconds": _exposed(stage, block, found)}) for stage in found]
    if timings.padding is not None and timings.padding >= 0.005:  # of what is computed on batches
        padded = {"note": f"{timings.padding:.0%} of its elements are padding"}
        found = [s.model_copy(update=padded) if s.name in ("copy", "forward", "backward") else s for s in found]
    by_stage = sum(block.stage_seconds.get(name, 0.0) for name in ("forward", "backward", "optimizer"))
    if block.stage_seconds.get("whole", 0.0) <= by_stage:
        return found
    # a running step that is replayed as one says nothing of its stages; alone, launched one by one, they take longer
    parts = [stage for stage in found if stage.resource is Resource.DEVICE and stage.name in _EXPOSED]
    alone = sum(stage.seconds for stage in parts)
    share = min(1.0, timings.compute.seconds / alone) if timings.compute is not None and alone > 0 else 1.0
    note = "within a step that is replayed as a whole: its share of that step, by what it takes alone"
    return [
        stage.model_copy(update={"exposed_seconds": None, "note": note, "seconds": stage.seconds * share})
        if stage in parts
        else stage
        for stage in found
    ]


def communication(sent: Communication) -> Stage:
    """Messages between processes as a stage: all of their seconds, and those that the backward pass does not hide.

    The ceiling is the same bytes at the most that any size got through here.
    """
    peak = sent.peak_bytes_per_second
    note = f"{sent.hidden:.3g} s of it are hidden behind the backward pass"
    if sent.straggler is not None:
        usual = min(rank.median for rank in sent.apart)
        slower = sent.apart[sent.straggler].median / usual
        note += f"; the others wait for rank {sent.straggler}, which is {slower:.2f} times as slow"
    stage = Stage(
        name="communication",
        resource=Resource.LINK,
        seconds=sent.alone.median,
        exposed_seconds=sent.exposed,
        note=note,
    )
    return _with_gap(stage, sent.gradient_bytes / peak if peak else None)


def _input_stages(timings: StageTimings, block: Block) -> list[Stage]:
    """Input stages by the seconds of a sample; of a script without a loader by what passes between its steps."""
    inputs, samples, found = timings.inputs, timings.batch_size * timings.accumulation, list[Stage]()
    lanes, side = max(1, timings.workers), Resource.WORKER if timings.workers else Resource.HOST
    between = block.stage_seconds.get("data", 0.0) / max(block.steps, 1)
    if not inputs.sample and between and not timings.workers:
        note = "the script's own lines between two steps"
        found.append(Stage(name="preparation", resource=side, seconds=between, note=note))
    if inputs.sample:
        wait = inputs.sample.wait_seconds or 0.0
        cpu = min(inputs.sample.cpu, max(inputs.sample.seconds - wait, 0.0)) if wait else inputs.sample.cpu
        found.append(Stage(name="storage", resource=Resource.STORAGE, seconds=wait * samples / lanes, parallel=lanes))
        found.append(Stage(name="preparation", resource=side, seconds=cpu * samples / lanes, parallel=lanes))
    if inputs.collate:
        seconds = _cpu(inputs.collate) * timings.accumulation / lanes
        found.append(Stage(name="collate", resource=side, seconds=seconds, parallel=lanes))
    return found


def _starts(parts: RunParts, block: Block) -> list[Stage]:
    """The start of the run and of its later epochs, as seconds for each step of the run."""
    found = []
    if parts.epoch_seconds and parts.steps_per_epoch:
        each, every = parts.epoch_seconds, parts.steps_per_epoch
        within = block.stage_seconds.get("epoch", 0.0) / max(block.steps, 1)
        stage = Stage(name="epoch", resource=Resource.WORKER, seconds=each / every, exposed_seconds=within or None)
        note = f"an epoch begins: {each:.3g} s until its first batch, once in {every} steps"
        found.append(_with_gap(stage.model_copy(update={"note": note}), 0.0))
    known = (parts.imports_seconds, parts.build_seconds, parts.first_batch_seconds, parts.warm_up_seconds)
    start = sum(seconds or 0.0 for seconds in known)
    if start and parts.steps:
        note = f"the run begins: {start:.3g} s, once in {parts.steps} steps"
        found.append(Stage(name="start", resource=Resource.HOST, seconds=start / parts.steps, note=note))
    return found


def _host(timings: StageTimings) -> float | None:
    """Python around the stages: the whole step on cached batches beyond its stages alone."""
    inputs, loader = timings.inputs, 0.0
    if timings.device != "cpu" and timings.issue is not None:
        return timings.issue.seconds
    if timings.host is None:
        return None
    if not timings.workers and inputs.loader and inputs.sample and inputs.collate:
        # a loader's Python is the training process's: its batches beyond samples and collate
        extra = _cpu(inputs.loader) - _cpu(inputs.sample) * timings.batch_size - _cpu(inputs.collate)
        loader = max(0.0, extra) * timings.accumulation * timings.cold_ratio
    return timings.host.seconds + loader


def _cpu(timing: Timing) -> float:
    """CPU seconds, which a busy machine changes less than the clock's."""
    return min(timing.cpu, timing.seconds)


def _exposed(stage: Stage, block: Block, stages: list[Stage]) -> float | None:
    """Exposed seconds of a stage, which it adds to the running step.

    The wait for data is shared out by the input stages' weight. None of what stands between steps (evaluation,
    checkpoints): the step is as long without it, and what is in the step adds up to it.
    """
    steps = max(block.steps, 1)
    if stage.name in _EXPOSED:
        seconds = block.stage_seconds.get(_EXPOSED[stage.name])
        return None if seconds is None else seconds / steps
    data = block.stage_seconds.get("data")
    inputs = [other for other in stages if other.name in INPUT]
    total = sum(other.seconds for other in inputs)
    if data is None or stage not in inputs or total <= 0:
        return None
    return data / steps * stage.seconds / total


def _with_gap(stage: Stage, ceiling: float | None) -> Stage:
    if ceiling is None:
        return stage
    note = stage.note
    if ceiling > stage.seconds:
        note = f"measured faster than its ceiling of {ceiling:.3g} s, which was wrong and is lowered"
        ceiling = stage.seconds
    gap = stage.seconds / ceiling if ceiling > 0 else None
    return stage.model_copy(update={"ceiling_seconds": ceiling, "gap": gap, "note": note})


def _simulation(timings: StageTimings) -> Simulation:
    """What the graph knows beyond its stages, with what of it follows from timings."""
    inputs, micro, update = timings.inputs, timings.accumulation, timings.issue_update
    followed = {
        "prefetch": timings.prefetch or DEFAULT_PREFETCH,
        "handover_seconds": inputs.handover.seconds * micro if inputs.handover else 0.0,
        "receive_seconds": inputs.receive.seconds * micro if inputs.receive else 0.0,
        "update_issue_seconds": update.seconds if update is not None else None,
        "sample_spread": inputs.sample_spread,
        "fed": [one.model_dump() for one in timings.overlaps],
    }
    return Simulation.model_validate({**vars(timings), **followed})
