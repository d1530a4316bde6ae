"""autoopt against an exhaustive search, and against Optuna's samplers at the same budget.

    python -m benchmarks.oracle --state oracle.jsonl --minutes 8            # call again to go on
    python -m benchmarks.oracle --state oracle.jsonl --example photos --minutes 8
    python -m benchmarks.oracle --state oracle.jsonl --write              # what there is, as a document
    python -m benchmarks.oracle --state new.jsonl --lattice-of benchmarks/results/oracle.json --minutes 8
                                                                 # another revision of autoopt on the same lattices

Run it on a machine that does nothing else. Needs optuna (the dev extra).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from benchmarks.documents import RESULTS, ROOT, environment, load, parser_of, save
from benchmarks.oracle import stages, table
from benchmarks.oracle.slice import Slice, State, from_document


def slice_of(examples: list[str], state: State, minutes: float) -> None:
    """One invocation: goes on with the examples in turn until the minutes are over."""
    deadline = time.monotonic() + 60.0 * minutes
    for example in examples:
        cache = state.path.with_suffix("") / f"compiled-{example}"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)  # of its own, so that compiling is measured cold
        with stages.open_trials(example, state) as found:
            if not stages.run(Slice(example, state, found, deadline)):
                print(f"{example}: out of time; the next slice goes on", file=sys.stderr)
                return


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of("benchmarks.oracle", __doc__, RESULTS / "oracle.json")
    parser.add_argument("--state", type=Path, help="readings so far, JSON lines; written as it goes")
    parser.add_argument("--lattice-of", type=Path, metavar="FILE", help="begin the state with a document's lattices")
    parser.add_argument("--example", action="append", choices=table.EXAMPLES, help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, default=0.0, help="of this slice; 0: measure nothing")
    parser.add_argument("--write", action="store_true", help="the document of what there is, and of what it had before")
    options = parser.parse_args(arguments)
    if options.state is None and (options.minutes or options.write or options.lattice_of):
        parser.error("--minutes, --write and --lattice-of need --state FILE")
    if options.lattice_of is not None and options.state.exists():
        parser.error(f"--lattice-of begins a new state, and {options.state} holds readings already")
    if options.lattice_of is not None:
        from_document(options.state, load(options.lattice_of))
    if options.minutes:
        os.chdir(ROOT)
        slice_of(options.example or list(table.EXAMPLES), State(options.state), options.minutes)
    if options.write:
        save(options.out, table.document(State(options.state), environment(), load(options.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
