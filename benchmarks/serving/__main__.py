"""A text classifier and an image model within a latency; a searched learning rate; changes of the model.

    python -m benchmarks.serving --latency text --p95 2ms      # benchmarks/results/serving.json
    python -m benchmarks.serving --latency images --p95 4ms
    python -m benchmarks.serving --tune 3m
    python -m benchmarks.serving --change lora                 # pruning, distillation

Run each on a machine that does nothing else. A call takes ``--seconds`` at most, about; where it ends with exit code 3,
the same call again goes on where it stopped. ``--anew`` forgets what a benchmark has kept. Needs the extras serving,
tune, model and examples.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from autoopt.options.parsers import parse_duration
from benchmarks.documents import RESULTS, ROOT, parser_of, record
from benchmarks.serving import changes, latency, tuning
from benchmarks.serving.commands import Piece, UnfinishedError

UNFINISHED = 3


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of("benchmarks.serving", __doc__, RESULTS / "serving.json")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--latency", choices=tuple(latency.CASES))
    wanted.add_argument("--tune", metavar="BUDGET")
    wanted.add_argument("--change", choices=tuple(changes.CASES))
    parser.add_argument("--p95", default="5ms")
    parser.add_argument("--budget", help="of the command: 2m for --latency, 4m for --change where it is not given")
    parser.add_argument("--seconds", type=float, default=330.0, help="of this call")
    parser.add_argument("--work", type=Path, default=ROOT / "autoopt-runs" / "serving", help="what is done so far")
    parser.add_argument("--anew", action="store_true")
    given = parser.parse_args(words)
    name = given.latency or given.change or "tune"
    folder = given.work.absolute() / name
    if given.anew:
        shutil.rmtree(folder, ignore_errors=True)
    piece = Piece(folder, given.seconds)
    try:
        if given.latency:
            found = latency.served(piece, name, given.p95, parse_duration(given.budget or "2m"))
        elif given.tune:
            found = tuning.tuned(piece, parse_duration(given.tune))
        else:
            found = changes.changed(piece, name, parse_duration(given.budget or "4m"))
    except UnfinishedError as left:
        print(f"not done: {left}; the same command again goes on from here")
        return UNFINISHED
    record(given.out, found, name)
    print(f"done: {given.out}, {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
