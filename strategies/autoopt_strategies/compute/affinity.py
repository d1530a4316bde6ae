"""Affinity: the cores that a process and its loader workers may run on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.compute.threads import core_numbers
from autoopt_strategies.distributed.ddp import described
from autoopt_strategies.predictions import guessed
from autoopt_strategies.trying import Setting


class Affinity(Strategy):
    """Gives the process back the cores that an import took away, or keeps each process to cores of its own.

    What it does: ``os.sched_setaffinity`` before training, for every thread; workers inherit it. ``own``: each of
        several processes, with its workers, has a run of neighbouring cores to itself.
    When it helps: a library bound the process to one core when it was imported, so that all workers share it;
        the machine has several NUMA nodes, and the process runs on one far from its GPU; processes and their workers
        push each other about on many cores.
    When it does not: all cores can be used, and there is one node; fewer cores than processes.
    What it costs: nothing; bound to some cores, the others stay idle.
    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (NUMA);
        https://github.com/pytorch/pytorch/issues/101850 (affinity lost)
    """

    name = "affinity"
    title = "cores of the process"
    stages = frozenset({"storage", "preparation", "collate", "copy", "host", "forward", "backward", "optimizer"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp"})
    example = Example({"affinity": [0]}, inspected={"lost": [1], "affinity": [0, 1]}, trains=False)

    def applies(self, case: Case) -> Applies:
        if self.settings(case):
            return Applies.yes()
        return Applies.no("the process may use all its cores, and they are on one NUMA node or near the device")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Lost cores come back: nobody measured with them, so that all that is known is how many."""
        found = case.inspected(self.name)
        if setting.get("own"):  # fewer moves from core to core are what it saves
            return guessed(0.9, 1.15)
        if not found.get("lost"):
            return None
        most = len(setting["affinity"]) / max(1, len(setting["affinity"]) - len(found["lost"]))
        return guessed(1.0, most, max(1.0, most**0.5))

    def settings(self, case: Case) -> list[Setting]:
        found = case.inspected(self.name)
        wanted = [{"affinity": list(found["affinity"])}] if found.get("lost") else []
        wanted += [{"affinity": list(found["near_device"])}] if found.get("near_device") else []
        bound = case.setup.flags.get("affinity") is not None or not described(case)
        divided = not bound and 2 <= case.setup.distributed.processes <= (case.environment.cores or 1)
        return [*wanted, {"own": True}] if divided else wanted

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        if setting.get("own"):
            return setup.with_distributed(own_cores=True)
        return setup.with_flags(affinity=list(setting["affinity"]))

    def recipe(self, setting: Setting) -> Recipe:
        if setting.get("own"):
            lines = (
                'rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])\n'
                "cores = sorted(os.sched_getaffinity(0))\neach = len(cores) // size\n"
                "os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])"
            )
            return Recipe.noted(lines, "os.sched_setaffinity in each process, before anything is built")
        code = f"os.sched_setaffinity(0, {set(setting['affinity'])})  # after the imports, before threads and workers"
        return Recipe.noted(code)

    def inspect(self, live: Any) -> Setting:
        """Cores before the workload was imported, those that it lost, and those of the GPU's NUMA node."""
        if not hasattr(os, "sched_getaffinity"):
            return {}
        import torch

        now, before, near = os.sched_getaffinity(0), set(live.cores_at_start), set[int]()
        if live.device.kind == "cuda":
            facts: Any = torch.cuda.get_device_properties(live.device.torch)
            try:
                slot = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
                node = int(Path(f"/sys/bus/pci/devices/{slot}/numa_node").read_text())
                near = before & {*core_numbers(Path(f"/sys/devices/system/node/node{node}/cpulist").read_text())}
            except (AttributeError, OSError, ValueError):  # an old torch, no such file in a container, or -1: one node
                pass
        found: Setting = {"affinity": sorted(before), "lost": sorted(before - now)}
        return {**found, "near_device": sorted(near)} if near and near < before else found
