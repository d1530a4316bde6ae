"""A run's patch put on the user's files, and taken off: all of it or nothing, by git, wherever the folder lies."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.records import Result


def apply_patch(result: Result, *, revert: bool = False) -> tuple[str, ...]:
    """Puts the patch of a run on the files that it was made from, or takes it off.

    Args:
        result: of a run on a script.
        revert: takes it off.

    Returns:
        The files that were changed.

    Raises:
        UsageError: the run has no patch, or the files are not as they were; nothing is changed then.
        EnvironmentLacks: git is not installed.
    """
    diff, folder = _diff(result), _folder(result)
    if _git(folder, diff, revert=not revert, check=True) is None:
        raise UsageError(
            "the patch is not on the files" if revert else "the patch is on the files already",
            hint="autoopt apply RUN puts it on" if revert else "autoopt revert RUN takes it off",
        )
    for check in (True, False):
        refused = _git(folder, diff, revert=revert, check=check)
        if refused is not None:
            raise UsageError(
                f"the files in {folder} are not as the run saw them: {refused}",
                hint="nothing was changed; put patch.diff on by hand, or run autoopt optimize on them as they are",
            )
    return tuple(line.removeprefix("+++ b/") for line in diff.splitlines() if line.startswith("+++ b/"))


def _diff(result: Result) -> str:
    if result.sites is None:
        raise UsageError(
            "this run was on a build(), which has no patch", hint="autoopt export RUN prints the winning plan as code"
        )
    if result.patch is None or not result.patch.diff:
        raise UsageError(
            "the run's patch is empty: no change was kept that a line of the script can say",
            hint="autoopt run --plan RUN/plan.json -- COMMAND trains with what was kept",
        )
    return result.patch.diff


def _folder(result: Result) -> Path:
    assert result.sites is not None
    folder = Path(result.sites.cwd)
    if not folder.is_dir():
        raise UsageError(f"the folder that the script ran in is not there: {folder}")
    return folder


def _git(folder: Path, diff: str, *, revert: bool, check: bool) -> str | None:
    """Why git refuses, in a line; None where it does not."""
    if shutil.which("git") is None:
        raise EnvironmentLacks("git is not installed", hint="patch -p1 < RUN/patch.diff does the same")
    words = ["git", "apply", "--whitespace=nowarn", *(["--check"] * check), *(["--reverse"] * revert), "-"]
    # in the folder itself, whatever repository it may lie in: a repository's folders above would move the paths
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent), "LC_ALL": "C"}
    done = subprocess.run(words, cwd=folder, input=diff.encode(), capture_output=True, env=environment, check=False)
    if done.returncode == 0:
        return None
    return done.stderr.decode(errors="replace").strip().splitlines()[0].removeprefix("error: ")
