"""The two sides of a comparison: a function or a script as it is today, under a plan or a patch, or in a revision."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import autoopt
from autoopt.benchmark.environment import git
from autoopt.comparing.ask import TODAY
from autoopt.errors import AutooptError, EnvironmentLacks, UsageError, WorkloadError
from autoopt.export.applying import patched_texts
from autoopt.loading.importing import is_path, module_file, parse
from autoopt.records import Plan
from autoopt.records.comparing import SideKind
from autoopt.records.protocol import ScriptSpec
from autoopt.records.reading import RESULT_FILE, read_plan, read_result
from autoopt.running.baseline_spec import search_path
from autoopt.script.command import Build, Script, is_launcher
from autoopt.script.command import parse as read_workload
from autoopt.storage.fingerprint import source_hashes
from autoopt.trial.preloading import from_library

_OWN = Path(autoopt.__file__).resolve().parents[1]

FORMS = (
    "a build (my_module:build), a command ('python train.py'), a plan (plan.json), a patch (change.diff), a run "
    "directory, a revision (main, HEAD~1, v1.2), or . for the files as they are"
)


@dataclass(frozen=True)
class Side:
    """One side, found and fixed.

    ``workload``: the function or the command of its trials; ``folder``: where they run. ``root``: the repository that
    a revision is of.
    ``patched``: files of a script that are read in place of those that are there, their text by path.
    """

    given: str
    kind: SideKind
    workload: Build | Script
    folder: Path
    search_path: tuple[str, ...] = ()
    plan: Plan = field(default_factory=Plan)
    commit: str | None = None
    root: Path | None = None
    patched: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...] | None:
        """Words of a script's command, the interpreter first; None of a function."""
        return self.workload.words if isinstance(self.workload, Script) else None

    @property
    def sources(self) -> dict[str, str]:
        """Hashes of the files that it is made of, by name."""
        if isinstance(self.workload, Script):
            file, root, _ = self.workload.files(self.folder)
        else:
            (where, _), root = parse(self.workload.spec), None
            file = self.folder / where if is_path(where) else module_file(where, self.search_path)
        found = {} if file is None else source_hashes(file, root)
        for path, text in self.patched.items():
            found[os.path.relpath(path, self.folder)] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return found

    @cached_property
    def script(self) -> ScriptSpec | None:
        """How its trials run it; None of a function. They see the user's folders through views of their own."""
        found = self.workload.in_trials(self.folder, patched=self.patched, own_seeds=False)
        if found is None or self.root is None:
            return found
        folders = (*found.folders, str(self.root))  # links to what git does not track lead there
        first = python_path(found.command[0], self.root, self.folder)
        return found.model_copy(update={"folders": folders, "python_path": first})


def workload_of(given: tuple[str, ...], workload: Build | Script | None) -> Build | Script | None:
    """The workload that plans, patches and revisions are of: the named one, else that of the run that is one side."""
    if workload is not None:
        return workload
    for each in given:
        if _is_run(each):
            return read_workload(read_result(Path(each)).workload.spec)
    return None


@contextlib.contextmanager
def side(given: str, workload: Build | Script | None, python: str | None = None) -> Iterator[Side]:
    """Finds a side; a revision is checked out for as long as it is needed.

    Args:
        given: one of ``FORMS``.
        workload: that plans, patches, revisions and ``.`` are of.
        python: the interpreter of a script's side, where it is not that of its command.

    Raises:
        UsageError: it is none of these, or needs a workload that is not named.
        WorkloadError: the build or the script is not there.
        EnvironmentLacks: the interpreter cannot be run, or does not have autoopt.
    """
    with contextlib.ExitStack() as stack:
        found = _found(given, workload, stack)
        if python is not None:
            own = found.workload
            if isinstance(own, Build):
                raise UsageError(
                    f"{own.spec} is a function: it is built by the interpreter that runs autoopt, not by {python}",
                    hint="an interpreter of its own is for a script's side",
                )
            if is_launcher(own.words):
                raise UsageError(
                    f"{own.words[0]} chooses the interpreter of the processes that it starts",
                    hint=f"name that environment's own launcher, such as other-env/bin/torchrun, rather than {python}",
                )
            interpreter = shutil.which(python)
            if interpreter is None:
                raise EnvironmentLacks(f"there is no interpreter {python}", hint="such as other-env/bin/python")
            # absolute, since sides run in folders of their own; links are not followed: an environment's is one
            found = replace(found, workload=Script(own.spec, (os.path.abspath(interpreter), *own.words[1:])))
        found.workload.check(found.folder)
        yield found


def _found(given: str, workload: Build | Script | None, stack: contextlib.ExitStack) -> Side:
    if given == TODAY:
        return _today(given, workload)
    if _is_run(given):  # its end, put on today's files: its patch where it has one, else its plan
        today, result = _today(given, workload), read_result(Path(given))
        patch = result.patch if today.command is not None else None
        if patch is not None and patch.diff and all(change.how == "patched" for change in patch.changes):
            return replace(_patched(today, patch.diff), kind="run")
        return replace(today, kind="run", plan=result.best.plan)
    if given.endswith(".json"):
        return replace(_today(given, workload), kind="plan", plan=read_plan(Path(given)))
    if given.endswith((".diff", ".patch")):
        return _patched(_today(given, workload), text_of(Path(given)))
    own = read_workload(given)
    if isinstance(own, Script):
        return _today(given, own)
    commit = commit_of(given)
    if commit is not None:
        today = _today(given, workload)
        root, folder = stack.enter_context(worktree(commit))
        return _revision(given, commit, today.workload, root, folder)
    if ":" in given:
        return _today(given, Build(given))
    fetched = "; a revision must have been fetched (in CI: fetch-depth: 0)"
    raise UsageError(f"{given!r} is no side of a comparison", hint=f"name {FORMS}{fetched}")


