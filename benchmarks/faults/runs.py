"""Faults of a whole run, tried on ``autoopt optimize`` itself: exit code, what is on disk, what is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from autoopt.errors import AutooptError
from autoopt.records import JsonDict, Result
from autoopt.storage.journal import read_journal
from benchmarks.documents import ROOT

TINY = str(ROOT / "tests" / "workloads" / "tiny.py") + ":build"
PATIENCE = 240.0
STEPS = "0.002"
"""Seconds that a sample of the tiny workload takes, so that a training lasts long enough to be interrupted."""


@dataclass
class Ran:
    """The end of a command."""

    code: int
    out: str
    errors: str
    seconds: float
    left: tuple[str, ...]

    @property
    def message(self) -> str:
        lines = [line for line in self.errors.splitlines() if "error:" in line]
        return lines[0] if lines else (self.errors.strip().splitlines() or [""])[-1]


class Command:
    """``autoopt ...`` in a session of its own, as under a terminal of its own."""

    def __init__(self, *arguments: str, folder: Path, **environment: str) -> None:
        self.folder = folder
        self._out = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - read after the end
        self._errors = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._began = time.monotonic()
        self.temporary = Path(tempfile.mkdtemp(prefix="t", dir=folder))
        self.process = psutil.Popen(
            [sys.executable, "-m", "autoopt", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._errors,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary), **environment},
        )
        self.children: set[psutil.Process] = set()

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits until something can be seen on disk; raises when the command ends first."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.look()
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ended too early: {self.end()}")
            time.sleep(0.02)

    def look(self) -> None:
        """Notes which processes there are, to look for them when it has ended."""
        with suppress(psutil.Error):
            self.children.update(psutil.Process(self.process.pid).children(recursive=True))

    def signal(self, number: int) -> None:
        self.look()
        self.process.send_signal(number)

    def end(self) -> Ran:
        """Waits for the end, and looks for what is left."""
        try:
            code = self.process.wait(PATIENCE)
        except psutil.TimeoutExpired:
            self.look()
            self.process.kill()
            code = -999
        _, alive = psutil.wait_procs(list(self.children), timeout=10)
        left = [f"process {p.pid}" for p in alive if p.is_running()]
        for process in alive:
            process.kill()
        left += [str(path) for path in self.temporary.glob("autoopt-*") if path.is_dir()]
        with self._out, self._errors:
            return Ran(int(code), _text(self._out), _text(self._errors), time.monotonic() - self._began, tuple(left))


def _text(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return str(file.read().decode("utf-8", "replace"))  # type: ignore[attr-defined]


def optimize(folder: Path, out: Path, *extra: str, budget: str = "40s", **environment: str) -> Command:
    arguments = (
        "optimize",
        TINY,
        "--budget",
        budget,
        "--out",
        str(out),
        "--quiet",
        "--only",
        "pin_memory,workers,threads",
    )
    return Command(*arguments, *extra, folder=folder, TINY_SLOW=STEPS, **environment)


def records(out: Path) -> list[JsonDict]:
    try:
        return list(read_journal(out / "journal.jsonl"))
    except (OSError, AutooptError):
        return []


def begun(out: Path, kind: str) -> Callable[[], bool]:
    """Whether a step of that kind is under way."""

    def look() -> bool:
        steps = [record for record in records(out) if record["type"] in ("start", "end", "failed")]
        return bool(steps) and steps[-1]["type"] == "start" and steps[-1]["kind"] == kind

    return look


def done(out: Path, kind: str) -> Callable[[], bool]:
    def look() -> bool:
        kinds = {record["step"]: record["kind"] for record in records(out) if record["type"] == "start"}
        return any(record["type"] == "end" and kinds[record["step"]] == kind for record in records(out))

    return look


def result(out: Path) -> Result | None:
    try:
        return Result.model_validate_json((out / "result.json").read_bytes())
    except (OSError, ValueError):
        return None


@dataclass
class Outcome:
    """The outcome of a fault of a run, and what of it is not as it must be."""

    fault: str
    code: int
    told: str
    wrong: tuple[str, ...]
    seconds: float


def judge(fault: str, ran: Ran, code: int, *, partial: Path | None = None, stop: str | None = None) -> Outcome:
    """Holds what happened against what must happen."""
    wrong = []
    if ran.code != code:
        wrong.append(f"exit code {ran.code}, expected {code}: {ran.errors[-600:]}")
    if "Traceback" in ran.errors:
        wrong.append(f"a traceback: {ran.errors[-600:]}")
    wrong += ran.left
    if partial is not None:
        document = result(partial)
        if document is None:
            wrong.append("no valid result.json")
        elif stop is not None and document.stop.reason.value != stop:
            wrong.append(f"stopped by {document.stop.reason.value}, expected {stop}")
    return Outcome(fault, ran.code, ran.message, tuple(wrong), ran.seconds)


def interrupted(fault: str, numbers: tuple[int, ...], at: str) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        out = folder / "run"
        command = optimize(folder, out)
        command.until(begun(out, at))
        for number in numbers:
            command.signal(number)
            time.sleep(0.3)
        return judge(fault, command.end(), 130, partial=out, stop="interrupted")

    return run


def killed_and_resumed(folder: Path) -> Outcome:
    out = folder / "run"
    command = optimize(folder, out)
    command.until(done(out, "control"))
    command.signal(signal.SIGKILL)
    first = command.end()
    resumed = Command("resume", str(out), "--quiet", folder=folder, TINY_SLOW=STEPS)
    outcome = judge("killed (SIGKILL), then resumed", resumed.end(), 0, partial=out)
    outcome.wrong += first.left
    return outcome


def deleted(folder: Path) -> Outcome:
    out = folder / "run"
    command = optimize(folder, out)
    command.until(begun(out, "control"))
    shutil.rmtree(out.rename(out.with_name("deleted")))  # at once, whatever the run still writes
    return judge("run directory deleted", command.end(), 4)


def occupied(folder: Path) -> Outcome:
    out = folder / "run"
    first = optimize(folder, out)
    first.until(lambda: bool(records(out)))
    second = optimize(folder, out).end()
    third = Command("resume", str(out), "--quiet", folder=folder).end()
    first.signal(signal.SIGTERM)
    first.end()
    outcome = judge("a second run into the same directory", second, 2)
    outcome.wrong += judge("", third, 2).wrong
    return outcome


def read_only(folder: Path) -> Outcome:
    return judge("a directory that cannot be written", optimize(folder, Path("/proc/autoopt")).end(), 2)


def changed_code(folder: Path) -> Outcome:
    out, module = folder / "run", folder / "mine.py"
    shutil.copy(ROOT / "tests" / "workloads" / "tiny.py", module)
    first = Command("optimize", f"{module}:build", "--budget", "40s", "--out", str(out), "--quiet", folder=folder)
    first.until(lambda: any(record["type"] == "end" for record in records(out)))
    first.signal(signal.SIGKILL)
    first.end()
    module.write_text(module.read_text() + "\n# changed\n")
    refused = Command("resume", str(out), "--quiet", folder=folder).end()
    accepted = Command("resume", str(out), "--quiet", "--accept-changed", folder=folder)
    outcome = judge("resumed with changed code", refused, 2)
    outcome.wrong += judge("", accepted.end(), 0, partial=out).wrong
    return outcome


def full_disk(folder: Path) -> Outcome | None:
    """On a file system of its own, of a few megabytes; None where that cannot be mounted."""
    with _small_disk(folder / "disk", "8m") as disk:
        if disk is None:
            return None
        out = disk / "run"
        command = optimize(folder, out)
        command.until(begun(out, "control"))
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        outcome = judge("disk full", command.end(), 4)
        filler.unlink()
        resumed = Command("resume", str(out), "--quiet", folder=folder, TINY_SLOW=STEPS).end()
        outcome.wrong += judge("", resumed, 0, partial=out).wrong
        return outcome


@contextmanager
def _small_disk(path: Path, size: str) -> Iterator[Path | None]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
    )
    try:
        yield path if mounted.returncode == 0 else None
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


RUN_FAULTS: dict[str, Callable[[Path], Outcome | None]] = {
    "ctrl_c": interrupted("Ctrl-C", (signal.SIGINT,), "control"),
    "ctrl_c_twice": interrupted("Ctrl-C twice", (signal.SIGINT, signal.SIGINT), "training"),
    "sigterm": interrupted("SIGTERM", (signal.SIGTERM,), "training"),
    "sighup": interrupted("terminal gone (SIGHUP)", (signal.SIGHUP,), "training"),
    "killed": killed_and_resumed,
    "deleted": deleted,
    "occupied": occupied,
    "read_only": read_only,
    "changed_code": changed_code,
    "full_disk": full_disk,
}


def main(names: list[str]) -> int:
    """Prints the table of the named faults, or of all; returns how many did not end as they must."""
    bad = 0
    for name in names or RUN_FAULTS:
        with tempfile.TemporaryDirectory(prefix="rf-") as folder:
            outcome = RUN_FAULTS[name](Path(folder))
        if outcome is None:
            line = f"not tried: {name}"
        else:
            bad += bool(outcome.wrong)
            mark = "FAILED" if outcome.wrong else "ok    "
            line = (
                f"{mark} {outcome.fault:<42} exit code {outcome.code:<4} {outcome.seconds:4.0f} s  {outcome.told[:160]}"
            )
            line += "".join(f"\n       {wrong}" for wrong in outcome.wrong)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return bad


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
