"""Every way in which a trial or a run can break, tried for real, and what becomes of it: ``make faults``.

Each fault is a trial of a tiny workload in a process of its own. It passes when its outcome and reason are
the expected ones, and nothing of it is left: no process, no shared memory, no temporary file. Then come
the faults of a whole run (``run_faults.py``), which take some minutes; ``--trials`` leaves them out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from autoopt.errors import AutooptError, TrialFailed
from autoopt.records.messages import TrainingRun
from autoopt.records.protocol import TrialSpec
from autoopt.trial import shared
from autoopt.trial.parent import Launcher
from benchmarks.documents import parser_of
from benchmarks.faults import runs as run_faults
from benchmarks.faults.cases import FAULTS, SURVIVED, TINY, USAGE_ERROR, WORKLOAD_ERROR, WORKLOADS, Fault

PATIENCE = 120.0
TRAIN = "autoopt.benchmark.tasks:train"
KNOBS = ("TINY_", "FAULTY_")


@dataclass(frozen=True)
class Seen:
    """The outcome of a fault. ``left``: what should have gone and has not."""

    fault: str
    expected: str
    outcome: str
    reason: str
    left: tuple[str, ...]
    seconds: float
    passed: bool


def provoke(launcher: Launcher, fault: Fault, folder: Path) -> Seen:
    """Runs one trial with its fault."""
    before = _things()
    began = time.monotonic()
    with _knobs(fault):
        outcome, reason = _run(launcher, fault, folder)
    left = _left(before)
    passed = fault.matches(outcome, reason) and not left
    return Seen(fault.name, fault.outcome, outcome, reason, left, time.monotonic() - began, passed)


def _run(launcher: Launcher, fault: Fault, folder: Path) -> tuple[str, str]:
    fields = {"workload": TINY, "search_path": (str(WORKLOADS),), "directory": str(folder), **fault.spec}
    starting = fault.seconds if "build" in fault.name or "import" in fault.name else None
    try:
        spec = TrialSpec.model_validate(fields)
        with launcher.start(spec, log=folder / "logs" / "trial.log", timeout=starting or PATIENCE) as trial:
            document = trial.call(TRAIN, timeout=fault.seconds or PATIENCE, max_seconds=PATIENCE)
            run = TrainingRun.model_validate(document)
            trial.freeze()
    except TrialFailed as failure:
        return failure.kind, failure.message
    except AutooptError as error:
        return {3: WORKLOAD_ERROR, 2: USAGE_ERROR}.get(error.exit_code, f"exit code {error.exit_code}"), error.message
    if not run.finite:
        return "not_finite", f"losses are not finite, stopped for {run.stopped} after {run.steps} steps"
    return SURVIVED, ""


@contextmanager
def _knobs(fault: Fault) -> Iterator[None]:
    saved = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(KNOBS)]:
        del os.environ[name]
    os.environ.update({name: str(value) for name, value in fault.knobs.items()}, OMP_NUM_THREADS="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


def _things() -> set[str]:
    """Processes but the fork server, shared memory and temporary files that there are."""
    folder = tempfile.gettempdir()
    children = (child.pid for child in psutil.Process().children(recursive=True))
    files = (name for name in os.listdir(folder) if name.startswith(("autoopt-", "pymp-")))
    return {
        *(f"process {pid}" for pid in children if not _is_server(pid)),
        *(f"/dev/shm/{name}" for name in shared.names()),
        *(f"{folder}/{name}" for name in files),
    }


def _left(before: set[str]) -> tuple[str, ...]:
    """Things that have come since; they get a moment, since others on the machine make things of the same kinds."""
    deadline = time.monotonic() + 5.0
    while (left := _things() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return tuple(sorted(left))


def _is_server(pid: int) -> bool:
    try:
        return any("autoopt.trial.server" in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return True


def main() -> int:
    parser = parser_of("benchmarks.faults", __doc__)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--trials", action="store_true", help="the faults of trials alone")
    options = parser.parse_args()
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, Launcher() as launcher:
        tempfile.tempdir = folder  # so that what others make does not count
        for fault in FAULTS:
            if options.only not in fault.name:
                continue
            result = provoke(launcher, fault, Path(folder))
            seen.append(result)
            mark = "ok    " if result.passed else "FAILED"
            print(f"{mark} {result.fault:<42} {result.outcome:<28} {result.reason[:100]}", flush=True)
            if not result.passed:
                print(f"       expected {result.expected}; left behind: {', '.join(result.left) or 'nothing'}")
    passed = sum(result.passed for result in seen)
    print(f"{passed} of {len(seen)} faults of trials end as they must, {sum(r.seconds for r in seen):.0f} s")
    tempfile.tempdir = None
    runs = 0 if options.trials or options.only else run_faults.main([])
    return 0 if passed == len(seen) and runs == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