def _today(given: str, workload: Build | Script | None) -> Side:
    """The files of a workload as they are."""
    if workload is None:
        raise UsageError(
            f"{given} needs the workload that it is of",
            hint=f"such as autoopt compare my_module:build --baseline {given} ..., or ... -- python train.py",
        )
    if isinstance(workload, Script):
        return Side(given, "script", workload, Path.cwd())
    return Side(given, "build", workload, Path.cwd(), search_path())


def _is_run(given: str) -> bool:
    return given != TODAY and (Path(given) / RESULT_FILE).is_file()


def _patched(today: Side, diff: str) -> Side:
    if today.command is None:
        raise UsageError(
            f"a patch is of a script, and {today.workload.spec} is a function",
            hint="name a revision that has the change",
        )
    top = git("rev-parse", "--show-toplevel")
    folders = [today.folder, *([Path(top)] if top else [])]
    return replace(today, kind="patch", patched=patched_texts(diff, folders))


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None


def _revision(given: str, commit: str, workload: Build | Script, root: Path, folder: Path) -> Side:
    if isinstance(workload, Build):
        workload.check()
        where, attribute = parse(workload.spec)
        file = Path(where).resolve() if is_path(where) else module_file(where, search_path())
        own = Build(f"{_there(file, root, folder, workload.spec)}:{attribute}")
        paths = (str(folder), *moved(list(search_path()), root, folder))
        return Side(given, "revision", own, folder, paths, commit=commit)
    here = Path.cwd().resolve()
    below = _there(here, root.resolve(), folder, here)
    words, script = workload.words, workload.files()[0]
    if "-m" not in words and script is not None and not (below / script).exists():
        raise WorkloadError(f"revision {given} has no {script}", hint="name a script that both have")
    # an absolute path into the repository as the checkout has it, where it does
    inside = {word: folder / Path(word).relative_to(root) for word in words[1:] if Path(word).is_relative_to(root)}
    words = (words[0], *(str(inside[word]) if word in inside and inside[word].exists() else word for word in words[1:]))
    return Side(given, "revision", Script(workload.spec, words), below, commit=commit, root=root)


def _there(path: Path | None, root: Path, folder: Path, of: object) -> Path:
    """A file or folder of the repository in the checkout.

    Raises:
        WorkloadError: it is not of the repository, or that revision does not have it.
    """
    if path is None or not path.is_relative_to(root):
        raise WorkloadError(f"{of} does not lie in the repository {root}", hint="revisions are of its own files")
    there = folder / path.relative_to(root)
    if not there.exists():
        raise WorkloadError(f"this revision has no {path.relative_to(root)}", hint="name what both have")
    return there


def check_alike(one: Side, other: Side) -> None:
    """Refuses what cannot be compared.

    Raises:
        UsageError: a script against a function.
    """
    if (one.command is None) != (other.command is None):
        script, function = (one, other) if one.command is not None else (other, one)
        raise UsageError(
            f"{script.given} is a script and {function.given} is a function: their steps are not counted alike",
            hint="name two scripts, or two functions",
        )


def check_files(files: list[str], each: Side) -> None:
    """Checks where a revision's process found its modules.

    Raises:
        UsageError: one is today's, so that what was measured would not be the revision.
    """
    root = each.root
    if root is None:
        return
    for name in files:
        path = Path(name)
        if path.is_relative_to(root) and not path.is_relative_to(_OWN) and not from_library(path):
            raise UsageError(
                f"{each.given} imports {path.relative_to(root)} from today's files, not from the revision",
                hint="give it an environment of its own: --baseline-python, --candidate-python",
            )


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
            for name in filter(None, (git("ls-files", "--others", "--directory", "-z", folder=root) or "").split("\0")):
                target, first = folder / name.rstrip("/"), Path(name).parts[0]
                code = name.endswith((".py", "__pycache__/")) or any((root / name).glob("*.py"))
                if code or first.startswith(".") or first == "autoopt-runs" or target.exists():
                    continue
                with contextlib.suppress(OSError):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.symlink_to(root / name.rstrip("/"))
            yield root, folder
        finally:
            git("worktree", "remove", "--force", str(folder), folder=root)
            git("worktree", "prune", folder=root)


def moved(paths: list[str], root: Path, folder: Path) -> tuple[str, ...]:
    """Paths of today, with the checkout in the place of the repository; installed packages stay where they are."""
    today = ((entry, Path(entry).resolve()) for entry in paths)
    own = {entry: path for entry, path in today if path.is_relative_to(root) and not from_library(path)}
    return tuple(dict.fromkeys(str(folder / own[e].relative_to(root)) if e in own else e for e in paths))


def python_path(python: str, root: Path, folder: Path) -> tuple[str, ...]:
    """Folders that an interpreter reads first, to find the checkout's modules in place of today's."""
    words = [python, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL)
        paths = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()
    own = [path for path in paths if Path(path).resolve().is_relative_to(root) and Path(path).resolve() != _OWN]
    return tuple(path for path in moved(own, root, folder) if Path(path).is_relative_to(folder))
