"""The profile of a workload: benchmark and simplify only, nothing is tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import autoopt
from autoopt.errors import AutooptError, EnvironmentLacks, TrialFailed
from autoopt.events import Listener
from autoopt.export.script_patch import placed
from autoopt.options import Options
from autoopt.profilers import profile_with, watched
from autoopt.records import Change, Plan, Prediction, Profile, Profiled, Reproduce
from autoopt.records.drift import Drift
from autoopt.registry import Registry
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.running.document import located, near, now
from autoopt.script.command import Build, Script
from autoopt.search.planner import Choice
from autoopt.search.profile import profile
from autoopt.search.trial_runner import BaselineFailed, TrialRunner
from autoopt.storage.run_directory import RunDirectory
from autoopt.trial.parent import Launcher


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
        tools: profilers to run afterwards (``autoopt.profilers.TOOLS``), each reported to ``on_profiled``.
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
                "autoopt_version": autoopt.__version__,
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
        directory.write(directory.path / "profile.json", document.model_dump_json(indent=2) + "\n")
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
