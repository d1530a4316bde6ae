"""A run's patch put on the user's files, and taken off: all of it or nothing, by git, wherever the folder lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.records import Result


def apply_patch(result: Result, *, revert: bool = False) -> tuple[str, ...]:
    """Puts the patch of a run on the files that it was made from, or takes it off; the files that were changed.

    Raises:
        UsageError: the run has no patch, or the files are not as they were; nothing is changed then.
        EnvironmentLacks: git is not installed.
    """
    if result.sites is None:
        raise UsageError(
            "this run was on a build(), which has no patch", hint="autoopt export RUN prints the winning plan as code"
        )
    if not result.best.plan.changes:
        raise UsageError("the run kept no change: there is nothing to apply or revert")
    if result.patch is None or not result.patch.diff:
        raise UsageError(
            "the run's patch is empty: no change was kept that a line of the script can say",
            hint="autoopt run --plan RUN/plan.json -- COMMAND trains with what was kept",
        )
    folder = Path(result.sites.cwd)
    if not folder.is_dir():
        raise UsageError(f"the folder that the script ran in is not there: {folder}")
    return apply_diff(result.patch.diff, folder, revert=revert)


def apply_diff(diff: str, folder: Path, *, revert: bool = False) -> tuple[str, ...]:
    """Puts a diff on the files in a folder, or takes it off; see :func:`apply_patch`."""
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
                hint="nothing was changed; apply patch.diff manually, or run autoopt optimize on them as they are",
            )
    return tuple(line.removeprefix("+++ b/") for line in diff.splitlines() if line.startswith("+++ b/"))


def patched_texts(diff: str, folders: Sequence[Path]) -> dict[str, str]:
    """The files that a diff changes as they are with it, their text by absolute path; no file of the user's is touched.

    Args:
        diff: unified, with paths as git writes them.
        folders: where its paths may begin; the first that has its files is taken.

    Raises:
        UsageError: it changes nothing, removes or renames files, or does not fit.
        EnvironmentLacks: git is not installed.
    """
    old = [line[6:] for line in diff.splitlines() if line.startswith("--- a/")]
    new = [line[6:] for line in diff.splitlines() if line.startswith("+++ b/")]
    if not new or not set(old) <= set(new):
        raise UsageError(
            "the patch changes no file" if not new else "the patch removes or renames files",
            hint="one that changes lines, as git diff writes it",
        )
    base = next((folder for folder in folders if all((folder / name).is_file() for name in old)), folders[0])
    there = [name for name in new if name not in old and (base / name).exists()]
    if there:
        raise UsageError(f"the patch adds {there[0]}, which is in {base} already")
    with tempfile.TemporaryDirectory(prefix="autoopt-") as above:
        scratch = Path(above)
        for name in old:
            if ".." in Path(name).parts or not (base / name).is_file():
                raise UsageError(f"the patch is of {name}, which is not in {base}")
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(base / name, scratch / name)
        refused = _git(scratch, diff, revert=False, check=False)
        if refused is not None:
            raise UsageError(f"the patch does not fit the files in {base}: {refused}")
        return {str(base / name): (scratch / name).read_text(encoding="utf-8") for name in new}


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
