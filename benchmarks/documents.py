"""Documents of results, the machine that their figures come from, and the cells in which pages show them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MISSING = "not measured"
Document = dict[str, Any]


def environment() -> dict[str, Any]:
    """The machine and its load now, as far as it can be told without torch."""
    return {
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "os": platform.platform(),
        "load": list(os.getloadavg()),
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"schema_version": 1}


def save(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def record(path: Path, found: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Puts what was measured, with its environment, in its place in a document of results, and saves the document."""
    document = load(path)
    place = document
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = {**found, "environment": environment()}
    save(path, document)
    return document


def dumped(record: Any) -> dict[str, Any] | None:
    """A record as JSON has it; None where it was not measured."""
    return None if record is None else record.model_dump()


def parser_of(module: str, description: str | None, out: Path | None = None) -> argparse.ArgumentParser:
    """The command line of a benchmark: its module's docstring is the help, and ``--out`` names its document."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out is not None:
        parser.add_argument("--out", type=Path, default=out, help="the document of results")
    return parser


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool = False) -> str:
    """A Markdown table; a cell's bars and line breaks break no row. ``numbers``: all columns but the first."""
    lines = [head, ["---", *["---:" if numbers else "---"] * (len(head) - 1)], *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def sections(*parts: str) -> str:
    """Parts of a page, an empty line between them; one that is empty is left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part)


def speedup(estimate: Document | None) -> str:
    """A ratio with its interval and its count."""
    if not estimate:
        return MISSING
    if estimate.get("low") is None:
        return f"{estimate['value']:.2f}× (1 pair)"
    count = f" ({estimate['n']} pairs)" if estimate.get("n") else ""
    return f"{estimate['value']:.2f}× [{estimate['low']:.2f}, {estimate['high']:.2f}]{count}"


def number(estimate: Document | None, scale: float = 1.0) -> str:
    """A value with its interval, three digits each."""
    if not estimate:
        return MISSING
    return "{:.3g} [{:.3g}, {:.3g}]".format(*(scale * estimate[key] for key in ("value", "low", "high")))


def names(changes: Iterable[Document]) -> str:
    """The strategies of a plan, at most five with a count of the rest."""
    found = [f"`{change['strategy']}`" for change in changes]
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "") or "nothing kept"


def machine(*environments: Document) -> str:
    """Where and when: processor, cores, load range and dates of the measurements of a page."""
    seen = [one for one in environments if one]
    if not seen:
        return ""
    kinds = sorted({f"{one['cores']} cores of {one['cpu']}" for one in seen})
    dates = sorted({str(one["at"])[:10] for one in seen if "at" in one})
    loads = [one["load"][0] for one in seen if "load" in one]
    parts = [", ".join(kinds)]
    parts += [f"load {min(loads):.1f} to {max(loads):.1f}"] if loads else []
    parts += [dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"] if dates else []
    return f"Machine: {'; '.join(parts)}."
