"""Compute threads: how many cores the arithmetic of a CPU workload uses, and which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import compute_threads, gain
from autoopt_strategies.trying import Setting, Settings, climb, doubling, frugal


class Threads(Strategy):
    """Sets the threads that compute on the CPU, and the cores that they stay on.

    What it does: ``torch.set_num_threads``; with several NUMA nodes also the affinity of the process.
    When it helps: fewer for small tensors, whose threads wait for each other longer than they work, and
        where loader workers need cores; more where the environment limits them without need.
    When it does not: large matrix products want every core; with a CUDA device arithmetic is not here.
    What it costs: nothing; sums over another number of threads differ in the last bits.
    Source: https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
    """

    name = "threads"
    title = "compute threads"
    stages = frozenset({"forward", "backward", "optimizer", "host"})
    risk = Risk.NUMERIC
    switchable = True
    example = Example({"threads": 1}, losses=1e-4)

    def applies(self, case: Case) -> Applies:
        if case.device != "cpu":
            return Applies.no(f"the arithmetic runs on {case.environment.device}, not on the CPU's threads")
        if (case.environment.cores or 2) < 2:
            return Applies.no("there is one core")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        return gain(case, {}, threads=setting["threads"])

    def settings(self, case: Case) -> Settings:
        cores = case.environment.cores or 2
        now = compute_threads(case)
        numbers = [number for number in doubling(cores) if number != now]
        if not numbers:
            return
        first = frugal(numbers, lambda number: self.predict(case, {"threads": number})) or numbers[-1]
        if first > now:
            yield from climb(first, 1, cores, lambda number: {"threads": number})
        else:
            yield {"threads": first}
        for node in case.inspected(self.name).get("nodes", [])[:1]:
            yield {"threads": len(node), "affinity": list(node)}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_flags(**setting)

    def recipe(self, setting: Setting) -> Recipe:
        lines = []
        if setting.get("affinity"):
            lines.append(f"os.sched_setaffinity(0, {setting['affinity']})")
        lines.append(f"torch.set_num_threads({setting['threads']})")
        return Recipe.noted("\n".join(lines), "; ".join(lines) + ", before training starts")

    def inspect(self, live: Any) -> Setting:
        """Cores of each NUMA node, where there is more than one."""
        nodes = []
        for file in sorted(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")):
            try:
                nodes.append(core_numbers(file.read_text()))
            except (OSError, ValueError):
                return {}
        return {"nodes": nodes} if len(nodes) > 1 else {}


def core_numbers(text: str) -> list[int]:
    """``0-3,8`` as numbers."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return found
