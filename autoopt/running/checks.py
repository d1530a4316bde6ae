"""Checks of a command before torch is imported, a process started or a directory made."""

from __future__ import annotations

import importlib.util

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.options import Options
from autoopt.running.baseline_spec import registry_of
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
    if options.tune and importlib.util.find_spec("optuna") is None:
        raise EnvironmentLacks("--tune: optuna is not installed", hint="pip install 'torch-autoopt[tune]'")
    if options.tune and script:
        raise UsageError(
            "--tune searches the optimizer of a function that builds it; a script's is its own",
            hint="autoopt optimize my_module:build --tune lr=1e-4..1e-2",
        )
    registry_of(options)
