"""The directory of a run: where its files are, and that none is ever half written."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from datetime import datetime
from pathlib import Path

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.records.writing import write_whole, writing

ROOT = Path("autoopt-runs")
LEAST_BYTES = 4 * 2**20
"""With less room than this nothing more is begun, so that the last record, the result and the report find some."""

_OURS = ("journal.jsonl", "result.json", "account.csv", "plan.json", "report.html", "optimized_train.py")
COMPILED, COMPILER_VARIABLE = "compiler-cache", "TORCHINDUCTOR_CACHE_DIR"
"""The folder of what trials compile, and the variable that names torch such a folder."""


class RunDirectory:
    """The files of one run.

    Args:
        path: of the directory, which exists.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(os.path.abspath(path))
        self.journal = self.path / "journal.jsonl"
        self.result = self.path / "result.json"
        self.account = self.path / "account.csv"
        self.plan = self.path / "plan.json"
        self.script = self.path / "optimized_train.py"
        self.patch = self.path / "patch.diff"
        self.traces = self.path / "traces"
        self.logs = self.path / "logs"
        # The run's own: what an earlier run compiled would make this one's first start look cheap.
        self.compiler_cache = self.path / COMPILED

    @classmethod
    def create(cls, module: str, out: Path | str | None = None, *, now: datetime | None = None) -> RunDirectory:
        """Makes the directory of a new run.

        Args:
            module: the workload's import string or path, which names the directory.
            out: the directory itself, made where it is missing.
            now: local time; injected in tests.

        Raises:
            UsageError: ``out`` holds a run already, or cannot be made.
        """
        path = Path(out) if out is not None else _free(ROOT, _name(module, now or datetime.now()))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(path, error) from None
        check_free(path)
        directory = cls(path)
        try:
            with tempfile.TemporaryFile(dir=directory.path):
                pass
        except OSError as error:
            raise _refused(directory.path, error, "write into") from None
        return directory

    @classmethod
    def existing(cls, path: Path | str) -> RunDirectory:
        """The directory of a run that there is.

        Raises:
            UsageError: there is none.
        """
        directory = cls(path)
        if not directory.journal.is_file():
            raise UsageError(f"{path} holds no journal.jsonl", hint="is it a run directory?")
        return directory

    def write(self, path: Path, text: str) -> None:
        """Writes a file of the run at once: a reader sees the old one or the new one, never a part.

        A directory that was deleted in the meantime is made again, so that a result is not lost with it.

        Raises:
            EnvironmentLacks: it cannot be written.
        """
        with writing(path):
            write_whole(path, text)

    def forget_compiled(self) -> None:
        """Removes what trials have compiled: it can be large, and no plan that compiles nothing reads it."""
        shutil.rmtree(self.compiler_cache, ignore_errors=True)

    def check_space(self) -> None:
        """Refuses to begin anything on a disk that is full: trials could not even write their logs.

        Raises:
            EnvironmentLacks: there is next to no room left.
        """
        with contextlib.suppress(OSError, AttributeError):
            there = os.statvfs(self.path)
            if there.f_bavail * there.f_frsize < LEAST_BYTES:
                raise EnvironmentLacks(
                    f"the disk of {self.path} is full", hint=f"make room, then: autoopt resume {self.path}"
                )

    def remove(self) -> None:
        """Removes the directory, and the one of all runs where no other lies in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent.name == ROOT.name:
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()

    def clean(self) -> None:
        """Removes what a killed run left half written."""
        for part in self.path.glob(".*.part"):
            with contextlib.suppress(OSError):
                part.unlink()


def _refused(path: Path, why: OSError | str, what: str = "make") -> UsageError:
    said = why if isinstance(why, str) else why.strerror or why
    return UsageError(f"cannot {what} the run directory {path}: {said}", hint="name one that can be written: --out DIR")


def check_free(path: Path) -> None:
    """Checks that a directory, which need not exist, holds no run.

    Raises:
        UsageError: it does, or it is no directory, or cannot be looked into.
    """
    try:
        # an empty journal is that of a run that was killed before it began
        there = (name for name in _OURS if (path / name).exists())
        taken = sorted(name for name in there if name != "journal.jsonl" or (path / name).stat().st_size)
        wrong: OSError | str = "it is a file" if path.exists() and not path.is_dir() else ""
    except OSError as error:
        taken, wrong = [], error
    if wrong:
        raise _refused(path, wrong)
    if taken:
        raise UsageError(
            f"{path} holds a run already ({', '.join(taken)})", hint=f"autoopt resume {path}, or another --out"
        )


def _name(module: str, now: datetime) -> str:
    """``examples/photos.py:build`` at some time is ``photos-20260131-235959``."""
    stem = Path(module.partition(":")[0]).name.removesuffix(".py")
    safe = re.sub(r"[^\w.-]+", "_", stem).strip("._")[:60] or "run"
    return f"{safe}-{now:%Y%m%d-%H%M%S}"


def compiler_cache_of(plan: Path) -> dict[str, str]:
    """The variable by which torch finds what the trials of a plan's run have compiled; empty where nothing is there.

    Args:
        plan: the file of the plan. A folder that the user has named for compiled code stays.
    """
    folder = plan.absolute().parent / COMPILED
    if not folder.is_dir() or os.environ.get(COMPILER_VARIABLE):
        return {}
    return {COMPILER_VARIABLE: str(folder)}


def _free(root: Path, name: str) -> Path:
    """Two runs that start within one second get two directories."""
    for number in range(1, 1000):
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _refused(path, error) from None
        return path
    raise UsageError(f"{root} is full of runs called {name}", hint="name a directory: --out DIR")
