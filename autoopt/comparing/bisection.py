"""The step of a history that made a training slower, or worse: noisy comparisons with its good end.

A history is the commits between two revisions, or the packages between two locks. Each hypothesis is a step that is the
first slow one, or none. A comparison of a place with the good end shows nothing before that step and the whole loss
from it on. The posterior of all hypotheses shows where the next comparison shows most; places whose answer was noisy
are asked again by that (Waeber, Frazier and Henderson, "Bisection search with noisy responses", SIAM J. Control Optim.
51, 2013).
"""

from __future__ import annotations

import contextlib
import re
import site
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from autoopt.benchmark.environment import git
from autoopt.comparing.answer import LITTLE
from autoopt.comparing.compare import Comparing, Say
from autoopt.comparing.session import KnownBaseline
from autoopt.comparing.sides import Side, commit_of, side, text_of
from autoopt.errors import EnvironmentLacks, TrialFailed, UsageError, WorkloadError
from autoopt.options import Options
from autoopt.records.comparing import Requirement
from autoopt.running.baseline_spec import registry_of
from autoopt.script.command import Build, Script
from autoopt.search.compare.sequential_test import between_process_of
from autoopt.search.compare.statistics import TwoLevel
from autoopt.trial.parent import Launcher

SURE = 0.95
"""The probability from which a step is blamed."""
_DOF = 4.0
"""Of the noise of one comparison: a machine has bad minutes, which a normal distribution would take for evidence."""


@dataclass(frozen=True)
class Observation:
    """What one comparison with the good end showed: log of the speedup, and its standard error."""

    place: int
    value: float
    error: float


Measure = Callable[[int, float], Observation | None]
"""Compares a place of the history (1 is the first after the good end) with its good end, until it is plain whether it
is slower by a share of the good end's speed; None where that place cannot be run."""


@dataclass(frozen=True)
class Blame:
    """The answer. ``probabilities``: of each place that it is the first slow one; ``loss``: log speedup of the bad end.

    ``place``: the likeliest; None where the bad end is not slower. ``sure``: its probability reaches :data:`SURE`.
    """

    place: int | None
    probabilities: tuple[float, ...]
    loss: float
    asked: tuple[Observation, ...]

    @property
    def sure(self) -> bool:
        return self.place is not None and self.probabilities[self.place - 1] >= SURE


class Posterior:
    """The probability of each place to be the first slow one.

    Args:
        count: of places, the bad end last.
        loss: log speedup of the bad end, below 0.
        error: its standard error.
    """

    def __init__(self, count: int, loss: float, error: float) -> None:
        self.count = count
        self._losses = np.linspace(loss - 3 * error, min(loss + 3 * error, -1e-4), 41)
        prior = -0.5 * ((self._losses - loss) / max(error, 1e-6)) ** 2
        self._log = np.tile(prior, (count, 1))

    def observe(self, seen: Observation) -> None:
        slow = student.logpdf(seen.value, _DOF, loc=self._losses, scale=seen.error)
        same = float(student.logpdf(seen.value, _DOF, loc=0.0, scale=seen.error))
        self._log[: seen.place] += slow
        self._log[seen.place :] += same

    @property
    def probabilities(self) -> NDArray[np.float64]:
        odds = np.exp(self._log - self._log.max())
        return np.asarray(odds.sum(axis=1) / odds.sum())

    def next(self, skipped: set[int]) -> int | None:
        """The place before which half of the probability lies; None where there is none left to ask."""
        before = np.cumsum(self.probabilities)
        places = [place for place in range(1, self.count) if place not in skipped]
        return min(places, key=lambda place: abs(before[place - 1] - 0.5), default=None)


def bisect(count: int, measure: Measure, more: Callable[[], bool]) -> Blame:
    """Finds the first slow place.

    Args:
        count: of places; the last is the bad end.
        more: whether there is time for another comparison.
    """
    ends: list[Observation] = []
    loss = error = 0.0
    while not ends or (abs(loss + LITTLE / 2) < 2 * error and len(ends) < 4 and more()):  # it is not plain yet
        found = measure(count, LITTLE)
        if found is None:
            return Blame(None, (), 0.0, tuple(ends))
        ends.append(found)
        weights = [1.0 / reported.error**2 for reported in ends]
        loss = sum(weight * reported.value for weight, reported in zip(weights, ends, strict=True)) / sum(weights)
        error = (1.0 / sum(weights)) ** 0.5
    if loss + 2 * error > -LITTLE / 2:
        return Blame(None, (), loss, tuple(ends))
    posterior, asked, skipped = Posterior(count, loss, error), list(ends), set[int]()
    while posterior.probabilities.max() < SURE and len(asked) < 64 and more():
        place = posterior.next(skipped)
        if place is None:
            break
        reported = measure(place, 1.0 - float(np.exp(loss / 2)))
        if reported is None:
            skipped.add(place)
            continue
        asked.append(reported)
        posterior.observe(reported)
    found_at = posterior.probabilities
    return Blame(int(found_at.argmax()) + 1, tuple(float(each) for each in found_at), loss, tuple(asked))


