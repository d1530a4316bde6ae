"""Worker threads: libraries inside loader workers compute with one thread each."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from time import perf_counter, process_time, thread_time
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.input.batches import dataset_of
from autoopt_strategies.input.probes import spread
from autoopt_strategies.input.workers import MANY_THREADS
from autoopt_strategies.predictions import declared, gain, seconds_of
from autoopt_strategies.trying import Setting

IDLE = 0.05
"""Share of its seconds that a thread counts as working at the least, for one that only waits."""
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


@dataclass(frozen=True)
class LimitThreads:
    """``worker_init_fn`` after which OpenCV, BLAS, OpenMP, torch and tokenizers use so many threads in this process."""

    threads: int = 1

    def __call__(self, worker: int) -> None:
        """Limits the libraries that are loaded, and by their variables those that will be."""
        import torch

        number, several = self.threads, "false" if self.threads == 1 else "true"
        os.environ.update(dict.fromkeys(VARIABLES, str(number)), TOKENIZERS_PARALLELISM=several)
        torch.set_num_threads(number)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(0 if number == 1 else number)  # 0: no pool of threads at all
        with contextlib.suppress(ImportError):
            from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

            threadpool_limits(limits=number)


def parallelism(dataset: Any, indices: list[int]) -> float:
    """Threads that work at a sample: CPU seconds of the process over those of the thread that reads it.

    Unlike CPU seconds over seconds it does not depend on who else uses the cores. Torch has one thread, as in a worker.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        dataset[indices[0]]  # what is imported or opened by the first one
        began, mine, all_of_us = perf_counter(), thread_time(), process_time()
        for index in indices:
            dataset[index]
        mine, all_of_us = thread_time() - mine, process_time() - all_of_us
        return 1.0 + max(0.0, all_of_us - mine) / max(mine, IDLE * (perf_counter() - began), 1e-9)
    finally:
        torch.set_num_threads(before)


class WorkerThreads(Strategy):
    """Lets the libraries that prepare samples use one thread in each loader worker.

    What it does: a ``worker_init_fn``, called after yours, that sets the threads of OpenCV, BLAS, OpenMP, torch
        and tokenizers to 1.
    When it helps: samples are prepared by OpenCV, NumPy or a tokenizer, each of which starts a thread for every
        core in every worker: eight workers on eight cores run 64 threads.
    When it does not: Python and Pillow, which use one thread; a single worker on many cores.
    What it costs: nothing. Sums of BLAS over another number of threads may differ in the last bits.
    Source: https://github.com/pytorch/pytorch/issues/1355, https://github.com/joblib/threadpoolctl
    """

    name = "worker_threads"
    title = "one thread in each loader worker"
    stages = frozenset({"storage", "preparation", "collate"})
    risk = Risk.NUMERIC
    after = frozenset({"workers"})
    example = Example({"threads": 1}, setup=Setup().with_loader(num_workers=4), inspected={"parallelism": 3.5})

    def applies(self, case: Case) -> Applies:
        if not case.loader_option("num_workers"):
            return Applies.no("there are no loader workers")
        ratio = case.inspected(self.name).get("parallelism")
        if ratio is None:
            return Applies.no("how many threads prepare a sample is not known")
        if ratio < MANY_THREADS:
            return Applies.no(f"a sample is prepared by {ratio:.1f} threads (measured): one already")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At the very best cores that were asked for several times over are asked for once."""
        ratio = case.inspected(self.name).get("parallelism", 1.0)
        cores, workers = case.environment.cores or 1, case.loader_option("num_workers") or 1
        crowding = max(1.0, min(ratio, ratio * workers / cores))
        return declared(gain(case, {"preparation": seconds_of(case, "preparation") / crowding}))

    def settings(self, case: Case) -> list[Setting]:
        return [{"threads": 1}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_loader(worker_init_fn=LimitThreads(setting["threads"]))

    def recipe(self, setting: Setting) -> Recipe:
        number = setting["threads"]
        calls = f"cv2.setNumThreads({0 if number == 1 else number})", f"threadpoolctl.threadpool_limits({number})"
        lines = ["def one_thread(worker):", *(f"    {call}" for call in calls)]
        code = "\n".join([*lines, "DataLoader(..., worker_init_fn=one_thread)"])
        return Recipe.noted(code, f"worker_init_fn of the DataLoader: {'; '.join(calls)}")

    def inspect(self, live: Any) -> Setting:
        """How many threads work at a sample."""
        dataset = dataset_of(live.workload)
        indices = spread(dataset)
        return {"parallelism": parallelism(dataset, indices)} if indices else {}
