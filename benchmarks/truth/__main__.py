"""How true the verdicts are: false keeps, coverage, and what measuring costs; figures in benchmarks/results/truth.json.

    python -m benchmarks.truth placebo_runs --runs 200       # 20 placebos one after the other, in simulated time
    python -m benchmarks.truth loop_runs --runs 40           # whole searches of the loop, in simulated time
    python -m benchmarks.truth several --runs 100            # several plans next to one baseline, in simulated time
    python -m benchmarks.truth live_runs --runs 1            # searches over placebos, on this machine; call again
    python -m benchmarks.truth false_losses metric --runs 2000
    python -m benchmarks.truth false_losses rounding augmentation --runs 40    # further changes; call again
    python -m benchmarks.truth overhead                      # the instrumented loop next to a bare one

Cases of an experiment may be named, as the document names them; all of them by default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from benchmarks.documents import RESULTS, load, parser_of, record, save

NOISES = ("normal", "heavy", "drifting", "bimodal")
SPREADS = ("equal", "unequal")
EXPERIMENTS: dict[str, Sequence[str]] = {
    "placebo_runs": [", ".join(case) for case in product(SPREADS, NOISES)],
    "loop_runs": [", ".join(case) for case in product(("placebos", "effects"), SPREADS, ("heavy",))],
    "several": [", ".join(case) for case in product(("parts", "placebos"), SPREADS, NOISES)],
    "false_losses": ("metric", "rounding", "augmentation"),
    "live_runs": ("",),
    "overhead": ("digits", "stdlib_gpt", "photos"),
}
"""Each with its cases."""


def measured(experiment: str, case: str, runs: int, known: dict[str, Any]) -> dict[str, Any]:
    """A case of an experiment; what is measured on this machine goes on where ``known`` ended."""
    from benchmarks.truth import false_losses, live_runs, loop_runs, placebo_runs, several

    of: dict[str, Callable[..., dict[str, Any]]] = {
        "placebo_runs": placebo_runs.measure,
        "loop_runs": loop_runs.measure,
        "several": several.measure,
    }
    if experiment in of:
        return of[experiment](*case.split(", "), runs)
    if experiment == "false_losses":
        return false_losses.measure(case, runs, known)
    return live_runs.measure(known, runs)


def main() -> None:
    parser = parser_of("benchmarks.truth", __doc__, RESULTS / "truth.json")
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("cases", nargs="*", help="as the document names them [default: all]")
    parser.add_argument("--runs", type=int, default=40, help="of each case; overhead has its own number")
    asked = parser.parse_args()
    cases = asked.cases or EXPERIMENTS[asked.experiment]
    if asked.experiment == "overhead":
        from benchmarks.truth import overhead

        save(asked.out, {**load(asked.out), "overhead": overhead.measure(cases)})
        return
    for case in cases:
        place = [asked.experiment, *filter(None, [case])]
        known: Any = load(asked.out)
        for key in place:
            known = known.get(key, {})
        found = measured(asked.experiment, case, asked.runs, known)
        record(asked.out, found, *place)
        print(", ".join(place), json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
