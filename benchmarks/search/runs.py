"""Where the seconds of real runs went: until the first look, until a kept 10 % and 30 %, until what was verified.

``python -m benchmarks.search.runs RUN ...`` reads journal and result of run directories and prints a table. Seconds are
the run's own, from the start of the command's search; a gain is the product of the proofs of what was kept so far.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoopt.storage.journal import read_journal

GAINS = (1.1, 1.3)
LOOKED = frozenset({"look", "trial"})
"""Kinds of the journal's steps in which a candidate runs."""
HEAD = ["run", "budget", "first look", "kept 10 %", "kept 30 %", "decided", "undecided", "ended", "speedup", "verified"]


def row(directory: Path) -> list[str]:
    """A run's figures as cells; "-" for what it did not come to.

    Raises:
        OSError: it has no journal or no result.
    """
    records = read_journal(directory / "journal.jsonl")
    result = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    found = until_gains(kept(records))
    decided = result.get("decided")
    speedup = result.get("speedup") or {}
    reported = speedup.get("time_to_target") or speedup.get("throughput")
    changes = result["best"]["plan"]["changes"]
    return [
        directory.name,
        _seconds(result["budget_seconds"]),
        _seconds(first_look(records)),
        *(_seconds(found[gain]) for gain in GAINS),
        *(
            "-" if decided is None else str(sum((one["verdict"] is None) == open_ for one in decided))
            for open_ in (0, 1)
        ),
        _seconds(max((record["at"] for record in records if "at" in record), default=None)),
        f"{reported['value']:.2f}x [{reported['low']:.2f}, {reported['high']:.2f}]" if reported and changes else "-",
        ("yes" if speedup.get("end_to_end_verified") else "no") if changes else "-",
    ]


def first_look(records: Sequence[dict[str, Any]]) -> float | None:
    """Seconds until a candidate ran for the first time."""
    starts = (record["at"] for record in records if record["type"] == "start" and record["kind"] in LOOKED)
    return next(starts, None)


def kept(records: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """Seconds and speedup over the incumbent before it of each kept plan, from a journal."""
    events = [record for record in records if record["type"] == "event" and record["event"] == "Kept"]
    found = [(event["at"], event["data"]["speedup"].get("throughput") or {"value": 1.0}) for event in events]
    return [(at, throughput["value"]) for at, throughput in found]


def until_gains(plans: Sequence[tuple[float, float]]) -> dict[float, float | None]:
    """Seconds until what was kept was proved to be so much faster than the baseline; None where it never was."""
    reached: dict[float, float | None] = dict.fromkeys(GAINS)
    gain = 1.0
    for at, speedup in plans:
        gain *= speedup
        for wanted in GAINS:
            if reached[wanted] is None and gain >= wanted:
                reached[wanted] = at
    return reached


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def table(directories: Sequence[Path]) -> str:
    """Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *(row(directory) for directory in directories)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.runs", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    print(table(parser.parse_args().runs))
