"""Loader workers: batches prepared in other processes while the model computes."""

from __future__ import annotations

import inspect
from typing import Any

from autoopt import Applies, Case, Change, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import compute_threads, gain, seconds_of, simulated
from autoopt_strategies.trying import Setting, Settings, climb, doubling, frugal, kept

MANY_THREADS = 1.2
"""Threads that work at a sample, on average, from which on its libraries are taken to start threads of their own."""
WORKER_START = 0.05
"""Seconds, about, in which a worker starts."""
NONE: Setting = {"num_workers": 0}
"""Batches are prepared in the training's own process."""
UNEVEN = 0.5
"""Relative spread of the seconds of a sample from which on a longer queue is worth a try."""


class Workers(Strategy):
    """Prepares batches in as many worker processes as pay, which stay alive from epoch to epoch, or in none.

    What it does: sets ``num_workers``, ``prefetch_factor`` and ``persistent_workers`` of the DataLoader. The number
        that the pipeline graph predicts to be fastest is tried first, be it larger or smaller than yours.
    When it helps: reading and preparing samples takes a good part of the step. Fewer: more workers than cores, workers
        that are started anew in each epoch, samples that are slices of a tensor.
    When it does not: samples are prepared in less time than handing them over takes; all cores are busy with the model.
        On a CPU workers and compute threads compete for cores, so that fewer threads are tried together with the
        workers.
    What it costs: memory of each worker, their start, shared memory for the batches under way.
    Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """

    name = "workers"
    title = "loader workers"
    stages = frozenset({"storage", "preparation", "collate"})
    risk = Risk.EXACT
    example = Example({"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True})

    def applies(self, case: Case) -> Applies:
        if not case.workload.dataset.map_style and not case.inspected(self.name).get("shares_work"):
            return Applies.no(
                f"{case.workload.dataset.type} is an IterableDataset that does not share its samples out "
                "between workers: each would yield all of them"
            )
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        number = setting["num_workers"]
        prefetch = setting.get("prefetch_factor")
        return gain(case, {}, workers=number, threads=_threads_with(case, number), prefetch=prefetch)

    def settings(self, case: Case) -> Settings:
        now = case.loader_option("num_workers") or 0
        most = most_workers(case, now)
        numbers = [number for number in (0, *doubling(most)) if number != now]
        first = frugal(numbers, lambda number: self.predict(case, {"num_workers": number}))
        if first is None and now and case.device == "cpu" and now >= (case.environment.cores or 2):
            first = 0  # they leave no core to the model
        if first is None:
            first = min(4, most) if now == 0 else min(2 * now, most)
        if first == 0:
            if kept((yield NONE)):
                return
            first = min(max(1, now // 2), most)
        best = yield from climb(first, 1, most, lambda number: so_many(case, number))
        again = so_many(case, now)
        stays = again["persistent_workers"] and not case.loader_option("persistent_workers")
        if best is None and now and stays and kept((yield again)):
            best = now
        if best and (getattr(simulated(case), "sample_spread", None) or 0.0) > UNEVEN:
            yield {**so_many(case, best), "prefetch_factor": 4}

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """Compute threads that leave the workers their cores; samples prepared by one thread in each worker."""
        threads = _threads_with(case, setting["num_workers"])
        found = [] if threads is None else [Change(strategy="threads", setting={"threads": threads})]
        if case.inspected("worker_threads").get("parallelism", 1.0) > MANY_THREADS:
            found.append(Change(strategy="worker_threads", setting={"threads": 1}))
        return found

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_loader(**setting)

    def recipe(self, setting: Setting) -> Recipe:
        options = ", ".join(f"{name}={value!r}" for name, value in setting.items())
        arguments = {f"dataloader_{name}": value for name, value in setting.items()}
        return Recipe(
            pytorch=f"DataLoader(..., {options})",
            lightning={"_note": f"in train_dataloader(): DataLoader(..., {options})"},
            transformers=arguments,
        )

    def inspect(self, live: Any) -> Setting:
        """Whether an IterableDataset reads ``get_worker_info``, as far as its source reports."""
        data = live.workload.train_data
        dataset = getattr(data, "dataset", data)
        try:
            source = inspect.getsource(type(dataset))
        except (OSError, TypeError):
            return {}
        return {"shares_work": "get_worker_info" in source or getattr(data, "worker_init_fn", None) is not None}


def so_many(case: Case, number: int) -> Setting:
    """Workers that stay from epoch to epoch, unless they would read what a dataset that changes held at their start."""
    return {"num_workers": number, "prefetch_factor": 2, "persistent_workers": not case.workload.dataset.changes}


def most_workers(case: Case, now: int) -> int:
    """As many workers as cores; more where samples wait for storage and leave the core to others."""
    cores = case.environment.cores or 2
    return max(min(4 * cores, 64) if waits(case) else cores, now, 1)


def waits(case: Case) -> bool:
    """Whether a sample waits for storage longer than it is worked at."""
    return seconds_of(case, "storage") > seconds_of(case, "preparation")


def _threads_with(case: Case, workers: int) -> int | None:
    """Compute threads that leave the workers their cores; None where that changes nothing."""
    cores = case.environment.cores
    if case.device != "cpu" or not cores or cores < 2:
        return None
    wanted = max(1, cores - workers)
    return wanted if wanted < compute_threads(case) else None
