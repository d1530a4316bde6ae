"""Affinity: the cores that the process and its loader workers may run on."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting
from autoopt_strategies.compute.threads import core_numbers


class Affinity(Strategy):
    """Gives the process back the cores that an import took away, or keeps it next to its GPU.

    What it does: ``os.sched_setaffinity`` before training, for every thread; workers inherit it.
    When it helps: a library bound the process to one core when it was imported, so that all workers share it;
        or the machine has several NUMA nodes, and the process runs on one far from its GPU.
    When it does not: all cores can be used, and there is one node.
    What it costs: nothing; bound to one node, the cores of the others stay idle.
    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (NUMA);
        https://github.com/pytorch/pytorch/issues/101850 (affinity lost)
    """

    name = "affinity"
    title = "cores of the process"
    stages = frozenset({"storage", "preparation", "collate", "copy", "host", "forward", "backward", "optimizer"})
    risk = Risk.NUMERIC
    example = Example({"affinity": [0]}, inspected={"lost": [1], "affinity": [0, 1]}, trains=False)

    def applies(self, case: Case) -> Applies:
        if self.settings(case):
            return Applies.yes()
        return Applies.no("the process may use all its cores, and they are on one NUMA node or near the device")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Lost cores come back: nobody measured with them, so that all that is known is how many."""
        found = case.inspected(self.name)
        if not found.get("lost"):
            return None
        most = len(setting["affinity"]) / max(1, len(setting["affinity"]) - len(found["lost"]))
        return Estimate(value=max(1.0, most**0.5), low=1.0, high=most, n=1).as_kind("declared")

    def settings(self, case: Case) -> list[Setting]:
        found = case.inspected(self.name)
        wanted = [{"affinity": list(found["affinity"])}] if found.get("lost") else []
        near = found.get("near_device")
        return wanted + ([{"affinity": list(near)}] if near else [])

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_flags(affinity=list(setting["affinity"]))

    def recipe(self, setting: Setting) -> Recipe:
        code = f"os.sched_setaffinity(0, {set(setting['affinity'])})  # after the imports, before threads and workers"
        return Recipe.noted(code)

    def inspect(self, live: Any) -> Setting:
        """Cores before the workload was imported, those that it lost, and those of the GPU's NUMA node."""
        import os

        if not hasattr(os, "sched_getaffinity"):
            return {}
        now, before = os.sched_getaffinity(0), set(live.cores_at_start)
        found: Setting = {"affinity": sorted(before), "lost": sorted(before - now)}
        near = near_device(live.device.torch) & before
        return {**found, "near_device": sorted(near)} if near and near < before else found


def near_device(device: Any) -> set[int]:
    """Cores of the NUMA node that a CUDA device hangs on; empty where that is not known."""
    from pathlib import Path

    import torch

    if device.type != "cuda":
        return set()
    facts: Any = torch.cuda.get_device_properties(device)
    try:
        slot = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
        node = int(Path(f"/sys/bus/pci/devices/{slot}/numa_node").read_text())
        return set(core_numbers(Path(f"/sys/devices/system/node/node{node}/cpulist").read_text()))
    except (AttributeError, OSError, ValueError):  # an old torch, no such file in a container, or -1: one node
        return set()
