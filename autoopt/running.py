"""One run: from an empty or an interrupted directory to its documents; and the profile of a workload."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import autoopt
from autoopt.document import located, near, now, result_of
from autoopt.errors import AutooptError, EnvironmentLacks, Interrupted, TrialFailed, UsageError, WorkloadError
from autoopt.events import Announcer, Listener, RunEnded, RunStarted
from autoopt.export.script import script
from autoopt.export.snippets import snippets
from autoopt.loop import Loop, Outcome
from autoopt.options import Options, check_names
from autoopt.profilers import profile_with
from autoopt.records import JsonDict, PlanDocument, Profile, Profiled, Reproduce, Result, StopReason
from autoopt.registry import Registry, load_strategies
from autoopt.search.accept.gate import Gate
from autoopt.search.accept.trainings import Trainings
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.build_round import profile
from autoopt.search.planner import Choice
from autoopt.search.run_context import RunContext
from autoopt.search.trial_runner import BaselineFailed, TrialRunner
from autoopt.storage.fingerprint import fingerprint
from autoopt.storage.interrupts import Interrupts
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import TrialSpec

MEASURED_BY = (
    "target",
    "tolerance",
    "min_gain",
    "device",
    "memory_limit",
    "seed",
    "only",
    "skip",
    "strategies",
    "allow",
    "executor",
)
"""Options that change what is measured; a resumed run must have the same."""


def optimize_run(spec: str, options: Options, *, listeners: Sequence[Listener] = ()) -> Result:
    """One run, from an empty directory to result.json, plan.json and optimized_train.py.

    Raises:
        AutooptError: nothing was written but the journal and the logs.
    """
    registry = _registry(options)
    directory = RunDirectory.create(spec, options.out)
    try:
        with Run.create(directory, _fingerprint(spec, options), _options_document(spec, options)) as run:
            return _follow(spec, options, registry, run, listeners)
    except (WorkloadError, UsageError, EnvironmentLacks):
        if options.out is None and not measured_anything(directory):
            shutil.rmtree(directory.path, ignore_errors=True)  # the message says it all: no litter
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
        spec, options = _options_of(run.options)
        if run.finished:
            raise UsageError(f"{path} is finished: there is nothing to resume", hint=f"autoopt report {path}")
        with _in_directory(str(run.options.get("directory", "."))):
            run.check_fingerprint(_fingerprint(spec, options), accept_changed)
            return _follow(spec, replace(options, out=directory.path), _registry(options), run, listeners)


def _in_directory(path: str) -> contextlib.AbstractContextManager[None]:
    """Import strings and relative paths mean what they meant where the run was started.

    Raises:
        UsageError: that folder is gone.
    """
    if not os.path.isdir(path):
        raise UsageError(
            f"the run was started in {path}, which is gone", hint="put it back: its import strings start there"
        )
    return contextlib.chdir(path)


def profile_run(
    spec: str,
    options: Options,
    *,
    tools: Sequence[str] = (),
    on_profiled: Callable[[Profiled], None] = lambda found: None,
) -> Profile:
    """Benchmark and simplify only; writes profile.json and a trace, nothing is tried.

    Args:
        tools: profilers to run afterwards (``autoopt.profilers.TOOLS``), each told to ``on_profiled``.

    Raises:
        AutooptError: the workload cannot be built, or fails.
    """
    registry = _registry(options)
    directory = RunDirectory.create(spec, options.out)
    choice = Choice(only=options.only, skip=options.skip, allow=options.allow)
    with Launcher(compiler_cache=directory.compiler_cache) as launcher:
        bench = TrialRunner(launcher, _base(spec, options, registry), registry, directory.logs)
        try:
            found = profile(bench, options, choice, traces=str(directory.traces))
        except TrialFailed as failure:
            raise BaselineFailed(failure, "while it was profiled") from failure
        profilers = []
        for tool in tools:
            seen = _profiled(bench, tool, directory.path / "profilers")
            on_profiled(seen)
            profilers.append(_within(seen, directory.path))
    words = ["autoopt profile", spec, *(["--with", ",".join(tools)] if tools else [])]
    document = found.model_copy(
        update={
            "autoopt_version": autoopt.__version__,
            "created": now(),
            "workload": found.workload.model_copy(update={"spec": spec}),
            "round": near(found.round, Path.cwd()),
            "advice": tuple(located(item, Path.cwd()) for item in found.advice),
            "profilers": tuple(profilers),
            "reproduce": Reproduce(command=" ".join(words), seed=options.seed, run_directory=str(directory.path)),
        }
    )
    directory.write(directory.path / "profile.json", document.model_dump_json(indent=2) + "\n")
    return document


def _profiled(bench: TrialRunner, tool: str, folder: Path) -> Profiled:
    """What a profiler found; that it failed, where it did: the profile itself stands."""
    try:
        return profile_with(bench, (tool,), folder)[0]
    except (TrialFailed, EnvironmentLacks) as failure:
        return Profiled(tool=tool, lines=tuple(text for text in (f"failed: {failure.message}", failure.hint) if text))


def _within(found: Profiled, directory: Path) -> Profiled:
    """The same with its file relative to the run directory, beside which the page stands."""
    if found.file is None or not Path(found.file).is_relative_to(directory):
        return found
    return found.model_copy(update={"file": Path(found.file).relative_to(directory).as_posix()})


def _base(spec: str, options: Options, registry: Registry) -> TrialSpec:
    """The trial of the baseline."""
    return TrialSpec(
        workload=spec,
        strategies=registry.specs,
        device=options.device,
        seed=options.seed,
        directory=os.getcwd(),
        search_path=_search_path(),
        target=options.target,
        memory_limit_bytes=options.memory_limit,
    )


def _follow(spec: str, options: Options, registry: Registry, run: Run, listeners: Sequence[Listener]) -> Result:
    announce = Announcer()
    for listener in (*listeners, run.note):
        announce.subscribe(listener)
    launching = Launcher(compiler_cache=run.directory.compiler_cache)
    with Interrupts(lambda: _say_stopping()) as interrupts, launching as launcher:
        tools = _tools(spec, options, registry, run, announce, interrupts, launcher)
        announce(
            RunStarted(
                at=run.clock.elapsed(),
                spec=spec,
                device_name=options.device,
                budget_seconds=options.budget_seconds,
                run_directory=str(run.directory.path),
            )
        )
        loop = Loop(tools, options)
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
                    _write(spec, options, registry, run, announce, partial)
            raise
        with interrupts.shielded():
            return _write(spec, options, registry, run, announce, outcome)


def _tools(
    spec: str,
    options: Options,
    registry: Registry,
    run: Run,
    announce: Announcer,
    interrupts: Interrupts,
    launcher: Launcher,
) -> RunContext:
    bench = TrialRunner(launcher, _base(spec, options, registry), registry, run.directory.logs)
    trainings = Trainings(bench, run)
    return RunContext(
        bench=bench,
        run=run,
        announce=announce,
        choice=Choice(only=options.only, skip=options.skip, allow=options.allow),
        min_gain=options.min_gain,
        seed=options.seed,
        stopping=interrupts.stopping,
        shares=BudgetAllocation(budget=options.budget_seconds),
        gate=Gate(trainings=trainings, registry=registry, seed=options.seed, now=run.clock.elapsed),
    )


def _write(spec: str, options: Options, registry: Registry, run: Run, announce: Announcer, outcome: Outcome) -> Result:
    """result.json, plan.json and optimized_train.py; the journal's last record."""
    plan, files = outcome.best.plan, run.directory
    result = result_of(
        spec,
        options,
        outcome,
        created=run.created,
        seconds=run.clock.elapsed(),
        directory=files.path,
        snippets=snippets(plan, registry),
    )
    files.write(files.plan, PlanDocument(changes=plan.changes).model_dump_json(indent=2) + "\n")
    files.write(files.result, result.model_dump_json(indent=2) + "\n")
    files.write(files.script, script(spec, plan, registry, facts=outcome.search.facts))
    interrupted = outcome.stop.reason is StopReason.INTERRUPTED
    run.finish(outcome.stop.reason.value, complete=not interrupted)
    if not interrupted:
        run.directory.forget_compiled()
    announce(RunEnded(at=run.clock.elapsed(), result=result, run_directory=str(files.path)))
    return result


