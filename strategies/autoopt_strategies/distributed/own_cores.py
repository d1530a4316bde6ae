"""Own cores: each process of a training keeps to its share of the cores."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting
from autoopt_strategies.distributed.common import described, processes


class OwnCores(Strategy):
    """Binds each process, with its loader workers, to cores of its own.

    No run and no benchmark has kept it so far.

    What it does: the cores are dealt out in runs of neighbours, by ``os.sched_setaffinity``, before anything is built.
    When it helps: many cores or several sockets, on which processes and their workers push each other about.
    When it does not: fewer cores than processes; ranks that need cores at different times.
    What it costs: a core that one process leaves idle cannot be used by another.
    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    name = "own_cores"
    title = "cores of its own for each process"
    stages = frozenset({"preparation", "collate", "forward", "backward", "host"})
    risk = Risk.EXACT
    after = frozenset({"ddp"})
    example = Example({"enabled": True}, setup=Setup().with_distributed(processes=2), processes=2, trains=False)

    def applies(self, case: Case) -> Applies:
        if not (able := described(case)):
            return able
        count = processes(case)
        if count < 2:
            return Applies.no("training is in one process, which has all cores to itself")
        if (case.environment.cores or 1) < count:
            return Applies.no(f"there are {case.environment.cores} cores for {count} processes")
        if case.setup.flags.get("affinity") is not None:
            return Applies.no("the plan binds processes to cores already")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Fewer moves from core to core are what it saves."""
        return Estimate(value=1.0, low=0.9, high=1.15, n=1).as_kind("declared")

    def settings(self, case: Case) -> list[Setting]:
        return [{"enabled": True}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_distributed(own_cores=setting["enabled"])

    def recipe(self, setting: Setting) -> Recipe:
        lines = (
            'rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])\n'
            "cores = sorted(os.sched_getaffinity(0))\neach = len(cores) // size\n"
            "os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])"
        )
        return Recipe.noted(lines, "os.sched_setaffinity in each process, before anything is built")
