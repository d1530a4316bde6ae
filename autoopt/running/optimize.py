"""A run of the loop, new or resumed, from its directory to its documents."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from autoopt.benchmark.environment import usable_cores
from autoopt.errors import AutooptError, EnvironmentLacks, Interrupted, UsageError, WorkloadError
from autoopt.events import Announcer, Listener, RunEnded, RunStarted
from autoopt.export.script import script
from autoopt.export.script_patch import placed
from autoopt.export.script_patch.source import Source
from autoopt.export.targets import snippets
from autoopt.loop import Loop
from autoopt.options import Options
from autoopt.records import JsonDict, Plan, PlanDocument, Result, StopReason
from autoopt.registry import Registry
from autoopt.running.baseline_spec import baseline_spec, cwd_on_path, registry_of
from autoopt.running.document import result_of
from autoopt.script.command import Build, Script, parse
from autoopt.search.accept.gathering import Gate, Probes
from autoopt.search.accept.trainings import Trainings
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.outcome import Outcome
from autoopt.search.planner import Choice
from autoopt.search.run_context import RunContext
from autoopt.search.trial_runner import TrialRunner
from autoopt.storage.fingerprint import fingerprint
from autoopt.storage.interrupts import Interrupts
from autoopt.storage.journal import entries, summary, table
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory, compiler_cache_of
from autoopt.trial.parent import Launcher
from autoopt.trial.places import places_of
from autoopt.trial.remote.launcher import RemoteLauncher

_STOPPING = b"\nfinishing this trial, then verifying and reporting; Ctrl-C again stops at once, journal kept\n"
_NOT_MEASURED_BY = {"budget_seconds", "accept_undecided", "price", "log", "metric", "out", "json", "quiet", "open"}
"""Options that change nothing that is measured; a resumed run must have the others as they were."""


def optimize_run(workload: Build | Script, options: Options, *, listeners: Sequence[Listener] = ()) -> Result:
    """One run that was checked (``running.baseline_spec``), from an empty directory to its documents.

    Raises:
        AutooptError: nothing was written but the journal and the logs.
    """
    registry = registry_of(options)
    directory = RunDirectory.create(workload.spec, options.out)
    document = {"spec": workload.spec, "directory": os.getcwd(), **_plain(options)}
    try:
        with Run.create(directory, fingerprint_of(workload, options), document) as run:
            return _follow(workload, options, registry, run, listeners)
    except (WorkloadError, UsageError, EnvironmentLacks):
        if options.out is None and not measured_anything(directory):
            directory.remove()  # the message says it all: no litter
        raise


def measured_anything(directory: RunDirectory) -> bool:
    """Whether the journal holds a step that came to its end."""
    try:
        return '"type":"end"' in directory.journal.read_text(encoding="utf-8").replace(" ", "")
    except OSError:
        return False


def resume_run(path: Path | str, *, accept_changed: bool = False, listeners: Sequence[Listener] = ()) -> Result:
    """Goes on with an interrupted run.

    Raises:
        UsageError: it is finished, in use, or was measured with other code.
        DocumentError: its journal is damaged.
    """
    directory = RunDirectory.existing(path)
    with Run.resume(directory) as run:
        workload, options = _options_of(run.options)
        if run.finished:
            raise UsageError(f"{path} is finished: there is nothing to resume", hint=f"autoopt report {path}")
        folder = str(run.options.get("directory", "."))  # import strings and relative paths mean what they meant there
        if not os.path.isdir(folder):
            raise UsageError(
                f"the run was started in {folder}, which is gone", hint="put it back: its import strings start there"
            )
        with contextlib.chdir(folder):
            run.check_fingerprint(fingerprint_of(workload, options), accept_changed)
            return _follow(workload, replace(options, out=directory.path), registry_of(options), run, listeners)


def fingerprint_of(workload: Build | Script, options: Options) -> JsonDict:
    """The fingerprint of a workload: of a script the files that its command names count as well."""
    chosen = {name: value for name, value in _plain(options).items() if name not in _NOT_MEASURED_BY}
    if isinstance(workload, Build):
        return fingerprint(workload.spec, _module_file(workload.spec.rpartition(":")[0]), options=chosen)
    file, root, others = workload.files()
    return fingerprint(workload.spec, file, root=root, named=others, options=chosen)


def _module_file(name: str) -> Path | None:
    """The file of a module, or of a path, without importing it."""
    if name.endswith(".py"):
        return Path(name)
    with cwd_on_path(), contextlib.suppress(Exception):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin:
            return Path(found.origin)
    return None


def _options_of(document: JsonDict) -> tuple[Build | Script, Options]:
    known = {field.name for field in fields(Options)}
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in document.items() if n in known}
    if values.get("out"):
        values["out"] = Path(values["out"])
    return parse(str(document["spec"])), Options(**values)


def _plain(options: Options) -> JsonDict:
    """Options as JSON has them."""
    plain: JsonDict = json.loads(json.dumps(asdict(options), default=str))
    return plain


def _follow(
    workload: Build | Script, options: Options, registry: Registry, run: Run, listeners: Sequence[Listener]
) -> Result:
    announce = Announcer(run.announced)
    for listener in (*listeners, run.note):
        announce.subscribe(listener)
    launching = launcher_of(options, run.directory)
    with workload.alone(), Interrupts(lambda: os.write(2, _STOPPING)) as interrupts, launching as launcher:
        context = _context(workload, options, registry, run, announce, interrupts, launcher)
        announce(
            RunStarted(
                at=run.clock.elapsed(),
                spec=workload.spec,
                device_name=options.device,
                budget_seconds=options.budget_seconds,
                run_directory=str(run.directory.path),
            )
        )
        loop = Loop(context, options)
        try:
            outcome = loop.run()
        except (Interrupted, KeyboardInterrupt):
            partial = loop.partial()
            if partial is None:
                raise Interrupted(
                    "stopped before the workload was built: there is nothing to report",
                    hint=f"autoopt resume {run.directory.path} starts it again",
                ) from None
            outcome = partial
        except EnvironmentLacks:  # the disk is full, or the run directory gone: what was found is kept if it can be
            partial = loop.partial()
            if partial is not None:
                with interrupts.shielded(), contextlib.suppress(AutooptError, OSError):
                    _write(workload, options, registry, run, announce, partial)
            raise
        with interrupts.shielded():
            return _write(workload, options, registry, run, announce, outcome)


def _context(
    workload: Build | Script,
    options: Options,
    registry: Registry,
    run: Run,
    announce: Announcer,
    interrupts: Interrupts,
    launcher: Launcher | RemoteLauncher,
) -> RunContext:
    base = baseline_spec(workload, options, registry, str(run.directory.path))
    together = max(base.processes, options.processes[1])
    places = places_of(launcher, options.parallel, together, options.device, usable_cores())
    runner = TrialRunner(launcher, base, registry, run.directory.logs, places)
    if base.script is not None:
        sources: dict[str, Source] = {}
        runner.patched_files = lambda plan: _patched(runner, plan, sources)[0]
        runner.unsaid = lambda plan: _patched(runner, plan, sources)[1]
    trainings = Trainings(runner, run)
    return RunContext(
        runner=runner,
        run=run,
        announce=announce,
        choice=Choice(only=options.only, skip=options.skip, allow=options.allow),
        min_gain=options.min_gain,
        seed=options.seed,
        stopping=interrupts.stopping,
        allocation=BudgetAllocation(budget=options.budget_seconds),
        gate=Gate(
            trainings=trainings,
            registry=registry,
            seed=options.seed,
            now=run.clock.elapsed,
            probes=Probes(runner, run, run.directory.path / "probes"),
            accept_undecided=options.accept_undecided,
        ),
    )


def _patched(runner: TrialRunner, plan: Plan, sources: dict[str, Source]) -> tuple[dict[str, str], str]:
    """The files that a plan's patch changes or adds, by path; and why they lack a part of the plan, else empty."""
    sites = runner.watched()
    assert sites is not None, "only a script is patched"
    device = next((str(site.options.get("device", "cpu")) for site in sites.of("model")), "cpu")
    found = placed(sites, plan, runner.registry, device, sources)
    unsaid = "; ".join(change.reason for change in found.changes if change.how != "patched")
    return {os.path.join(sites.cwd, name): text for name, text in found.texts.items()}, unsaid


