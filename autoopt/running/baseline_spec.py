"""Checks of a command before anything is started, the strategies of its run, and the trial of its baseline."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from autoopt.errors import UsageError, require
from autoopt.options import Options, check_names
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.registry import Registry, load_strategies
from autoopt.script.command import Build, Script
from autoopt.storage.run_directory import check_free
from autoopt.trackers import check_installed


def check_command(workload: Build | Script, options: Options) -> None:
    """Checks what a run was asked for, in a third of a second where no strategies of the user's are imported.

    Raises:
        WorkloadError: the workload's import string is malformed, or leads to no file or module; no such script.
        UsageError: several processes for a script; ``only``, ``skip`` or ``allow`` name what there is not; ``out``
            holds a run already.
        EnvironmentLacks: a tracker, or what ``tune`` needs, is not installed.
    """
    workload.check()
    script = isinstance(workload, Script)
    if script and options.nproc is not None:
        raise UsageError(
            f"--nproc {options.nproc} is for a function that describes the run: a script has a launcher of its own",
            hint="autoopt optimize -- torchrun --standalone --nproc-per-node 2 train.py",
        )
    if options.out is not None:
        check_free(options.out)
    check_installed(options.log)
    if options.tune:
        require("optuna", what="--tune: ")
    if options.tune and script:
        raise UsageError(
            "--tune searches the optimizer of a function that builds it; a script's is its own",
            hint="autoopt optimize my_module:build --tune lr=1e-4..1e-2",
        )
    registry_of(options)


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
