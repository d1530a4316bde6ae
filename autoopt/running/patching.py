"""A patch of changes that a user or a program has chosen from a run or a profile, rather than of what a run kept."""

from __future__ import annotations

from pathlib import Path

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.export.applying import apply_diff
from autoopt.export.script_patch import placed
from autoopt.records import Profile, Sites
from autoopt.records.reading import PROFILE_FILE, RESULT_FILE, read_document, read_plan, read_result
from autoopt.records.writing import writing
from autoopt.registry import load_strategies


def apply_plan(run: Path, plan: Path) -> tuple[str, ...]:
    """Puts a plan into the lines of the script that a run or a profile has seen; the diff is kept next to the plan.

    Args:
        run: the directory, which knows the script's sites.
        plan: the file of the plan.

    Returns:
        The files that were changed.

    Raises:
        UsageError: no line of the script says one of the changes, or the files are not as the run saw them.
        EnvironmentLacks: the diff cannot be written, or git is not installed.
    """
    sites, device = _seen(run)
    patch = placed(sites, read_plan(plan), load_strategies(()), device).patch
    unsaid = [change for change in patch.changes if change.how != "patched"]
    if unsaid or not patch.diff:
        why = "; ".join(f"{change.strategy}: {change.reason}" for change in unsaid) or "it changes nothing"
        raise UsageError(
            f"the plan is no patch: {why}", hint="autoopt run --plan FILE -- COMMAND trains with it, no file changed"
        )
    files = apply_diff(patch.diff, Path(sites.cwd))
    try:
        with writing(_diff_of(plan)):
            _diff_of(plan).write_text(patch.diff, encoding="utf-8")
    except EnvironmentLacks:
        apply_diff(patch.diff, Path(sites.cwd), revert=True)
        raise
    return files


def revert_plan(run: Path, plan: Path) -> tuple[str, ...]:
    """Takes off what :func:`apply_plan` has put on.

    Raises:
        UsageError: it was not put on, or the files have been changed since.
    """
    sites, _ = _seen(run)
    try:
        diff = _diff_of(plan).read_text(encoding="utf-8")
    except OSError:
        raise UsageError(f"{plan} was not applied: there is no {_diff_of(plan).name} next to it") from None
    return apply_diff(diff, Path(sites.cwd), revert=True)


def _diff_of(plan: Path) -> Path:
    return plan.with_suffix(".diff")


def _seen(run: Path) -> tuple[Sites, str]:
    """The sites that a run or a profile saw, and the type of its device."""
    profiled = run / PROFILE_FILE
    if run.is_dir() and profiled.exists() and not (run / RESULT_FILE).exists():
        found = read_document(profiled, Profile)
        sites, device = found.sites, found.environment.device
    else:
        result = read_result(run)
        sites, device = result.sites, result.environment.device
    if sites is None:
        raise UsageError(f"{run} is not of a script: there is no file to patch")
    return sites, device.partition(":")[0]