def _registry(options: Options) -> Registry:
    with _cwd_on_path():
        registry = load_strategies(options.strategies)
    check_names(options, {name: strategy.risk.value for name, strategy in registry.items()})
    return registry


@contextlib.contextmanager
def _cwd_on_path() -> Iterator[None]:
    """Import strings are looked for where the command is run."""
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _search_path() -> tuple[str, ...]:
    """Where this process would look for the user's modules; a trial looks there too."""
    return tuple(dict.fromkeys([os.getcwd(), *(os.path.abspath(p) for p in sys.path if p and os.path.isdir(p))]))


def _module_file(spec: str) -> Path | None:
    """The file behind an import string, without importing it."""
    import importlib.util

    name = spec.rpartition(":")[0]
    if name.endswith(".py"):
        return Path(name)
    with _cwd_on_path(), contextlib.suppress(Exception):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin:
            return Path(found.origin)
    return None


def _fingerprint(spec: str, options: Options) -> JsonDict:
    chosen = {name: _plain(value) for name, value in asdict(options).items() if name in MEASURED_BY}
    return fingerprint(spec, _module_file(spec), options=chosen)


def _options_document(spec: str, options: Options) -> JsonDict:
    return {"spec": spec, "directory": os.getcwd(), **{name: _plain(value) for name, value in asdict(options).items()}}


def _options_of(document: JsonDict) -> tuple[str, Options]:
    known = {field.name for field in dataclass_fields(Options)}
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in document.items() if n in known}
    if values.get("out"):
        values["out"] = Path(values["out"])
    return str(document["spec"]), Options(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _say_stopping() -> None:
    os.write(2, b"\nfinishing this trial, then verifying and reporting; Ctrl-C again stops at once, journal kept\n")
