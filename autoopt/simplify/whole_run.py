"""The whole run of a profiled plan: its parts by the profile and by the first look at a script. Pure."""

from __future__ import annotations

from autoopt.benchmark.target import whole_run_seconds
from autoopt.records import RunParts, WholeRun
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block, Startup
from autoopt.simplify.stage_timings import StageTimings, Timing


def with_watched(timings: StageTimings, run: RunParts | None) -> StageTimings:
    """The timings with evaluations and checkpoints as a script was seen to make them: they stand in its own loop."""
    if run is None or timings.evaluate is not None:
        return timings
    seen: dict[str, object] = {}
    if run.evaluation_seconds is not None and run.evaluate_every:
        each = [one.seconds for one in run.evaluations] or [run.evaluation_seconds]
        steps = len({one.step for one in run.evaluations}) or 1
        samples = sum(one.samples or 0 for one in run.evaluations) / steps
        seen |= {
            "evaluate": Timing(seconds=run.evaluation_seconds, low=min(each), high=max(each), n=len(each)),
            "evaluate_every": round(run.evaluate_every),
            "evaluation_samples": samples or None,
        }
    if run.checkpoint_seconds is not None and run.checkpoint_every:
        saved = run.checkpoint_seconds
        seen |= {
            "checkpoint": Timing(seconds=saved, low=saved, high=saved, n=1),
            "checkpoint_every": round(run.checkpoint_every),
        }
    return timings.model_copy(update=seen)


def run_parts(facts: WorkloadFacts, startup: Startup, block: Block, timings: StageTimings) -> RunParts:
    """The parts of a whole run of the plan that was profiled.

    Args:
        facts: of the workload; of a script with the parts that its first look has shown.
        startup, block: of the profile.
        timings: with evaluations and checkpoints.
    """
    watched = facts.run or RunParts()
    steps = max(block.steps, 1)
    first = startup.first_batch_seconds
    script = facts.adapter == "script"
    excess = max(startup.fixed_seconds - startup.build_seconds - startup.setup_seconds, 0.0)
    build = startup.build_seconds + startup.setup_seconds
    evaluate, saved = timings.evaluate, timings.checkpoint
    return RunParts(
        imports_seconds=watched.imports_seconds,
        build_seconds=watched.build_seconds if script else build,
        first_batch_seconds=first,
        # a script's first step is a part of its start, one of a build() is not
        warm_up_seconds=max(build - (watched.build_seconds or 0.0) - (first or 0.0), 0.0) + excess
        if script
        else excess,
        step_seconds=(block.seconds - block.stage_seconds.get("epoch", 0.0)) / steps,
        steps=facts.max_steps,
        steps_per_epoch=facts.steps_per_epoch,
        epoch_seconds=startup.epoch_seconds if startup.epoch_seconds is not None else watched.epoch_seconds,
        evaluation_seconds=evaluate.seconds if evaluate is not None else None,
        evaluate_every=timings.evaluate_every if evaluate is not None else None,
        checkpoint_seconds=saved.seconds if saved is not None else None,
        checkpoint_every=timings.checkpoint_every if saved is not None else None,
        end_seconds=watched.end_seconds,
        evaluations=watched.evaluations,
    )


def whole_run(parts: RunParts) -> WholeRun | None:
    """The planned run from its parts; None where its length is not known."""
    return whole_run_seconds(parts) if parts.steps and parts.step_seconds is not None else None
