"""Histories that are bisected: the commits between two revisions, or the packages between two locks, run one by one."""

from __future__ import annotations

import contextlib
import re
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from autoopt.comparing.bisection import Blame, Told, bisect
from autoopt.comparing.measuring import Comparing
from autoopt.comparing.session import KnownBaseline
from autoopt.comparing.sides import Side, commit_of, git, side
from autoopt.errors import EnvironmentLacks, TrialFailed, UsageError, WorkloadError
from autoopt.options import Options
from autoopt.records.comparing import Requirement
from autoopt.running.baseline_spec import registry_of
from autoopt.script.command import alone_in
from autoopt.search.compare.sequential_test import between_process_of
from autoopt.search.compare.statistics import TwoLevel
from autoopt.trial.parent import Launcher

Say = Callable[[str], None]

_SHARE = 8
"""Comparisons that fit into the time at least."""


@dataclass(frozen=True)
class Place:
    """A place in a history: ``name`` of the step that leads to it, the side that it is, and its interpreter."""

    name: str
    given: str
    python: str | None = None


def commits(good: str, bad: str) -> list[Place]:
    """The good revision and all commits after it up to the bad one, in their order.

    Raises:
        UsageError: they are no revisions, or the bad one does not come after the good one.
    """
    for name, given in (("--good", good), ("--bad", bad)):
        if commit_of(given) is None:
            raise UsageError(f"{name} {given}: no such revision", hint="a commit, a tag or a branch of this repository")
    listed = git("rev-list", "--reverse", "--first-parent", "--ancestry-path", f"{good}..{bad}")
    if not listed:
        raise UsageError(f"no commit leads from {good} to {bad}", hint="--good names the older one")
    found = [Place(f"{each[:12]} {git('log', '-1', '--format=%s', each) or ''}", each) for each in listed.split()]
    return [Place(good, good), *found]


@contextlib.contextmanager
def packages(good: Path, bad: Path) -> Iterator[list[Place]]:
    """The good lock's environment, and those in which one package after another is that of the bad lock.

    Each is made of what this interpreter has, with the packages of the locks that differ put before it.

    Raises:
        UsageError: a lock cannot be read, or both are the same.
        EnvironmentLacks: a package cannot be installed.
    """
    before, after = _lock(good), _lock(bad)
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if not changed:
        raise UsageError(f"{good} and {bad} pin the same packages", hint="two locks of name==version lines")
    with tempfile.TemporaryDirectory(prefix="autoopt-bisect-") as above:

        def made(steps: int) -> str:
            wanted = [(after if name in changed[:steps] else before).get(name) for name in changed]
            return _environment(Path(above) / str(steps), [line for line in wanted if line])

        names = [good.name, *(f"{name}: {before.get(name)} -> {after.get(name)}" for name in changed)]
        yield [Place(name, ".", made(steps)) for steps, name in enumerate(names)]


def _lock(path: Path) -> dict[str, str]:
    """Requirements by the name of the package."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    found = {}
    for line in lines:
        text = line.split("#")[0].split("\\")[0].strip()
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", text)
        if name:
            found[re.sub(r"[-_.]+", "-", name[0]).lower()] = text
    return found


def _environment(folder: Path, requirements: list[str]) -> str:
    """An interpreter that finds these packages before those of this one."""
    python = folder / "bin" / "python"
    steps = [
        [sys.executable, "-m", "venv", "--without-pip", str(folder)],
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", *requirements],
    ]
    for words in steps[: 1 + bool(requirements)]:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentLacks(f"cannot install {' '.join(requirements)}", detail=done.stderr.strip())
    (own,) = folder.glob("lib/python*/site-packages")
    paths = [*site.getsitepackages(), *(path for path in sys.path if path and Path(path).is_dir())]
    (own / "autoopt-below.pth").write_text("".join(f"{path}\n" for path in dict.fromkeys(paths)))
    return str(python)


def blamed(places: list[Place], workload: str, options: Options, *, say: Say) -> Blame:
    """Bisects a history.

    Args:
        places: the good one first.
        workload: the command or the function that is run at each.
        options: the budget is that of all comparisons.

    Raises:
        WorkloadError: the good or the bad end cannot be run.
    """
    registry, began = registry_of(options), time.monotonic()
    known: KnownBaseline | None = None
    with contextlib.ExitStack() as stack:
        launcher = stack.enter_context(Launcher())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="autoopt-bisect-")))
        good = stack.enter_context(side(places[0].given, workload, places[0].python))
        if good.command is not None:
            stack.enter_context(alone_in(str(Path.cwd())))
        asked = 0
        share = options.model_copy(update={"budget_seconds": options.budget_seconds / _SHARE})

        def measure(place: int, margin: float) -> Told | None:
            nonlocal known, asked
            asked += 1
            with side(places[place].given, workload, places[place].python) as other:
                sides: dict[str, Side] = {"baseline": good, "candidate": other}
                comparing = Comparing(
                    sides, share, registry, launcher, folder / str(asked), asked, None,
                    Requirement(kind="not-slower", margin=margin), time.monotonic, lambda text: None, known,
                )  # fmt: skip
                try:
                    found = comparing.speed(time.monotonic() + share.budget_seconds)
                except TrialFailed as failure:
                    found, comparing.failure = None, failure.reason
            if comparing.failure is not None or found is None or not found.pairs:
                if place == len(places) - 1:
                    raise WorkloadError(f"{places[place].name} cannot be compared: {comparing.failure or 'no time'}")
                say(f"{places[place].name}: skipped: {comparing.failure or 'no time'}")
                return None
            latest = comparing.known or known
            noise, known = latest.noise if latest is not None else None, comparing.known
            values, errors = ([getattr(pair, name) for pair in found.pairs] for name in ("log_ratio", "standard_error"))
            level = TwoLevel(values, errors, between_process_of(noise))
            if found.estimate is not None:
                say(f"{places[place].name}: {found.estimate.value:.3f}x in {len(values)} pairs of processes")
            return Told(place, level.value, level.error)

        def more() -> bool:
            return time.monotonic() - began < (options.budget_seconds or inf)

        return bisect(len(places) - 1, measure, more)
