"""How true the verdicts are: false keeps, coverage, time to a decision, and what measuring costs.

    python -m benchmarks.truth --simulated                  # in simulated time: minutes
    python -m benchmarks.truth --live-placebos 40 --seconds 170   # on this machine; call again to go on
    python -m benchmarks.truth --live-effects --seconds 170
    python -m benchmarks.truth --overhead digits,stdlib_gpt,photos
    python -m benchmarks.truth --table                      # what was measured so far

Everything is added to one JSON document, each figure with the machine and the load it was measured under.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.documents import RESULTS, environment, load, save


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.truth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulated", action="store_true", help="false keeps, coverage and times in simulated time")
    parser.add_argument("--kinds", default="normal,heavy,drifting,bimodal", help="of simulated noise")
    parser.add_argument("--runs", type=int, default=200, help="simulated runs of five comparisons, per kind of noise")
    parser.add_argument(
        "--live-placebos", type=int, default=0, help="compare a plan with itself until so many are done"
    )
    parser.add_argument("--live-effects", action="store_true", help="planted effects on this machine")
    parser.add_argument("--effects", default="0.97,1.0,1.03,1.1,1.5,3.0", help="true speedups to plant")
    parser.add_argument("--repeats", type=int, default=3, help="live comparisons of each planted effect")
    parser.add_argument(
        "--overhead", nargs="?", const="digits,stdlib_gpt,photos", help="the instrumented loop beside a bare one"
    )
    parser.add_argument("--seconds", type=float, default=170.0, help="start nothing live after so long")
    parser.add_argument("--out", type=Path, default=RESULTS / "truth.json")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    options = parser.parse_args()
    document = load(options.out)
    if options.simulated:
        from benchmarks.truth import simulated as truth_simulated

        for kind in options.kinds.split(","):
            found = {**truth_simulated.measure(kind, options.runs), "environment": environment()}
            document.setdefault("simulated", {}).setdefault("kinds", {})[kind] = found
            save(options.out, document)
    if options.live_placebos or options.live_effects or options.overhead:
        from benchmarks.truth import live as truth_live

        deadline = time.monotonic() + options.seconds
        if options.live_placebos:
            truth_live.placebos(document, options.live_placebos, deadline, lambda: save(options.out, document))
        if options.live_effects:
            effects = [float(text) for text in options.effects.split(",")]
            truth_live.effects(document, effects, options.repeats, deadline, lambda: save(options.out, document))
        if options.overhead:
            workloads = options.overhead.split(",")
            truth_live.overhead(document, workloads, deadline, lambda: save(options.out, document))
    from benchmarks.truth import table as truth_table

    sys.stdout.write(truth_table.render(document))


if __name__ == "__main__":
    main()
