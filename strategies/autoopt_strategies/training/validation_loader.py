"""Validation loader: validation batches prepared by worker processes of their own."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, kept, seconds_of, tried_gain

LEAST_SHARE = 0.01
SAMPLES = 24


class ValidationLoader(Strategy):
    """Prepares validation batches in worker processes that stay alive from evaluation to evaluation.

    What it does: sets ``num_workers`` and ``persistent_workers`` of the validation loader alone.
    When it helps: reading and preparing the validation samples takes a good part of the run, while the training
        loader has workers, or needs none.
    When it does not: rare evaluations; validation samples that are slices of memory.
    What it costs: memory of each worker. Metrics stay what they are; since training steps are no faster, time to the
        target decides.
    Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """

    name = "validation_loader"
    title = "workers for validation"
    stages = frozenset({"evaluate"})
    risk = Risk.TRAINING
    after = frozenset({"workers"})
    example = Example(
        {"num_workers": 1, "persistent_workers": True}, inspected={"num_workers": 0, "sample_seconds": 1e-2}
    )

    def applies(self, case: Case) -> Applies:
        facts, found = case.workload, case.inspected(self.name)
        if not facts.has_evaluate or not facts.valid_samples:
            return Applies.no("there is no evaluation of a known length")
        if found.get("num_workers") or case.setup.loader.get("num_workers"):
            return Applies.no("validation batches are prepared by workers already")
        if "sample_seconds" not in found:
            return Applies.no(found.get("reason") or "what reading a validation sample takes is not known")
        if case.pipeline is not None and case.pipeline.step_seconds:
            share = self._reading(case) / case.pipeline.step_seconds
            if share < LEAST_SHARE:
                return Applies.no(f"reading validation samples takes {share:.1%} of the time")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Reading is shared out among the workers; the rest of an evaluation stays."""
        evaluating = seconds_of(case, "evaluate")
        if not evaluating:
            return None
        workers = min(setting["num_workers"], case.environment.cores or 1)
        return tried_gain(case, 1.0 - self._reading(case) * (1.0 - 1.0 / (workers + 1)) / evaluating, ("evaluate",))

    def settings(self, case: Case) -> Settings:
        most = max(1, min(4, case.environment.cores or 1))
        if kept((yield {"num_workers": most, "persistent_workers": True})) and most > 1:
            yield {"num_workers": most // 2, "persistent_workers": True}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_evaluation(**setting)

    def recipe(self, setting: Setting) -> Recipe:
        options = ", ".join(f"{name}={value!r}" for name, value in setting.items())
        code = f"valid_loader = DataLoader(valid_data, ..., {options})"
        note = {"_note": code}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)

    def inspect(self, live: Any) -> Setting:
        """Workers that validation has, and the seconds that one of its samples takes."""
        from time import perf_counter

        data = live.workload.valid_data
        dataset = getattr(data, "dataset", data)
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
            return {"reason": "validation samples are not read by their index"}
        indices = [i * (len(dataset) - 1) // max(1, SAMPLES - 1) for i in range(SAMPLES)]
        began = perf_counter()
        for index in indices:
            dataset[index]
        return {"num_workers": getattr(data, "num_workers", 0), "sample_seconds": (perf_counter() - began) / SAMPLES}

    def _reading(self, case: Case) -> float:
        """Seconds of reading validation samples for each training step; at most the evaluation's."""
        facts = case.workload
        every = case.setup.cadence.evaluate_every or facts.evaluate_every or facts.steps_per_epoch or 1
        seconds = case.inspected(self.name)["sample_seconds"] * (facts.valid_samples or 0) / every
        return float(min(seconds, seconds_of(case, "evaluate")))
