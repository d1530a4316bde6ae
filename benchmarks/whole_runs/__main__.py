"""Whole runs of untouched, patched and expert's scripts; rules in the package, figures in results/whole_runs.json.

    python -m benchmarks.whole_runs prepare                       # the data of every case
    python -m benchmarks.whole_runs judge CASE --patched none     # the expert's edit alone
    python -m benchmarks.whole_runs freeze                        # before the first search
    python -m benchmarks.whole_runs search CASE --budget 4m       # one search; the first one of a revision counts
    python -m benchmarks.whole_runs judge CASE --rounds 5         # its patch beside the expert's edit
    python -m benchmarks.whole_runs control CASE --rounds 2       # the untouched script beside itself
    python -m benchmarks.pages                                    # docs/measurements/whole-runs.md

Run it on a machine that does nothing else. WHOLE_RUNS_CACHE names the folder for data and searches.
"""

from benchmarks.whole_runs.cases import WHOLE_RUNS
from benchmarks.whole_runs.command import main

if __name__ == "__main__":
    raise SystemExit(main(WHOLE_RUNS, __doc__))
