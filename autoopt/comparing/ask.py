"""The settings of one comparison, which ``autoopt compare``, ``autoopt judge``, ``autoopt mcp`` and Python share."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from autoopt.errors import UsageError
from autoopt.options.parsers import parse_percent
from autoopt.records.comparing import Requirement
from autoopt.script.command import Build, Script

TODAY = "."
"""A side: the files as they are."""


@dataclass(frozen=True)
class Ask:
    """What is compared, and what must hold.

    Args:
        baseline, candidate: see ``autoopt.comparing.sides``.
        requirement: what must hold; without one the comparison goes on until its interval is narrow.
        ledger: the file that divides one alpha over all asks.
        session: the file by which an ask knows the baseline, and the ledger's head, from those before it.
        head: of the ledger, as the last answer reported it; None: the session's.
        baseline_python, candidate_python: interpreters of the sides of a script, where they are not the command's.
    """

    baseline: str = TODAY
    candidate: str = TODAY
    requirement: Requirement | None = None
    ledger: Path | None = None
    session: Path | None = None
    head: str | None = None
    baseline_python: str | None = None
    candidate_python: str | None = None

    def given(self, **options: str | None) -> dict[str, str]:
        """The options of a command line that asks for the same, by name, and further ones such as ``budget``."""
        named: dict[str, object] = {
            "baseline": self.baseline, "candidate": self.candidate, "ledger": self.ledger, "session": self.session,
            "require": self.requirement.text if self.requirement is not None else None, "head": self.head,
            "baseline-python": self.baseline_python, "candidate-python": self.candidate_python, **options,
        }  # fmt: skip
        return {name: str(value) for name, value in named.items() if value is not None}

    def command(self, workload: Build | Script | None, **options: str | None) -> str:
        """The command line that asks for the same; the seed is drawn anew."""
        words = [f"--{name} {shlex.quote(text)}" for name, text in self.given(**options).items()]
        return " ".join(["autoopt compare", *words, *([workload.asked()] if workload is not None else [])])


def requirement_of(text: str) -> Requirement:
    """The requirement that ``faster``, ``not-slower`` or ``not-slower=3%`` names.

    Raises:
        UsageError: it is none of these.
    """
    if text == "faster":
        return Requirement(kind="faster")
    match = re.fullmatch(r"not-slower(?:=(.+))?", text)
    if match is None:
        raise UsageError(f"--require {text}: no such requirement", hint="faster, or not-slower=3%")
    try:
        return Requirement(kind="not-slower", margin=parse_percent(match[1] or "0%", most=0.5))
    except UsageError as error:
        raise UsageError(f"--require {text}: {error.message}", hint="such as not-slower=3%") from None
