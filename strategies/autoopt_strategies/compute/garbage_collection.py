"""Garbage collection: Python's collector scans what was loaded once, not in every step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.input.batches import dataset_of
from autoopt_strategies.input.probes import spread
from autoopt_strategies.predictions import LEAST_SHARE, tried_gain
from autoopt_strategies.trying import ChangedOptimizer, Setting, Settings, while_kept

SECONDS = 0.3
"""Of steps that are watched: several collections fall into them where they matter."""


def collecting_rarely(optimizer: Any, every: int) -> Any:
    """The optimizer, at whose making what lives is frozen; young garbage goes every so many of its steps."""
    steps = 0

    def collect(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps % every == 0:
            gc.collect(1)

    gc.collect()
    gc.freeze()  # workers that are forked later share its pages untouched
    gc.set_threshold(200_000, 50, 50)  # after so many allocations Python collects by itself all the same
    optimizer.register_step_post_hook(collect)
    return optimizer


class GarbageCollection(Strategy):
    """Freezes the objects that live for the whole run, and collects garbage every so many steps.

    What it does: ``gc.freeze()`` before the first step, a high ``gc.set_threshold``, and ``gc.collect(1)`` every so
        many steps, at the same step in every process of a distributed run.
    When it helps: a dataset or model of millions of Python objects, each of which a full collection visits: steps
        that take twice as long now and then; ``gc.collect()`` called by force, which then has little to visit;
        workers whose memory grows as the collector touches shared pages.
    When it does not: few objects; a step of arithmetic alone.
    What it costs: reference cycles that hold tensors live until the next collection.
    Source: https://docs.python.org/3/library/gc.html#gc.freeze; Rockset and Instagram on gc.freeze, 2017
    """

    name = "garbage_collection"
    title = "garbage collected on schedule"
    stages = frozenset({"preparation", "collate", "host", "forward", "backward"})
    risk = Risk.EXACT
    switchable = True
    example = Example({"every": 100}, inspected={"preparing": 0.2, "computing": 0.05})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if not found:
            return Applies.no("what the collector takes of a step is not known")
        share = max(found.get("preparing", 0.0), found.get("computing", 0.0))
        if share < LEAST_SHARE:
            return Applies.no(f"the garbage collector takes {share:.1%} of the time (measured)")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Stages without what the collector took of them."""
        found = case.inspected(self.name)
        by_stage = {"preparation": "preparing", "collate": "preparing", "forward": "computing", "backward": "computing"}
        return tried_gain(case, {stage: 1.0 - found.get(what, 0.0) for stage, what in by_stage.items()})

    def settings(self, case: Case) -> Settings:
        return while_kept([{"every": 100}, {"every": 1000}])

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_optimizer(ChangedOptimizer(collecting_rarely, (setting["every"],)))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            "gc.collect(); gc.freeze(); gc.set_threshold(200_000, 50, 50)  # before the first step\n"
            f"if step % {setting['every']} == 0:\n    gc.collect(1)"
        )
        return Recipe.noted(code, code.replace("\n", " "))

    def inspect(self, live: Any) -> Setting:
        """Shares of the collector in reading samples, and in forward and backward passes of copies."""
        dataset = dataset_of(live.workload)
        found = {"computing": collected_share(lambda: live.ratio_with(seconds=SECONDS))}
        if not spread(dataset):
            return found
        collate = live.training.loader.loader.collate_fn

        def read() -> None:
            """Reads samples for a while, a batch of them alive at a time as in a loader, which collates them."""
            alive: list[Any] = []
            until, index = perf_counter() + SECONDS, 0
            while perf_counter() < until:
                alive.append(dataset[index % len(dataset)])
                index += 1
                if len(alive) == 32:
                    collate(alive)
                    alive = []

        return {**found, "preparing": collected_share(read)}


def collected_share(work: Callable[[], Any]) -> float:
    """Share of the seconds of some work that Python's garbage collector takes."""
    began, spent = 0.0, 0.0

    def watch(phase: str, _: Any) -> None:
        nonlocal began, spent
        if phase == "start":
            began = perf_counter()
        elif began:
            spent += perf_counter() - began

    gc.callbacks.append(watch)
    started = perf_counter()
    try:
        work()
        return min(1.0, spent / max(perf_counter() - started, 1e-9))
    finally:
        gc.callbacks.remove(watch)
