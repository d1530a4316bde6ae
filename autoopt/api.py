"""The facade's functions: ``optimize``, ``apply``, and what the commands call."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from autoopt.document import result_of
from autoopt.errors import AutooptError, EnvironmentLacks, Interrupted, UsageError
from autoopt.events import Announcer, Listener, RunEnded, RunStarted
from autoopt.loop import Loop, Outcome
from autoopt.optimize.bench import Bench
from autoopt.optimize.gate import Gate
from autoopt.optimize.planner import Choice
from autoopt.optimize.search import Tools
from autoopt.optimize.shares import Shares
from autoopt.optimize.trainings import Trainings
from autoopt.options import Options, check_names, make_options
from autoopt.records import JsonDict, Plan, Result, Snippets, StopReason
from autoopt.registry import Registry, instance_spec, load_strategies
from autoopt.storage.fingerprint import fingerprint
from autoopt.storage.interrupts import Interrupts
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory
from autoopt.strategy import Strategy
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import TrialSpec

MEASURED_BY = ("target", "tolerance", "min_gain", "device", "seed", "only", "skip", "strategies", "allow", "executor")
"""Options that change what is measured; a resumed run must have the same."""


def optimize(
    workload: str | Callable[[], Any],
    budget: str | float = "2h",
    *,
    strategies: Iterable[Strategy | str] = (),
    listeners: Sequence[Listener] = (),
    report: bool = True,
    **options: Any,
) -> Result:
    """Makes a training run reach its target faster; ``autoopt optimize`` as a function.

    Args:
        workload: an import string such as ``"my_module:build"``, or the function itself (at the top level of
            a module, since every trial calls it in a process of its own).
        budget: wall-clock time of the whole run, ``"2h"``.
        strategies: further strategies: instances of classes at the top level of a module, or import strings.
        listeners: called with every event (``autoopt.events``).
        report: also write report.html into the run directory.
        options: as on the command line, with underscores: ``target=0.93``, ``tolerance="1%"``, ``out="runs/a"`` ...

    Raises:
        AutooptError: as the commands; ``exit_code`` says of which kind.
    """
    spec = workload if isinstance(workload, str) else _import_string(workload)
    given = [item if isinstance(item, str) else instance_spec(item) for item in strategies]
    chosen = make_options({"budget": budget, **options, **({"strategies": given} if given else {})})
    result = optimize_run(spec, chosen, listeners=listeners)
    if report and result.reproduce.run_directory:
        from autoopt_reports import html  # rendering is not part of the loop

        html.write(result, Path(result.reproduce.run_directory) / "report.html")
    return result


def apply(workload: Any, plan: Plan | str | Path, *, device: str = "auto", seed: int = 0) -> Any:
    """The workload set up as the plan says, for people who keep their own loop.

    Args:
        workload: a ``Workload``, or the function that builds it.
        plan: a ``Plan``, or the path of a plan.json.

    Returns:
        ``autoopt.benchmark.training.Training``: the model on its device, the loader, the optimizer, and ``step``.
    """
    from autoopt import validation
    from autoopt.benchmark.environment import resolve_device
    from autoopt.benchmark.training import Training
    from autoopt.plan import read_plan

    chosen = plan if isinstance(plan, Plan) else read_plan(plan)
    built = validation.build(workload) if callable(workload) else validation.check(workload)
    registry = load_strategies()
    return Training(built, registry.fold(registry.order(chosen), built.setup), device=resolve_device(device), seed=seed)


def optimize_run(spec: str, options: Options, *, listeners: Sequence[Listener] = ()) -> Result:
    """One run, from an empty directory to result.json, plan.json and optimized_train.py.

    Raises:
        AutooptError: nothing was written but the journal and the logs.
    """
    registry = _registry(options)
    directory = RunDirectory.create(spec, options.out)
    with Run.create(directory, _fingerprint(spec, options), _options_document(spec, options)) as run:
        return _follow(spec, options, registry, run, listeners)


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
        run.check_fingerprint(_fingerprint(spec, options), accept_changed)
        return _follow(spec, replace(options, out=directory.path), _registry(options), run, listeners)


def _follow(spec: str, options: Options, registry: Registry, run: Run, listeners: Sequence[Listener]) -> Result:
    announce = Announcer()
    for listener in (*listeners, run.note):
        announce.subscribe(listener)
    with Interrupts(lambda: _say_stopping()) as interrupts, Launcher() as launcher:
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
) -> Tools:
    base = TrialSpec(
        workload=spec,
        strategies=registry.specs,
        device=options.device,
        seed=options.seed,
        directory=os.getcwd(),
        search_path=_search_path(),
        target=options.target,
    )
    bench = Bench(launcher, base, registry, run.directory.logs)
    trainings = Trainings(bench, run)
    return Tools(
        bench=bench,
        run=run,
        announce=announce,
        choice=Choice(only=options.only, skip=options.skip, allow=options.allow),
        min_gain=options.min_gain,
        seed=options.seed,
        stopping=interrupts.stopping,
        shares=Shares(budget=options.budget_seconds),
        gate=Gate(trainings=trainings, registry=registry, seed=options.seed, now=run.clock.elapsed),
    )


def _write(spec: str, options: Options, registry: Registry, run: Run, announce: Announcer, outcome: Outcome) -> Result:
    """result.json, plan.json and optimized_train.py; the journal's last record."""
    from autoopt.records import PlanDocument

    plan, files = outcome.best.plan, run.directory
    result = result_of(
        spec,
        options,
        outcome,
        created=run.created,
        seconds=run.clock.elapsed(),
        directory=files.path,
        snippets=_snippets(plan, registry),
    )
    files.write(files.plan, PlanDocument(changes=plan.changes).model_dump_json(indent=2) + "\n")
    files.write(files.result, result.model_dump_json(indent=2) + "\n")
    files.write(files.script, _script(spec, plan, registry, outcome))
    interrupted = outcome.stop.reason is StopReason.INTERRUPTED
    run.finish(outcome.stop.reason.value, complete=not interrupted)
    announce(RunEnded(at=run.clock.elapsed(), result=result, run_directory=str(files.path)))
    return result


def _snippets(plan: Plan, registry: Registry) -> tuple[Snippets, ...]:
    from autoopt.export.snippets import snippets

    return snippets(plan, registry)


def _script(spec: str, plan: Plan, registry: Registry, outcome: Outcome) -> str:
    from autoopt.export.script import script

    return script(spec, plan, registry, facts=outcome.search.facts)


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


def _import_string(build: Callable[[], Any]) -> str:
    """The import string of a function.

    Raises:
        UsageError: a trial's process could not import it.
    """
    name = getattr(build, "__qualname__", "")
    module = getattr(build, "__module__", None)
    if not callable(build) or not name or "<" in name or module is None:
        raise UsageError(
            f"optimize() takes an import string or a function at the top level of a module, got {build!r}",
            hint='such as optimize("my_module:build")',
        )
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            raise UsageError(
                f"{name} is defined in an interactive session, which trials cannot import",
                hint='write it to a file and name it: optimize("my_module.py:build")',
            )
        return f"{os.path.abspath(file)}:{name}"
    return f"{module}:{name}"


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
    return {"spec": spec, **{name: _plain(value) for name, value in asdict(options).items()}}


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
