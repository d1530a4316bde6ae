"""Scheduling of trials over places: simulated trials, which sleep for a second each, on a Ray of this machine.

A trial is asked of a live process of its place; with ``--fresh`` a process is begun through the place's host for each
trial and ended with it, which wants some 0.2 s of a core each beside the sleep. The parallel efficiency is the seconds
that trials slept over the seconds of all places, from the first trial to the end of the last; hosts and one trial on
each are there before, in ``hosts_seconds``.

python -m benchmarks.distributed.trials                       # 1,000 trials of 1 s on 8 places: some 140 s
python -m benchmarks.distributed.trials --fresh               # with a process for each trial
python -m benchmarks.distributed.trials --executor local      # the same processes without Ray
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autoopt.records.protocol import TrialSpec
from autoopt.trial.parent import Launcher
from autoopt.trial.places import Place, Workers, places_of
from autoopt.trial.remote.launcher import RemoteLauncher
from benchmarks.documents import RESULTS, ROOT, parser_of, record

LIVE = "benchmarks.distributed.sleeper:Sleeper"
SLEEP = "benchmarks.distributed.sleeper:sleep"


@contextlib.contextmanager
def places(executor: str, count: int, folder: Path) -> Iterator[tuple[Place, ...]]:
    """So many places, as a run has them; on Ray each has a made-up device, by which their number is told."""
    if executor == "local":
        with Launcher(live=LIVE) as local:
            yield places_of(local, count, 1, "cpu", cores=count)
        return
    from autoopt.trial.remote.launcher import RayCluster

    ray: Any = importlib.import_module("ray")
    ray.init(num_cpus=count, num_gpus=count, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        with RemoteLauncher(RayCluster(live=LIVE), str(folder)) as remote:
            yield places_of(remote, count, 1, "cuda", cores=count)
    finally:
        ray.shutdown()


def measured(
    where: Sequence[Place], trials: int, seconds: float, folder: Path, *, fresh: bool = False
) -> dict[str, Any]:
    """Efficiency of so many trials; every place has started its host before the first counts.

    Args:
        fresh: each trial has a process of its own.
    """
    device = "cuda" if isinstance(where[0].launcher, RemoteLauncher) else "cpu"
    spec = TrialSpec(workload="none:none", directory=str(ROOT), search_path=(str(ROOT),), device=device)

    live: dict[int, Any] = {}

    def trial(place: int, number: int, lasts: float) -> tuple[int, float]:
        if place not in live:
            live[place] = where[place].launcher.start(spec, log=folder / f"{number}.log", timeout=120.0)
        try:
            slept: float = live[place].call(SLEEP, timeout=60.0 + lasts, seconds=lasts)["seconds"]
            return place, slept
        finally:
            if fresh:
                live.pop(place).close()

    workers, before = Workers(len(where)), time.perf_counter()
    with contextlib.ExitStack() as held:
        for place in where:
            held.enter_context(place.launcher.held())
        first = [workers.submit(lambda place, n=n: trial(place, n, seconds)) for n in range(len(where))]
        for future in first:
            future.result()
        began = time.perf_counter()
        print(f"{len(where)} hosts after {began - before:.1f} s", file=sys.stderr, flush=True)
        numbers = range(len(where), len(where) + trials)
        asked = [workers.submit(lambda place, n=n: trial(place, n, seconds)) for n in numbers]
        found = [future.result() for future in asked]
        ended = time.perf_counter()
        workers.close()
        for process in live.values():
            process.close()
    slept = sum(lasted for _, lasted in found)
    return {
        "trials": trials,
        "fresh": fresh,
        "places": len(where),
        "trial_seconds": seconds,
        "wall_seconds": ended - began,
        "hosts_seconds": began - before,
        "efficiency": slept / (len(where) * (ended - began)),
        "by_place": [count for _, count in sorted(Counter(place for place, _ in found).items())],
    }


def main() -> None:
    """Measures and writes down."""
    parser = parser_of("benchmarks.distributed.trials", __doc__, RESULTS / "distributed_trials.json")
    parser.add_argument("--executor", choices=("ray", "local"), default="ray")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--places", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each trial")
    parser.add_argument("--fresh", action="store_true", help="a process for each trial")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, places(options.executor, options.places, Path(folder)) as where:
        found = measured(where, options.trials, options.seconds, Path(folder), fresh=options.fresh)
    name = f"{options.executor}, a process each" if options.fresh else options.executor
    record(options.out, found, name)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