def _write(
    workload: Build | Script, options: Options, registry: Registry, run: Run, announce: Announcer, outcome: Outcome
) -> Result:
    """result.json, plan.json, patch.diff or optimized_train.py; the journal's last record."""
    plan, files = outcome.best.plan, run.directory
    compiles = registry.fold(plan).compile is not None
    # the processes that the baseline has were asked for, and are there already
    asked = [change for change in outcome.baseline.plan.changes if "processes" in change.setting]
    to_adopt = Plan(changes=tuple(change for change in plan.changes if change not in asked))
    result = result_of(
        workload,
        options,
        outcome,
        created=run.created,
        seconds=run.clock.elapsed(),
        directory=files.path,
        snippets=snippets(to_adopt, registry),
        took=run.took,
    )
    if result.sites is not None:
        patch = placed(result.sites, plan, registry, result.environment.device.partition(":")[0]).patch
        if compiles:
            patch = patch.model_copy(update={"environment": {**patch.environment, **compiler_cache_of(files.plan)}})
        result = result.model_copy(update={"patch": patch})
        files.write(files.patch, patch.diff)
    files.write(files.plan, PlanDocument(changes=plan.changes).model_dump_json(indent=2) + "\n")
    measured = list(entries(files.journal))
    result = result.model_copy(update={"account": summary(measured)})
    files.write(files.result, result.model_dump_json(indent=2) + "\n")
    files.write(files.account, table(measured))
    if result.sites is None:  # a script's result is a patch
        files.write(files.script, script(workload.spec, plan, registry, facts=outcome.state.facts))
    interrupted = outcome.stop.reason is StopReason.INTERRUPTED
    run.finish(outcome.stop.reason.value, complete=not interrupted)
    if not interrupted and not compiles:
        run.directory.forget_compiled()
    announce(RunEnded(at=run.clock.elapsed(), result=result, run_directory=str(files.path)))
    return result


def launcher_of(options: Options, directory: RunDirectory) -> Launcher | RemoteLauncher:
    """The launcher of a run.

    Raises:
        EnvironmentLacks: Ray is not installed, or the cluster cannot be reached.
    """
    name, _, address = options.executor.partition("://")
    if name == "local":
        return Launcher(compiler_cache=directory.compiler_cache)
    from autoopt.trial.remote.launcher import RayCluster

    return RemoteLauncher(RayCluster(f"ray://{address}" if address else None), str(directory.path.resolve()))
