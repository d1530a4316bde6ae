"""The cases: how far the final metric of a script may lie from the untouched one's, and why."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FROZEN = HERE / "FROZEN.json"
SCRIPTS = ("train.py", "expert.py", "EXPERT.md")


class CaseError(Exception):
    """What was asked for cannot be judged; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Case:
    """A script, its metric and the loss of it that is taken for the same quality.

    Attributes:
        metric: the words before the number in the script's last line.
        watched: the words before the same metric in the middle of a run, which a search is told to read.
        tolerance: how much worse, in units of the metric, the mean over the rounds may be.
        length: the option that sets the length of a run, and the shortest length worth running.
    """

    name: str
    metric: str
    watched: str
    higher: bool
    tolerance: float
    reason: str
    length: tuple[str, int] = ("--epochs", 1)

    @property
    def folder(self) -> Path:
        return HERE / self.name

    def read(self, output: str) -> float | None:
        """The last value of the metric that was printed."""
        found = re.findall(re.escape(self.metric) + r":\s*([-+]?[\d.]+(?:e[-+]?\d+)?)", output)
        return float(found[-1]) if found else None

    def worse(self, untouched: float, other: float) -> float:
        """How much worse the other's metric is; below 0 it is better."""
        return untouched - other if self.higher else other - untouched


_STEPS = ("--steps", 20)
CASES = {
    case.name: case
    for case in (
        Case(
            "graph_net",
            "final test accuracy",
            "Test Acc",
            True,
            0.03,
            "400 test graphs; the mean of the last five epochs moves so by rounding alone",
        ),
        Case(
            "tabular_rows",
            "final valid accuracy",
            "valid acc",
            True,
            0.005,
            "same samples in the same order; 8000 rows",
        ),
        Case(
            "char_transformer",
            "final val loss",
            "val loss",
            False,
            0.02,
            "1 % of the loss; same samples in order",
            _STEPS,
        ),
        Case(
            "text_classifier",
            "final dev accuracy",
            "dev acc",
            True,
            1.0,
            "one standard error of 3000 sentences, in points",
        ),
        Case(
            "forecasting",
            "final test mse",
            "Test Loss",
            False,
            0.002,
            "1 % of the error; same windows in the same order",
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
        Case(
            "vae", "final test loss", "Test set loss", False, 0.5, "0.5 % of the bound; same images in the same order"
        ),
    )
}


def case_of(name: str) -> Case:
    """The case of this name.

    Raises:
        CaseError: there is none.
    """
    if name not in CASES:
        raise CaseError(f"unknown case {name!r}; there are: {', '.join(CASES)}")
    return CASES[name]


def hashes(case: Case) -> dict[str, str]:
    """What tells whether a script is still the frozen one: the SHA-256 of each file of the case."""
    return {name: hashlib.sha256((case.folder / name).read_bytes()).hexdigest() for name in SCRIPTS}


def frozen() -> dict[str, Any]:
    """The document of the freeze: its date, revision, and the hashes of every case; empty before it."""
    found: dict[str, Any] = json.loads(FROZEN.read_text(encoding="utf-8")) if FROZEN.exists() else {}
    return found


def check_frozen(case: Case) -> None:
    """Searches run on frozen scripts alone.

    Raises:
        CaseError: the scripts are not frozen, or were edited since.
    """
    known = frozen().get("cases", {}).get(case.name)
    if known is None:
        raise CaseError(f"{case.name} is not frozen; run `python -m benchmarks.whole_runs freeze` and commit it")
    changed = [name for name, value in hashes(case).items() if known.get(name) != value]
    if changed:
        raise CaseError(f"{case.name}: {', '.join(changed)} changed since it was frozen on {frozen()['date']}")
