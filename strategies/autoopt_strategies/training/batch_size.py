"""Batch size: fewer, larger steps, with the learning rate that belongs to them."""

from __future__ import annotations

from math import ceil, sqrt

from autoopt import Applies, Case, Change, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.input.workers import so_many
from autoopt_strategies.predictions import COMPUTE, batch_now, gain, memory_used, per_sample, ranged, seconds_of
from autoopt_strategies.trying import Setting, Settings, climb

LINEAR = frozenset({"SGD", "ASGD", "Rprop"})
WARMUP = 0.05
"""Share of the planned steps that the learning rate takes to reach its scaled value."""
FILLED = 0.9
"""Share of the device memory that a batch may be expected to take."""
LEAST_STEPS = 8
"""An epoch must keep this many steps."""


class BatchSize(Strategy):
    """Trains with a larger batch: doubling, then refining; the fastest to the target wins, not the largest.

    What it does: sets the batch and scales the learning rate: linearly for SGD, by the square root for the
        Adam family, with a linear warm-up; the user's schedule keeps its curve over samples.
    When it helps: small steps, whose launches and Python cost more than their arithmetic; devices with
        room; expensive optimizer steps.
    When it does not: a device that is busy already; a batch beyond the critical size, where each sample
        teaches less (McCandlish et al., "An empirical model of large-batch training", 2018).
    What it costs: another training path, so that time to the target decides, with more than one seed.
        BatchNorm sees other statistics. Memory grows with the batch.
    Source: Goyal et al., "Accurate, large minibatch SGD", 2017 (linear, warm-up); Malladi et al., "On the
        SDEs and scaling rules for adaptive gradient algorithms", NeurIPS 2022 (square root).
    """

    name = "batch_size"
    title = "larger batch"
    stages = frozenset({"collate", "copy", "forward", "backward", "optimizer", "host"})
    risk = Risk.TRAINING
    example = Example({"size": 32, "learning_rate_factor": 1.4142, "warmup_steps": 2}, losses=None)

    def applies(self, case: Case) -> Applies:
        facts = case.workload
        if facts.loader.custom_batch_sampler:
            return Applies.no("the loader's own batch sampler decides the batch")
        if facts.loader.own_class and case.sites is None:
            return Applies.no(f"a {facts.loader.own_class} makes its batches in a way of its own: their size stays")
        if not facts.batch_size:
            return Applies.no("the batch size is not known: the loader does not batch, or samples cannot be counted")
        if facts.optimizer.type == "LBFGS":
            return Applies.no("LBFGS has no rule for another batch")
        if case.plan.setting("accumulation") is not None:
            return Applies.no("accumulation cuts the batch into pieces: what they are is its affair")
        if self.most(case) > batch_now(case)[0]:
            return Applies.yes()
        used, samples = memory_used(case), facts.train_samples
        if used and used > FILLED / 2:
            return Applies.no(f"the device memory is {used:.0%} full already")
        return Applies.no(
            f"{samples} training samples leave fewer than {LEAST_STEPS} steps in an epoch of a larger batch"
        )

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Costs of each step are paid less often; whether samples teach as much, only training reports."""
        if case.pipeline is None or not case.workload.batch_size:
            return None
        times = setting["size"] / batch_now(case)[0]
        factor = per_sample(case, times)
        if factor is None:
            return None
        changed = {name: seconds_of(case, name) * factor for name in COMPUTE}
        changed |= {name: seconds_of(case, name) / times for name in ("optimizer", "host")}
        estimate = gain(case, changed)
        if estimate is None:
            return None
        # Larger products run nearer to their peak, which launches alone do not show.
        stages = [case.pipeline.stage(name) for name in COMPUTE]
        half_way = {
            stage.name: min(changed[stage.name], (changed[stage.name] + stage.ceiling_seconds) / 2)
            for stage in stages
            if stage is not None and stage.ceiling_seconds is not None
        }
        room = gain(case, {**changed, **half_way})
        high = max(estimate.high, room.high if room is not None else estimate.high)
        return ranged(estimate, estimate.value, min(1.0, estimate.low), high)

    def settings(self, case: Case) -> Settings:
        now, _ = batch_now(case)
        least = now + max(1, now // 2)
        yield from climb(2 * now, least, self.most(case), lambda size: self.setting_of(case, size))

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """Where the device gets faster than the input side, workers go with it."""
        if case.pipeline is None or case.device == "cpu" or case.plan.setting("workers") is not None:
            return []
        cores = case.environment.cores or 1
        alone = self.predict(case, setting)
        if alone is None or alone.value > 1.02 or cores < 2 or case.loader_option("num_workers"):
            return []
        return [Change(strategy="workers", setting=so_many(case, min(4, cores)))]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_batch(**setting)

    def recipe(self, setting: Setting) -> Recipe:
        factor, steps = setting["learning_rate_factor"], setting["warmup_steps"]
        note = (
            f"multiply the learning rate by {factor:g}, warm up linearly over {steps} steps; BatchNorm sees this batch"
        )
        return Recipe.noted(
            f"batch_size = {setting['size']}\nlr = lr * {factor:g}  # linear warm-up over {steps} steps",
            f"DataLoader(..., batch_size={setting['size']}); {note}",
            transformers={"per_device_train_batch_size": setting["size"], "warmup_steps": steps, "_note": note},
        )

    def setting_of(self, case: Case, size: int) -> Setting:
        times = size / (case.workload.batch_size or size)
        factor = times if case.workload.optimizer.type in LINEAR else sqrt(times)
        warms_up = case.planned_steps and times > 1 and case.sites is None  # a script has no place for a warm-up
        steps = ceil(WARMUP * (case.planned_steps or 0) / times) if warms_up else 0
        return {"size": size, "learning_rate_factor": round(factor, 4), "warmup_steps": steps}

    def most(self, case: Case) -> int:
        """The largest batch that leaves enough steps in an epoch and is expected to fit."""
        now, samples = batch_now(case)[0], case.workload.train_samples
        most = 64 * now if samples is None else samples // (LEAST_STEPS * case.workload.accumulation)
        used = memory_used(case)
        if used:
            most = min(most, int(now * FILLED / used))
        failed = [
            int(trial.setting.get("size", now))
            for trial in case.trials
            if trial.strategy == self.name and trial.reason.startswith(("out_of_memory", "memory:"))
        ]
        return min([most, *(size - 1 for size in failed)])
