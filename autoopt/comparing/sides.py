"""The two sides of a comparison: a build, a plan for it, or a revision of it in a worktree of its own."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from autoopt.errors import AutooptError, UsageError, WorkloadError
from autoopt.loading.importing import check_spec, is_path, parse
from autoopt.plan import read_plan
from autoopt.records import Plan
from autoopt.running.baseline_spec import search_path
from autoopt.storage.fingerprint import source_hashes

FORMS = "a build (my_module:build), a plan (plan.json) or a revision (main, HEAD~1, v1.2)"


@dataclass(frozen=True)
class Side:
    """One side, found and fixed. ``spec``: the import string that its trials use; ``folder``: where they run."""

    given: str
    kind: Literal["build", "plan", "revision"]
    spec: str
    folder: Path
    search_path: tuple[str, ...]
    plan: Plan = field(default_factory=Plan)
    commit: str | None = None

    @property
    def sources(self) -> dict[str, str]:
        where, _ = parse(self.spec)
        file = Path(where) if is_path(where) else _module_file(where, self.search_path)
        return {} if file is None else source_hashes(file if file.is_absolute() else self.folder / file)


@contextlib.contextmanager
def side(given: str, workload: str | None) -> Iterator[Side]:
    """Finds a side; a revision is checked out for as long as it is needed.

    Args:
        given: a build, a plan or a revision.
        workload: the import string that plans and revisions are of.

    Raises:
        UsageError: it is none of these, or a plan or revision without a workload.
        WorkloadError: the build is not there.
    """
    here = Path.cwd()
    if given.endswith(".json"):
        yield Side(given, "plan", _wanted(workload, given), here, search_path(), plan=read_plan(Path(given)))
    elif (commit := _commit(given)) is not None:
        with _worktree(commit) as (root, folder):
            spec = _within(_wanted(workload, given), root, folder)
            yield Side(given, "revision", spec, folder, _moved(root, folder), commit=commit)
    elif ":" in given:
        check_spec(given)
        yield Side(given, "build", given, here, search_path())
    else:
        raise UsageError(f"{given!r} is neither a build nor a plan nor a revision", hint=f"name {FORMS}")


def _wanted(workload: str | None, given: str) -> str:
    if workload is None:
        raise UsageError(
            f"{given} needs the workload that it is of",
            hint=f"such as autoopt compare my_module:build --baseline {given} ...",
        )
    check_spec(workload)
    return workload


def _git(*words: str, folder: Path | None = None) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def _commit(given: str) -> str | None:
    if given.startswith("-") or ":" in given:
        return None
    return _git("rev-parse", "--verify", "--quiet", f"{given}^{{commit}}")


@contextlib.contextmanager
def _worktree(commit: str) -> Iterator[tuple[Path, Path]]:
    """The top of this repository, and a checkout of the commit elsewhere; files that git does not track are linked.

    So both sides read the same data, and neither the other's code.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None:
        raise UsageError("a revision needs a git repository", hint="run it inside one")
    root = Path(top)
    with tempfile.TemporaryDirectory(prefix="autoopt-compare-", ignore_cleanup_errors=True) as above:
        folder = Path(above).resolve() / commit[:12]
        if _git("worktree", "add", "--quiet", "--detach", str(folder), commit, folder=root) is None:
            raise AutooptError(f"git could not check out {commit[:12]} into {folder}")
        try:
            _link_untracked(root, folder)
            yield root, folder
        finally:
            _git("worktree", "remove", "--force", str(folder), folder=root)
            _git("worktree", "prune", folder=root)


def _link_untracked(root: Path, folder: Path) -> None:
    listed = _git("ls-files", "--others", "--directory", "-z", folder=root) or ""
    for name in filter(None, listed.split("\0")):
        target = folder / name.rstrip("/")
        code = name.endswith((".py", "__pycache__/")) or any((root / name).glob("*.py"))
        if code or Path(name).parts[0].startswith(".") or Path(name).parts[0] == "autoopt-runs":
            continue
        if not target.exists():
            with contextlib.suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(root / name.rstrip("/"))


def _within(workload: str, root: Path, folder: Path) -> str:
    """The import string of the same function in the checkout, by its file.

    Raises:
        WorkloadError: that revision does not have the file.
    """
    where, attribute = parse(workload)
    file = Path(where).resolve() if is_path(where) else _module_file(where, search_path())
    if file is None or not file.is_relative_to(root):
        raise WorkloadError(f"{workload} does not lie in the repository {root}", hint="revisions are of its own files")
    moved = folder / file.relative_to(root)
    if not moved.is_file():
        raise WorkloadError(f"this revision has no {file.relative_to(root)}", hint="name a workload that both have")
    return f"{moved}:{attribute}"


def _module_file(name: str, folders: tuple[str, ...]) -> Path | None:
    for folder in folders:
        base = Path(folder, *name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file.resolve()
    return None


def _moved(root: Path, folder: Path) -> tuple[str, ...]:
    """The search path of today, with the checkout in the place of the repository."""
    moved = []
    for entry in search_path():
        path = Path(entry).resolve()
        moved.append(
            str(folder / path.relative_to(root)) if path.is_relative_to(root) and not _packages(path) else entry
        )
    return tuple(dict.fromkeys([str(folder), *moved]))


def _packages(path: Path) -> bool:
    return "site-packages" in path.parts or "dist-packages" in path.parts
