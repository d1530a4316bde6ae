"""Other people's scripts, beside other tools; rules in the package, figures in benchmarks/results/peers.json.

    python -m benchmarks.peers prepare                             # the scripts, at their revisions, and their data
    python -m benchmarks.peers run SCRIPT --tools autoopt,optuna,tips,train-doctor,fournex,loadtune
    python -m benchmarks.pages                                     # docs/peers.md

Run it on a machine that does nothing else. PEERS_MIRROR names a folder of git directories to read instead of GitHub,
WHOLE_RUNS_CACHE the folder for scripts and searches.
"""

from benchmarks.peers.scripts import PEERS
from benchmarks.whole_runs.command import main

if __name__ == "__main__":
    raise SystemExit(main(PEERS, __doc__))
