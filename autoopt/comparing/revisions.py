"""A revision of the user's repository in a worktree of its own, with the data that git does not track."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import autoopt
from autoopt.errors import AutooptError, UsageError

_OWN = Path(autoopt.__file__).resolve().parents[1]


def git(*words: str, folder: Path | None = None) -> str | None:
    """The output of a git command; None where it fails."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def commit_of(given: str) -> str | None:
    """The commit that a revision names; None where it names none."""
    if given.startswith("-") or ":" in given:
        return None
    return git("rev-parse", "--verify", "--quiet", f"{given}^{{commit}}")


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[tuple[Path, Path]]:
    """The top of this repository, and a checkout of the commit elsewhere; files that git does not track are linked.

    So both sides read the same data, and neither the other's code.
    """
    top = git("rev-parse", "--show-toplevel")
    if top is None:
        raise UsageError("a revision needs a git repository", hint="run it inside one")
    root = Path(top)
    with tempfile.TemporaryDirectory(prefix="autoopt-compare-", ignore_cleanup_errors=True) as above:
        folder = Path(above).resolve() / commit[:12]
        if git("worktree", "add", "--quiet", "--detach", str(folder), commit, folder=root) is None:
            raise AutooptError(f"git could not check out {commit[:12]} into {folder}")
        try:
            _link_untracked(root, folder)
            yield root, folder
        finally:
            git("worktree", "remove", "--force", str(folder), folder=root)
            git("worktree", "prune", folder=root)


def _link_untracked(root: Path, folder: Path) -> None:
    listed = git("ls-files", "--others", "--directory", "-z", folder=root) or ""
    for name in filter(None, listed.split("\0")):
        target = folder / name.rstrip("/")
        code = name.endswith((".py", "__pycache__/")) or any((root / name).glob("*.py"))
        if code or Path(name).parts[0].startswith(".") or Path(name).parts[0] == "autoopt-runs":
            continue
        if not target.exists():
            with contextlib.suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(root / name.rstrip("/"))


def moved(paths: list[str], root: Path, folder: Path) -> tuple[str, ...]:
    """Paths of today, with the checkout in the place of the repository; installed packages stay where they are."""
    found = []
    for entry in paths:
        path = Path(entry).resolve()
        found.append(
            str(folder / path.relative_to(root)) if path.is_relative_to(root) and not is_installed(path) else entry
        )
    return tuple(dict.fromkeys(found))


def python_path(python: str, root: Path, folder: Path) -> tuple[str, ...]:
    """Folders that an interpreter looks at first, to find the checkout's modules in place of today's."""
    words = [python, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL)
        paths = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()
    own = [path for path in paths if Path(path).resolve().is_relative_to(root) and Path(path).resolve() != _OWN]
    return tuple(path for path in moved(own, root, folder) if Path(path).is_relative_to(folder))


def is_installed(path: Path) -> bool:
    """Whether a file is of an installed package, which is the environment's and no revision's."""
    return "site-packages" in path.parts or "dist-packages" in path.parts
