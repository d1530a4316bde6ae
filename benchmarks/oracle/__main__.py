"""autoopt against an exhaustive search, and against Optuna's samplers at the same budget.

    python -m benchmarks.oracle --state oracle.jsonl --minutes 8            # call again to go on
    python -m benchmarks.oracle --state oracle.jsonl --example photos --minutes 8
    python -m benchmarks.oracle --state oracle.jsonl --write              # what there is, as a document
    python -m benchmarks.oracle --state new.jsonl --lattice-of benchmarks/results/oracle.json --replay --minutes 8
                                                                 # another revision of autoopt on the same lattices

Run it on a machine that does nothing else. Needs optuna (the dev extra).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.documents import environment, save
from benchmarks.oracle import stages, table
from benchmarks.oracle.slice import Slice
from benchmarks.oracle.state import State, from_document

ROOT = Path(__file__).resolve().parents[2]

RESULTS = ROOT / "benchmarks" / "results" / "oracle.json"


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def slice_of(examples: list[str], state: State, options: argparse.Namespace) -> None:
    """One invocation: goes on with the examples in turn until the minutes are over."""
    deadline = time.monotonic() + 60.0 * options.minutes
    for example in examples:
        cache = state.path.with_suffix("") / f"compiled-{example}"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)  # of its own, so that compiling is measured cold
        with stages.open_trials(example, state) as found:
            one = Slice(
                example,
                state,
                found,
                deadline,
                lattice_seconds=options.lattice_seconds,
                top=options.top,
                rounds=options.rounds,
                replays=table.REPLAYS if options.replay else 0,
                share=options.share,
                without=dict(item.split("=", 1) for item in options.without),
                say=say,
            )
            if not stages.run(one, options.until):
                say(f"{example}: out of time; the next slice goes on")
                return


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.oracle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, help="readings so far, JSON lines; written as it goes")
    parser.add_argument("--lattice-of", type=Path, metavar="FILE", help="begin the state with a document's lattices")
    parser.add_argument("--example", action="append", choices=table.EXAMPLES, help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, default=0.0, help="of this slice; 0: measure nothing")
    parser.add_argument("--until", choices=list(stages.STAGES), default="compile", help="the last stage to run")
    parser.add_argument("--lattice-seconds", type=float, default=800.0, help="that a lattice may take")
    parser.add_argument("--top", type=int, default=5, help="points of the lattice that are measured again")
    parser.add_argument("--rounds", type=int, default=4, help="pairs of processes of each choice in the race")
    parser.add_argument("--share", type=float, default=0.25, help="of the lattice's seconds that autoopt gets")
    parser.add_argument(
        "--without", action="append", default=[], metavar="KNOB=WHY", help="no contestant gets this knob"
    )
    parser.add_argument("--replay", action="store_true", help="Optuna reads the lattice's readings, measures nothing")
    parser.add_argument("--write", action="store_true", help="the document of what there is, and of what it had before")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.state is None and (options.minutes or options.write or options.lattice_of):
        parser.error("--minutes, --write and --lattice-of need --state FILE")
    if options.lattice_of is not None and options.state.exists():
        parser.error(f"--lattice-of begins a new state, and {options.state} holds readings already")
    if not all("=" in item for item in options.without):
        parser.error("--without needs a knob and the reason, as in --without 'workers=nothing to prepare'")
    if options.lattice_of is not None:
        from_document(options.state, json.loads(options.lattice_of.read_text(encoding="utf-8")), table.RULES)
    if options.minutes:
        os.chdir(ROOT)
        slice_of(options.example or list(table.EXAMPLES), State(options.state), options)
    if options.write:
        earlier = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else None
        save(options.out, table.document(State(options.state), environment(), earlier=earlier))
    return 0


if __name__ == "__main__":
    sys.exit(main())
