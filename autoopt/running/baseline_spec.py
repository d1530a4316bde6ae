"""The strategies of a run, and the trial of its baseline: found where the command was given."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from autoopt.options import Options, check_names
from autoopt.registry import Registry, load_strategies
from autoopt.script.command import Build, Script
from autoopt.trial.protocol import ScriptSpec, TrialSpec


def baseline_spec(
    workload: Build | Script,
    options: Options,
    registry: Registry,
    directory: str | None = None,
    *,
    script: ScriptSpec | None = None,
) -> TrialSpec:
    """The trial of the baseline.

    Args:
        directory: of the run, which the trials of a script may write to.
        script: how the command is run, where that is known already.
    """
    if script is None:
        script = workload.in_trials(metric=options.metric, shared=(directory,) if directory else ())
    return TrialSpec(
        workload=workload.spec,
        strategies=registry.specs,
        device=options.device,
        seed=options.seed,
        directory=os.getcwd(),
        search_path=search_path(),
        target=options.target,
        memory_limit_bytes=options.memory_limit,
        script=script,
        processes=script.launch.size if script is not None and script.launch is not None else 1,
    )


def registry_of(options: Options) -> Registry:
    with cwd_on_path() if options.strategies else contextlib.nullcontext():
        registry = load_strategies(options.strategies)
    check_names(options, {name: strategy.risk.value for name, strategy in registry.items()})
    return registry


@contextlib.contextmanager
def cwd_on_path() -> Iterator[None]:
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


def search_path() -> tuple[str, ...]:
    """Where this process would look for the user's modules; a trial looks there too."""
    return tuple(dict.fromkeys([os.getcwd(), *(os.path.abspath(p) for p in sys.path if p and os.path.isdir(p))]))
