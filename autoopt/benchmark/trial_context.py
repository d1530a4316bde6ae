"""A workload alive in its trial's process: built, set up, and given to the tasks."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property, partial
from time import perf_counter
from typing import Any

from autoopt.benchmark import affinity
from autoopt.benchmark.device import Device, open_device
from autoopt.benchmark.distributed.group import Group, device_of, join, keep_to_cores, variables
from autoopt.benchmark.fingerprint import same_draws
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.seeding import disturb, seed_everything
from autoopt.benchmark.switching import Switching
from autoopt.benchmark.training import Training
from autoopt.benchmark.whatif import freed_pages, ratio_with
from autoopt.loading import importing, validation
from autoopt.records import JsonDict
from autoopt.records.facts import WorkloadFacts
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry
from autoopt.setup import Setup
from autoopt.workload import Workload


class TrialContext:
    """The first argument of every task.

    Args:
        training: that is under way already, such as a script's, and the seconds until it was.

    Attributes:
        build_seconds, setup_seconds: what importing and building, and assembling, took.
        inspected: what strategies found in it, by name; part of the facts.
        cores_at_start: cores that the process could use before the workload was imported.
        under_way: a training that goes on in legs (``autoopt.benchmark.run``).
        serving: a model that answers requests (``autoopt.latency.tasks``).
    """

    def __init__(
        self,
        spec: TrialSpec,
        registry: Registry,
        *,
        training: tuple[LiveTraining, float] | None = None,
    ) -> None:
        self.spec = spec
        self.registry = registry
        self.seed = spec.seed
        self.build_seconds = self.setup_seconds = 0.0
        self.inspected: dict[str, JsonDict] = {}
        self.under_way: Any = None
        self.serving: Any = None
        self._training: LiveTraining | None = None
        self.setup: Setup
        self.cores_at_start: tuple[int, ...]
        if training is not None:
            running, self.build_seconds = training
            self._training = running
            self.workload, self.setup = running.workload, running.setup
            self.group, self.device, self.cores_at_start = running.group, running.device, affinity.AT_START
            return
        place = spec.rank
        if place is not None:
            os.environ.update(variables(place))
            keep_to_cores(registry.fold(spec.plan), place)
        self.cores_at_start = affinity.cores()
        self.workload = self._build()
        self.group = join(place, self.device.torch) if place is not None else Group()
        self.setup = registry.fold(spec.plan, self.workload.setup)

    def _build(self) -> Workload:
        """The user's workload, from their seed on."""
        began = perf_counter()
        if self.spec.same_draws:
            same_draws()
        seed_everything(self.seed)
        build = importing.load(self.spec.workload, self.spec.search_path)
        _ = self.device  # only now, since the module may say which devices are to be seen; what it builds is on it
        workload = validation.build(build)
        if self.spec.disturbed:
            disturb(workload.model, self.spec.disturbed, self.seed, 0)
        self.build_seconds = perf_counter() - began
        return workload

    @cached_property
    def device(self) -> Device:
        """Where it trains, opened on first use: after that, ``CUDA_VISIBLE_DEVICES`` says nothing any more."""
        name, place = self.spec.device, self.spec.rank
        return open_device(name if place is None else device_of(name, place.rank), self.spec.memory_limit_bytes)

    @property
    def training(self) -> LiveTraining:
        """The assembled run, made on first use."""
        if self._training is None:
            began = self.device.now()
            self._training = Training(self.workload, self.setup, device=self.device, seed=self.seed, group=self.group)
            self.setup_seconds = self.device.now() - began
        return self._training

    def take(self, make: Callable[[], Any]) -> None:
        """Goes on with another training, in place of the assembled one."""
        self.close()
        began = perf_counter()
        self._training = make()
        self.build_seconds, self.setup_seconds = perf_counter() - began, 0.0

    def from_start(self) -> LiveTraining:
        """A run that has trained no steps, built afresh where need be; a script's at the end of its first step."""
        if self.training.steps and self.training.restarts:
            self.close()
            self.workload = self._build()
            self.setup = self.registry.fold(self.spec.plan, self.workload.setup)
        return self.training

    @cached_property
    def switching(self) -> Switching:
        """Takes other setups on and off the run, as it stands when this is first asked for."""
        return Switching(self.training)

    @cached_property
    def facts(self) -> WorkloadFacts:
        facts = self.training.facts(self.spec.workload)
        lost = affinity.lost_affinity_warning(self.cores_at_start, "importing or building the workload")
        return facts.model_copy(update={"warnings": (*facts.warnings, lost)}) if lost else facts

    @property
    def ratio_with(self) -> Callable[..., float | None]:
        """Forward and backward with a change over without, tried on copies (``benchmark.whatif.ratio_with``)."""
        return partial(ratio_with, self.training)

    def freed_pages(self) -> int | None:
        """The most page faults of a step (``benchmark.whatif.freed_pages``)."""
        return freed_pages(self.training)

    @property
    def target(self) -> float | None:
        """The target's value: the trial's where it overrides the workload's."""
        own = self.workload.target.value if self.workload.target is not None else None
        return own if self.spec.target is None else self.spec.target

    def close(self) -> None:
        if self._training is not None:
            self._training.close()
        self._training = None
        self.device.empty_cache()