_SEEDS, _LEAST_ERROR = 3, 1e-3
"""Seeds of which both places train; the log of a loss ratio below which two trainings are the same but for rounding."""


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
    found = {}
    for line in text_of(path).splitlines():
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


class Bisecting:
    """Comparisons of places with the good end.

    Args:
        places: the good one first.
        options: the budget is that of all comparisons.
        quality: asks which place trains worse, not slower.
    """

    def __init__(
        self, places: list[Place], workload: Build | Script, options: Options, *, quality: bool, say: Say
    ) -> None:
        self._places, self._workload, self._quality, self._say = places, workload, quality, say
        self._began, self._options, self._registry = time.monotonic(), options, registry_of(options)
        # so many comparisons fit into the time at least
        self._share = replace(options, budget_seconds=options.budget_seconds / 8)
        self._known: KnownBaseline | None = None
        self._asked = 0

    def run(self) -> Blame:
        """The place that is to blame.

        Raises:
            WorkloadError: the good or the bad end cannot be run.
        """
        good = self._places[0]
        with (
            Launcher() as launcher,
            tempfile.TemporaryDirectory(prefix="autoopt-bisect-") as folder,
            side(good.given, self._workload, good.python) as baseline,
            baseline.workload.alone(),
        ):

            def measure(place: int, margin: float) -> Observation | None:
                with side(self._places[place].given, self._workload, self._places[place].python) as other:
                    try:
                        return self._measured(
                            place, margin, {"baseline": baseline, "candidate": other}, launcher, folder
                        )
                    except TrialFailed as failure:
                        if failure.where == "baseline":
                            raise WorkloadError(f"{good.name} fails: {failure.reason}") from None
                        return self._skipped(place, failure.reason)

            end = self._began + self._options.budget_seconds
            return bisect(len(self._places) - 1, measure, lambda: time.monotonic() < end)

    def _measured(
        self, place: int, margin: float, sides: dict[str, Side], launcher: Launcher, folder: str
    ) -> Observation | None:
        self._asked += 1
        deadline = time.monotonic() + self._share.budget_seconds

        def comparing_of(number: int) -> Comparing:
            return Comparing(
                sides, self._share, self._registry, launcher, Path(folder, f"{self._asked}-{number}"), deadline,
                requirement=Requirement(kind="not-slower", margin=margin), known=self._known,
            )  # fmt: skip

        if self._quality:
            return self._worse(place, [comparing_of(number).losses() for number in range(_SEEDS)])
        comparing = comparing_of(0)
        found = comparing.speed()
        if comparing.failure is not None or not found.pairs:
            return self._skipped(place, comparing.failure or "no time for a pair of processes")
        latest = comparing.known or self._known
        noise, self._known = latest.noise if latest is not None else None, comparing.known
        values, errors = ([getattr(pair, name) for pair in found.pairs] for name in ("log_ratio", "standard_error"))
        level = TwoLevel(values, errors, between_process_of(noise))
        self._say(f"{self._places[place].name}: {exp(level.value):.3f}x in {level.n} pairs of processes")
        return Observation(place, level.value, level.error)

    def _worse(self, place: int, losses: list[tuple[float | None, float | None]]) -> Observation | None:
        """By the losses of short trainings from some seeds, on the same batches."""
        logs = [log(one / two) for one, two in losses if one and two and one > 0 and two > 0]
        if len(logs) < _SEEDS:
            return self._skipped(place, "its weights do not fit the good end's model, or show no loss above 0")
        value, scatter = statistics.fmean(logs), statistics.stdev(logs)
        self._say(f"{self._places[place].name}: {exp(-value):.4f} times the loss")
        return Observation(place, value, max(scatter / sqrt(_SEEDS), _LEAST_ERROR))

    def _skipped(self, place: int, why: str) -> Observation | None:
        name = self._places[place].name
        if place == len(self._places) - 1:
            raise WorkloadError(f"{name} cannot be compared: {why}", hint="--bad names a step that runs")
        self._say(f"{name}: skipped: {why}")
        return None
