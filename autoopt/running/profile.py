"""The profile of a workload: benchmark and simplify only, nothing is tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import autoopt
from autoopt.errors import AutooptError, EnvironmentLacks, TrialFailed
from autoopt.events import EnvironmentRead, Listener, PhaseStarted
from autoopt.export.script_patch import placed
from autoopt.options import Options
from autoopt.profilers.tools import profile_with, watched
from autoopt.records import Change, Plan, Prediction, Profile, Profiled, Reproduce, Verdict, WorkloadSummary
from autoopt.records.drift import Drift
from autoopt.records.reading import PROFILE_FILE
from autoopt.registry import Registry
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.running.document import located, near
from autoopt.script.applicable import advice_of
from autoopt.script.command import Build, Script
from autoopt.search.baseline import FirstProcess, first_steps, opportunities, state_of, together
from autoopt.search.incumbent_profile import queue_by
from autoopt.search.outcome import configuration
from autoopt.search.planner import Choice
from autoopt.search.trial_runner import BaselineFailed, TrialRunner
from autoopt.simplify.analyse import build_round, model_error
from autoopt.simplify.costly import costly_lines
from autoopt.simplify.stage_profile import doubt_of, least_doubtful, profile_stages, reason_to_doubt
from autoopt.storage.journal import now
from autoopt.storage.run_directory import RunDirectory
from autoopt.trial.parent import Launcher

SECONDS = 20.0
"""For the stages' measurements, at most."""


def profile_run(
    workload: Build | Script,
    options: Options,
    *,
    tools: Sequence[str] = (),
    watch: bool = False,
    on_profiled: Callable[[Profiled], None] = lambda found: None,
    announce: Listener = lambda event: None,
) -> Profile:
    """Benchmark and simplify only, once checked (``running.baseline_spec``); writes profile.json and a trace.

    Args:
        tools: profilers to run afterwards (``autoopt.cli.profile.TOOLS``), each reported to ``on_profiled``.
        watch: trains on to the run's own end, or until the budget is spent, and shows whether it grows slower.
        announce: gets what is known early, such as where the time of a script's first steps goes.

    Raises:
        AutooptError: the workload cannot be built, or fails.
    """
    registry = registry_of(options)
    directory = RunDirectory.create(workload.spec, options.out)
    try:
        began = time.monotonic()
        choice = Choice(only=options.only, skip=options.skip, allow=options.allow)
        base = baseline_spec(workload, options, registry, str(directory.path))
        with workload.alone(), Launcher(compiler_cache=directory.compiler_cache) as launcher:
            runner = TrialRunner(launcher, base, registry, directory.logs)
            try:
                found = profile(runner, options, choice, traces=str(directory.traces), announce=announce)
            except TrialFailed as failure:
                raise BaselineFailed(failure, "while it was profiled") from failure
            profilers = []
            for tool in tools:
                try:
                    seen = profile_with(runner, tool, directory.path / "profilers")
                except (TrialFailed, EnvironmentLacks) as failure:  # the profile itself stands
                    said = tuple(filter(None, (f"failed: {failure.message}", failure.hint)))
                    seen = Profiled(tool=tool, lines=said)
                on_profiled(seen)
                file = None if seen.file is None else Path(seen.file)  # the page stands next to the run directory
                if file is not None and file.is_relative_to(directory.path):
                    seen = seen.model_copy(update={"file": file.relative_to(directory.path).as_posix()})
                profilers.append(seen)
            drift: Drift | None = None
            failed: tuple[str, ...] = ()
            if watch:
                try:
                    drift = watched(runner, options.budget_seconds - (time.monotonic() - began))
                except TrialFailed as failure:
                    failed = (f"--watch failed: {failure.message}",)
        more = [*([f"--with {','.join(tools)}"] if tools else []), *(["--watch"] if watch else [])]
        document = found.model_copy(
            update={
                "created": now(),
                "workload": found.workload.model_copy(update={"spec": workload.spec}),
                "round": near(found.round, Path.cwd()),
                "predictions": tuple(placed_prediction(each, found, registry) for each in found.predictions),
                "advice": tuple(located(item, Path.cwd()) for item in found.advice),
                "warnings": (*found.warnings, *failed),
                "profilers": tuple(profilers),
                "drift": drift,
                "reproduce": Reproduce(
                    command=f"autoopt profile {workload.asked(more)}",
                    seed=options.seed,
                    run_directory=str(directory.path),
                ),
            }
        )
        directory.write(directory.path / PROFILE_FILE, document.model_dump_json(indent=2) + "\n")
        return document
    except (AutooptError, KeyboardInterrupt):
        if options.out is None:
            directory.remove()  # nothing was found, and the message says why
        raise
    finally:
        directory.clean()
        directory.forget_compiled()


