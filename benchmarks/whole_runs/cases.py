"""Cases: a script, its metric, and the loss or the target that is the same quality; suites of cases."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.random import Generator

from benchmarks.documents import RESULTS
from benchmarks.whole_runs.data import MAKERS, VERSION

HERE = Path(__file__).resolve().parent


class CaseError(Exception):
    """What was asked for cannot be judged; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Case:
    """A script, its metric and what is taken for the same quality.

    Attributes:
        metric: the words before the number in the script's last line, or a pattern with one group.
        watched: the words before the same metric in the middle of a run, which a search is told to read.
        tolerance: how much worse, in units of the metric, the mean over the rounds may be than the untouched script's,
            or than the target.
        length: the option that sets the length of a run, and the shortest length worth running.
        target: where it is given, runs end at it, and one that ends without it has lost.
        home: the folder of the suite; the case is the folder ``place`` in it, or that of its own name.
        script: the untouched script.
        expert: the expert's script beside it; None where there is none.
        words: the command's words; ``{data}`` and ``{seed}`` are filled in.
        below: the working directory, below the root of a script that comes with a tree of files; empty where the
            script stands alone.
        variables: of every run's environment; ``{tree}`` is the root of the side's files.
        first: a pattern of the line that ends the start of a run.
        samples: a pattern of the count of samples that a run needed, with one group.
        loadtune: a file with the ``get_workload()`` that loadtune wants.
    """

    name: str
    metric: str
    watched: str
    higher: bool
    tolerance: float
    reason: str
    length: tuple[str, int] = ("--epochs", 1)
    target: float | None = None
    home: Path = HERE
    place: str = ""
    script: str = "train.py"
    expert: str | None = "expert.py"
    words: tuple[str, ...] = ("--data", "{data}", "--seed", "{seed}")
    below: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    first: str | None = None
    samples: str | None = None
    loadtune: Path | None = None

    @property
    def folder(self) -> Path:
        return self.home / (self.place or self.name)

    @property
    def files(self) -> tuple[str, ...]:
        """What a freeze holds."""
        return (self.script,) if self.expert is None else (self.script, self.expert, "EXPERT.md")

    def command(self, script: str, data: Path, seed: int, further: Sequence[str] = ()) -> list[str]:
        """The command of a script of the case, to be run in its folder."""
        return [sys.executable, script, *(word.format(data=data, seed=seed) for word in self.words), *further]

    def environment(self, tree: Path) -> dict[str, str]:
        """The environment of a run: nothing of this repository is on its path, and output comes line by line."""
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return {**own, "PYTHONUNBUFFERED": "1", **{k: v.format(tree=tree) for k, v in self.variables.items()}}

    def read(self, output: str) -> float | None:
        """The last value of the metric that was printed."""
        grouped = re.compile(self.metric).groups
        pattern = self.metric if grouped else re.escape(self.metric) + r":\s*([-+]?[\d.]+(?:e[-+]?\d+)?)"
        found = re.findall(pattern, output)
        return float(found[-1]) if found else None

    def worse(self, untouched: float, other: float) -> float:
        """How much worse the other's metric is than the target, or without one than the untouched script's."""
        if self.target is not None:
            return max(0.0, self.target - other if self.higher else other - self.target)
        return untouched - other if self.higher else other - untouched


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases that share a command line, a document of results and a freeze.

    Attributes:
        makers: of the data of each case, by its place; a case without one draws its data itself.
        tools: what searches a case by default.
        freezes: whether scripts must be frozen before they are searched.
        fetch: brings a case's script to its folder, where it is not kept in this repository.
    """

    name: str
    cases: Mapping[str, Case]
    home: Path
    makers: Mapping[str, Callable[[Path, Generator], None]] = field(default_factory=dict)
    version: str = "1"
    tools: tuple[str, ...] = ("autoopt",)
    freezes: bool = True
    fetch: Callable[[Case], object] = lambda case: None

    @property
    def results(self) -> Path:
        return RESULTS / f"{self.name}.json"

    @property
    def freeze(self) -> Path:
        return self.home / "FROZEN.json"

    def case(self, name: str) -> Case:
        """The case of this name.

        Raises:
            CaseError: there is none.
        """
        if name not in self.cases:
            raise CaseError(f"unknown case {name!r}; there are: {', '.join(self.cases)}")
        return self.cases[name]

    def hashes(self) -> dict[str, Any]:
        """The hashes of all cases, and of the rules."""
        rules = self.home / "RULES.md"
        found: dict[str, Any] = {"cases": {name: hashes(case) for name, case in self.cases.items()}}
        return found | ({"rules": _hash(rules)} if rules.exists() else {})

    def frozen(self) -> dict[str, Any]:
        """The document of the freeze: its date, revision, and the hashes of every case; empty before it."""
        found: dict[str, Any] = json.loads(self.freeze.read_text(encoding="utf-8")) if self.freeze.exists() else {}
        return found

    def check_frozen(self, case: Case) -> None:
        """Searches run on frozen scripts alone.

        Raises:
            CaseError: the scripts are not frozen, or were edited since.
        """
        if not self.freezes:
            return
        known = self.frozen().get("cases", {}).get(case.name)
        if known is None:
            raise CaseError(f"{case.name} is not frozen; run `python -m benchmarks.{self.name} freeze` and commit it")
        changed = [name for name, value in hashes(case).items() if known.get(name) != value]
        changed += ["RULES.md"] if self.frozen().get("rules") != self.hashes().get("rules") else []
        if changed:
            raise CaseError(f"{case.name}: {', '.join(changed)} changed since it was frozen on {self.frozen()['date']}")


def hashes(case: Case) -> dict[str, str]:
    """What tells whether a script is still the frozen one: the SHA-256 of each file of the case."""
    return {name: _hash(case.folder / case.below / name) for name in case.files}


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


_STEPS = ("--steps", 20)
_CASES = (
    Case(
        "graph_net",
        "final test accuracy",
        "Test Acc",
        True,
        0.03,
        "400 test graphs; the mean of the last five epochs moves so by rounding alone",
    ),
    Case("tabular_rows", "final valid accuracy", "valid acc", True, 0.005, "same samples in the same order; 8000 rows"),
    Case(
        "char_transformer", "final val loss", "val loss", False, 0.02, "1 % of the loss; same samples in order", _STEPS
    ),
    Case(
        "text_classifier", "final dev accuracy", "dev acc", True, 1.0, "one standard error of 3000 sentences, in points"
    ),
    Case(
        "forecasting", "final test mse", "Test Loss", False, 0.002, "1 % of the error; same windows in the same order"
    ),
    Case(
        "super_resolution",
        "final psnr",
        "Avg. PSNR",
        True,
        0.1,
        "what nobody sees, in dB; same pieces in the same order",
    ),
    Case(
        "ppo",
        "final mean return",
        "episodic_return",
        True,
        50.0,
        "rounding is amplified; a tenth of a full episode's 500",
    ),
    Case(
        "neural_ode",
        "final test loss",
        "Test Loss",
        False,
        0.02,
        "rounding is amplified along whole trajectories",
        _STEPS,
    ),
    Case(
        "unet_files",
        "final validation dice",
        "Validation Dice score",
        True,
        0.03,
        "the flips are drawn anew; 40 pictures",
    ),
    Case("vae", "final test loss", "Test set loss", False, 0.5, "0.5 % of the bound; same images in the same order"),
)
CASES = {case.name: case for case in _CASES}

WHOLE_RUNS = Suite("whole_runs", CASES, HERE, MAKERS, VERSION)
