"""A first look at a CUDA device, in three calls of under ten minutes each; torch and numpy do for it.

    python -m benchmarks.gpu.first_look 1 --out look.json    # versions, clocks, start-up, tests/gpu, peaks
    python -m benchmarks.gpu.first_look 2 --out look.json    # what measuring costs, predictions on tiny
    python -m benchmarks.gpu.first_look 3 --out look.json    # the ladder of GPT-2, loader workers on ResNet-50
    python -m benchmarks.gpu.first_look page --out look.json # look.md

Each part has its share of the call; what fails or has no time left says so in its place. The document is written again
after each part, so that a call that is ended early leaves what it had. Predictions need scipy, device tests pytest,
the JPEG files Pillow; without psutil a stand-in reads /proc. ``--toy --device cpu`` checks the code.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, strftime
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = [str(ROOT / folder) for folder in (".", "strategies", "reports")]  # a checkout need not be installed
if find_spec("psutil") is None:
    _FOLDERS.append(str(ROOT / "benchmarks" / "gpu" / "stand_in"))
sys.path += _FOLDERS

from benchmarks.gpu import look as parts  # noqa: E402
from benchmarks.gpu import look_at_plans as plans  # noqa: E402
from benchmarks.gpu.look import Found, Look  # noqa: E402

SECONDS = 540.0
CALLS: dict[str, tuple[tuple[Callable[[Look], Found], float], ...]] = {
    "1": ((parts.machine, 0.05), (parts.start_up, 0.25), (parts.peaks, 0.2), (parts.device_tests, 0.5)),
    "2": ((parts.loop_cost, 0.35), (plans.predictions, 0.65)),
    "3": ((plans.ladder, 0.65), (plans.loader, 0.35)),
}
"""Parts of each call, with the share of its seconds; what one does not need, the next ones have."""


def call(
    number: str, document: Found, *, device: str, toy: bool, seconds: float, tell: Callable[[Found], None]
) -> None:
    """Runs the parts of one call; the document has each as soon as it is measured."""
    ends = perf_counter() + seconds
    waiting = list(CALLS[number])
    while waiting:
        part, share = waiting.pop(0)
        rest = sum(other for _, other in waiting)
        own = (ends - perf_counter()) * share / (share + rest)
        began = perf_counter()
        try:
            found = part(Look(device, toy, began + own))
        except Exception as error:
            found = parts.failed(error)
        document[part.__name__] = {**found, "seconds": perf_counter() - began}
        tell(document)


def page(document: Found) -> str:
    """The document as Markdown: a table for each part."""
    lines = [f"# First look: {document.get('machine', {}).get('name') or document['device']}", ""]
    lines += [f"Measured on {document['date']}, `benchmarks/gpu/first_look.py`.", ""]
    for part, _ in (each for call_ in CALLS.values() for each in call_):
        found = document.get(part.__name__)
        lines += [f"## {(part.__doc__ or '').strip().partition(chr(10))[0]}", ""]
        lines += _table(found) if found is not None else ["not measured"]
        lines.append("")
    return "\n".join(lines)


def _table(found: Found) -> list[str]:
    rows = ["| | |", "| --- | --- |"]
    return rows + [f"| {name} | {value} |" for name, value in _flat(found)]


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Every number and word with its path."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flat(item, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return [row for number, item in enumerate(value) for row in _flat(item, f"{name}[{number}]")]
    return [(name, _text(value))]


def _text(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return str(value).replace("|", "\\|").replace("\n", " ")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.first_look",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("call", choices=[*CALLS, "page"])
    parser.add_argument("--out", type=Path, required=True, help="the document; the page stands beside it")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes: a check of the code")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the call")
    given = parser.parse_args(words)
    document: Found = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    if given.call == "page":
        if not document:
            parser.error(f"there is no {given.out}: make the calls 1, 2 and 3 first")
        given.out.with_suffix(".md").write_text(page(document), encoding="utf-8")
        return 0
    document |= {"schema_version": 1, "kind": "first_look", "date": strftime("%Y-%m-%d"), "device": given.device}

    def tell(known: Found) -> None:
        part = given.out.with_suffix(".part")
        part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        part.replace(given.out)

    # trials are processes of their own
    os.environ["PYTHONPATH"] = os.pathsep.join([*_FOLDERS, *filter(None, [os.environ.get("PYTHONPATH")])])
    given.out.parent.mkdir(parents=True, exist_ok=True)
    call(given.call, document, device=given.device, toy=given.toy, seconds=given.seconds, tell=tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
