"""``autoopt run``: the real training run of a script with a plan, no file changed."""

from __future__ import annotations

import os
import tempfile
from datetime import datetime
from pathlib import Path

from autoopt.errors import AutooptError, UsageError
from autoopt.options import Options
from autoopt.records import Plan, Sites
from autoopt.records.reading import read_result
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.script.applicable import inapplicable
from autoopt.script.command import Build, Script
from autoopt.script.execute import run_with_plan
from autoopt.search.trial_runner import TrialRunner
from autoopt.storage.run_directory import compiler_cache_of
from autoopt.trial.parent import Launcher


def script_run(workload: Build | Script, plan: Plan, plan_file: Path, options: Options) -> int:
    """Runs a script to its end with a plan put on it; its exit code is the command's.

    Args:
        workload: the script.
        plan: changes in their order.
        plan_file: where it was read; the run that lies next to it knows the script's sites.
        options: device, seed and strategies.

    Raises:
        UsageError: it is no script, or the plan cannot be put on it from outside.
        WorkloadError: the script fails before its first step.
    """
    if isinstance(workload, Build):
        raise UsageError(
            f"{workload.spec} is a function that describes the run, not a script",
            hint=f"autoopt train {workload.spec} --plan {plan_file} trains it with a plan",
        )
    workload.check()
    registry = registry_of(options)
    base = baseline_spec(workload, options, registry)
    assert base.script is not None, "it is a script"
    sites = known_sites(plan_file, base.script.command)
    if sites is None:  # they are seen in the first steps of a run of the script that changes nothing
        with tempfile.TemporaryDirectory(prefix="autoopt-") as folder, Launcher(fork_server=False) as launcher:
            sites = TrialRunner(launcher, base, registry, Path(folder)).watched()
    assert sites is not None, "it is a script"
    setup = registry.fold(plan)
    reason = inapplicable(setup, sites)
    if reason:
        raise UsageError(f"the plan cannot be put on this script from outside: {reason}")
    env = {**(compiler_cache_of(plan_file) if setup.compile is not None else {}), **setup.flags.get("env", {})}
    return run_with_plan(base.script, plan, sites, strategies=registry.specs, env=env)


def known_sites(plan_file: Path, command: tuple[str, ...]) -> Sites | None:
    """The sites that the run next to the plan saw, where the same script has not been changed since."""
    try:
        result = read_result(plan_file.parent)
    except AutooptError:
        return None
    sites = result.sites
    if (
        sites is None
        or Path(sites.cwd).resolve() != Path.cwd().resolve()
        or _scripts(sites.command) != _scripts(command)
    ):
        return None
    seen = datetime.fromisoformat(result.created).timestamp()
    try:
        changed = any(os.path.getmtime(Path(sites.cwd) / site.file) > seen for site in sites.sites)
    except OSError:
        return None
    return None if changed else sites


def _scripts(command: tuple[str, ...]) -> tuple[str, ...]:
    """The code that a command names to be run: the words that end in .py, or the module after -m."""
    named = [word for word in command if word.endswith(".py")]
    if "-m" in command[:-1]:
        named.append(command[command.index("-m") + 1])
    return tuple(named)