def placed_prediction(prediction: Prediction, found: Profile, registry: Registry) -> Prediction:
    """The same with the place of its hunk in a patch; as it is where the workload is no script."""
    if found.sites is None or not prediction.applies or prediction.reason:
        return prediction
    plan = Plan(changes=(Change(strategy=prediction.strategy, setting=prediction.setting),))
    device = found.environment.device.partition(":")[0]
    (change,) = placed(found.sites, plan, registry, device).patch.changes
    return prediction.model_copy(update={"how": change.how, "file": change.file, "line": change.line})


def profile(
    runner: TrialRunner,
    options: Options,
    choice: Choice,
    *,
    traces: str | None = None,
    announce: Listener = lambda event: None,
) -> Profile:
    """Measures the baseline from the inside and asks every strategy for its prediction.

    Args:
        traces: a folder for a short torch.profiler trace.
        announce: gets what is known before the stages are measured, as soon as it is.

    Raises:
        TrialFailed: the baseline does not train.
    """
    began = time.monotonic()
    first = FirstProcess(runner)
    announce(PhaseStarted(at=0.0, phase="benchmark"))
    sites = first.sites() if runner.base.script is not None else None
    watched = first_steps(sites, time.monotonic() - began) if sites is not None else None
    if watched is not None:
        announce(watched)
    description = first.description()
    announce(EnvironmentRead(at=time.monotonic() - began, environment=description.environment))
    state = state_of(runner, options, description)
    if watched is not None:
        case = state.case(runner.registry)
        announce(opportunities(runner.registry, case, choice, 1 + options.min_gain, time.monotonic() - began))
    announce(PhaseStarted(at=time.monotonic() - began, phase="simplify"))
    least, _ = options.processes
    plan = together(runner, least) if least > 1 else Plan()
    state.baseline = state.incumbent = plan
    seconds = min(SECONDS, options.budget_seconds / 3)
    seen = least_doubtful(
        lambda: profile_stages(runner, plan, seconds=seconds, advise=True, trace=traces),
        lambda seen: doubt_of(seen, None, model_error(description, seen)),
    )
    round_, pipeline = build_round(description, seen)
    disturbed = reason_to_doubt(seen, watched_step=watched.step_seconds if watched is not None else None)
    text = f"{disturbed}: read its figures as a busy machine's, and profile again on a quiet one"
    queue = queue_by(seen, pipeline, state, runner.registry, choice, options.min_gain)
    predicted = {each.strategy: each for each in queue.predictions}
    for item in queue.skipped:
        predicted[item.strategy.name] = Prediction(
            strategy=item.strategy.name,
            setting=item.setting,
            predicted=item.predicted,
            applies=item.verdict is not Verdict.NOT_APPLICABLE,
            reason=item.reason,
        )
    return Profile(
        autoopt_version=autoopt.__version__,
        created=now(),
        seconds=time.monotonic() - began,
        workload=WorkloadSummary.model_validate(description.facts.model_dump()),
        environment=description.environment,
        baseline=configuration(plan, description.environment, profile=seen),
        round=round_,
        predictions=tuple(predicted[name] for name in runner.registry if name in predicted),
        advice=(
            *costly_lines(round_, description.facts, sites),
            *seen.advice,
            *(advice_of(sites) if sites is not None else ()),
        ),
        warnings=(*((text,) if disturbed else ()), *seen.missing),
        sites=sites,
    )
