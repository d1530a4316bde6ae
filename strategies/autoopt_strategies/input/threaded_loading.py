"""Threaded loading: the samples of a batch are read by threads, for samples that wait or release the GIL."""

from __future__ import annotations

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.common import Setting, Settings, climb, gain, seconds_of
from autoopt_strategies.input.cache import PREPARED


class ThreadedLoading(Strategy):
    """Reads the samples of each batch at the same time, in threads.

    What it does: gives the dataset ``__getitems__`` over a pool of threads, in the training process or in
        each worker.
    When it helps: samples wait for storage or a network; decoders that release the GIL.
    When it does not: Python transforms hold the GIL and get no faster.
    What it costs: the dataset's ``__getitem__`` must bear several threads at a time. Refused where samples
        are random, since threads would draw the numbers in an order that changes from run to run.
    Source: https://docs.python.org/3/library/concurrent.futures.html#threadpoolexecutor
    """

    name = "threaded_loading"
    title = "samples read by threads"
    stages = frozenset({"storage", "preparation"})
    risk = Risk.EXACT
    example = Example({"threads": 2})

    def applies(self, case: Case) -> Applies:
        facts = case.workload.dataset
        if not facts.map_style:
            return Applies.no(f"{facts.type} is an IterableDataset, read one sample after the other")
        if facts.has_getitems or case.plan.setting("batch_fetch") is not None:
            return Applies.no("the dataset gives whole batches already")
        if not case.workload.batch_size:
            return Applies.no("the loader does not batch")
        if facts.deterministic is not True:
            return Applies.no("samples draw random numbers, which threads would draw in another order in every run")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Waiting is shared out among the threads; Python holds the GIL and is not."""
        return gain(case, {"storage": seconds_of(case, "storage") / setting["threads"]})

    def settings(self, case: Case) -> Settings:
        yield from climb(4, 2, min(32, case.workload.batch_size or 4), lambda number: {"threads": number})

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(Wrap(f"{PREPARED}:ThreadedSamples", (("threads", setting["threads"]),)))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            f"pool = ThreadPoolExecutor({setting['threads']})\n"
            "def __getitems__(self, indices):  # of the dataset\n    return list(pool.map(self.__getitem__, indices))"
        )
        note = {"_note": "give the dataset __getitems__ that reads its samples in a pool of threads"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)
