"""The gauntlet; rules in RULES.md, figures in benchmarks/results/gauntlet.json.

    python -m benchmarks.gauntlet run CASE                         # one case: search, five rounds; under 15 minutes
    python -m benchmarks.gauntlet run CASE-placebo                 # its placebo twin
    python -m benchmarks.gauntlet search CASE --budget 10m --tools autoopt,optuna,tips,train-doctor,fournex,loadtune
    python -m benchmarks.gauntlet judge CASE                       # whole runs of all that were searched
    python -m benchmarks.pages                                     # docs/measurements/gauntlet.md

A result of another machine is entered by running it there and committing the document of results: the first run of a
revision on a machine counts. WHOLE_RUNS_CACHE names the folder for data and searches.
"""

from benchmarks.gauntlet.cases import GAUNTLET
from benchmarks.whole_runs.command import main

if __name__ == "__main__":
    raise SystemExit(main(GAUNTLET, __doc__))
