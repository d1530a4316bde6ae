"""The conformance test of a strategy: inherit it, name the strategy, and run pytest.

::

    from autoopt.testing import StrategyTestCase
    from my_package.my_module import MyStrategy

    class TestMyStrategy(StrategyTestCase):
        strategy = MyStrategy()
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import json
from collections.abc import Generator
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from autoopt.records import (
    Environment,
    Estimate,
    JsonDict,
    Objective,
    Operator,
    Peaks,
    Plan,
    Record,
    Resource,
    Round,
    Simulation,
    Sites,
    Stage,
)
from autoopt.records.facts import DatasetFacts, LoaderFacts, ModelFacts, OptimizerFacts, TensorFacts, WorkloadFacts
from autoopt.registry import Registry, Source, load_strategies
from autoopt.setup import Setup
from autoopt.strategy import MOST_SETTINGS, Applies, Case, Example, Recipe, Risk, Strategy, check_strategy
from autoopt.testing.method_cards import method_card

TRANSFORMS = ("dataset", "model", "loss", "optimizer", "step", "scheduler", "collate", "sampler")


def sample_case(device: str = "cpu", **facts: Any) -> Case:
    """A case with everything measured: a small convolution net on a machine of eight cores.

    Args:
        device: ``cpu`` or ``cuda:0``.
        facts: fields of the ``WorkloadFacts`` to be otherwise.
    """
    from autoopt.simplify.pipeline import Pipeline

    return Case(
        workload=sample_facts(**facts),
        environment=_environment(device),
        objective=Objective(
            metric="accuracy", mode="max", target=0.9, target_source="user", tolerance=0.005, min_gain=0.01
        ),
        pipeline=Pipeline(_round(device)),
        seconds_left=7200.0,
        planned_steps=100_000,
    )


def example_of(strategy: Strategy) -> Example:
    """Declaration of a strategy for its tests; an empty one where it declares nothing."""
    return strategy.example or Example()


def example_case(strategy: Strategy) -> Case:
    """The case in which a strategy says that it applies."""
    example = example_of(strategy)
    case = sample_case(example.device, **example.facts, inspected={strategy.name: example.inspected})
    sites = None if example.sites is None else Sites.model_validate(example.sites)
    return dataclasses.replace(case, setup=example.setup, processes=example.processes, fits=example.fits, sites=sites)


def sample_facts(**changed: Any) -> WorkloadFacts:
    """Facts of a small workload; ``changed`` replaces fields, a dict those of a record within."""
    facts = WorkloadFacts(
        spec="sample:build",
        name="sample",
        parameters=100_000,
        train_samples=50_000,
        batch_size=64,
        max_steps=100_000,
        steps_per_epoch=782,
        dataset=DatasetFacts(type="Images", map_style=True, samples=50_000, deterministic=True, sample_bytes=12_296),
        loader=LoaderFacts(shuffle=True),
        model=ModelFacts(
            type="Net",
            parameters=100_000,
            trainable_parameters=100_000,
            parameter_bytes=400_000,
            modules={"Net": 1, "Conv2d": 8, "ReLU": 8, "Linear": 1},
            repeated_blocks=("blocks.0", "blocks.1", "blocks.2"),
            dtypes=("float32",),
            has_conv2d=True,
        ),
        optimizer=OptimizerFacts(type="AdamW", module="torch.optim.adamw", options={"lr": 1e-3, "fused": None}),
        batch=(TensorFacts(path="[0]", shape=(64, 3, 32, 32), dtype="float32", bytes=786_432),),
        batch_bytes=786_944,
        static_shapes=True,
        valid_samples=10_000,
        has_evaluate=True,
        available_ram_bytes=64 << 30,
    )
    changed = {name: _merged(getattr(facts, name), value) for name, value in changed.items()}
    return facts.model_copy(update=changed)


def _merged(before: Any, value: Any) -> Any:
    return before.model_copy(update=value) if isinstance(before, Record) and isinstance(value, dict) else value


def _environment(device: str) -> Environment:
    return Environment(
        python="3.12.0",
        torch="2.6.0",
        device=device,
        device_memory_bytes=80 << 30,
        cores=8,
        threads=8,
        ram_bytes=128 << 30,
        compiler="c++",
        peaks=Peaks(
            matmul_fp32_flops_per_second=5e13,
            matmul_tf32_flops_per_second=2e14,
            matmul_bf16_flops_per_second=4e14,
            matmul_fp16_flops_per_second=4e14,
            memory_bytes_per_second=1e11,
            copy_pageable_to_device_bytes_per_second=1e10,
            copy_pinned_to_device_bytes_per_second=2.5e10,
            launch_seconds=5e-6,
        ),
    )


def _round(device: str) -> Round:
    def stage(name: str, resource: Resource, seconds: float, ceiling: float) -> Stage:
        return Stage(name=name, resource=resource, seconds=seconds, ceiling_seconds=ceiling, gap=seconds / ceiling)

    where = Resource.DEVICE
    stages = [
        stage("storage", Resource.STORAGE, 0.02, 0.01),
        stage("preparation", Resource.WORKER, 0.1, 0.08),
        stage("collate", Resource.WORKER, 0.004, 0.002),
        *([] if device == "cpu" else [stage("copy", Resource.LINK, 0.01, 0.004)]),
        stage("forward", where, 0.03, 0.01),
        stage("backward", where, 0.06, 0.02),
        stage("optimizer", where, 0.01, 0.002),
        stage("host", Resource.HOST, 0.002, 0.001),
        stage("evaluate", where, 0.02, 0.01),
        stage("checkpoint", where, 0.01, 0.01),
    ]
    return Round(
        index=0,
        plan=Plan(),
        step_seconds=0.236,
        stages=tuple(stages),
        simulation_error=0.03,
        operators=(
            Operator(name="aten::convolution", seconds=0.05, kind="matmul", ceiling_seconds=0.02),
            Operator(name="aten::bmm", seconds=0.01, kind="matmul", ceiling_seconds=0.005),
            Operator(name="aten::_softmax", seconds=0.01, kind="elementwise", ceiling_seconds=0.004),
            Operator(name="aten::relu", seconds=0.02, kind="elementwise", ceiling_seconds=0.005),
        ),
        simulation=Simulation(
            device=device.split(":")[0],
            cores=8,
            threads=8,
            compute_by_threads={1: 0.5, 4: 0.15, 8: 0.1},
            launches=400,
            memory_used=None if device == "cpu" else 0.75,  # a CPU without a limit does not tell
        ),
    )


def example_settings(strategy: Strategy, case: Case) -> list[JsonDict]:
    """Settings that a strategy would try here; a generator is notified that none was kept."""
    settings = strategy.settings(case)
    if not isinstance(settings, Generator):
        return [dict(setting) for setting in islice(settings, MOST_SETTINGS)]
    found: list[JsonDict] = []
    try:
        found.append(dict(next(settings)))
        while len(found) < MOST_SETTINGS:
            found.append(dict(settings.send(None)))
    except StopIteration:
        pass
    return found


class StrategyTestCase:
    """Tests that every strategy passes, driven by its ``example``; without one by ``sample_case`` and ``settings``.

    Attributes:
        strategy: the one under test.
    """

    strategy: ClassVar[Strategy]

    def case(self) -> Case:
        """A case in which the strategy applies."""
        return example_case(self.strategy)

    def workload(self) -> Any:
        """A small workload on the CPU that the strategy is tried on."""
        return tiny_workload()

    def _settings(self) -> list[JsonDict]:
        example = self.strategy.example
        return [example.setting] if example is not None else example_settings(self.strategy, self.case())

    def test_it_is_declared_well(self) -> None:
        """Name, stages, risk; a docstring, which is its method card; a registry that takes it."""
        found = check_strategy(self.strategy)
        assert not found, "; ".join(found)
        assert isinstance(self.strategy.risk, Risk)
        assert inspect.getdoc(type(self.strategy)), "a strategy's docstring says when it helps and when it does not"
        registry = load_strategies()
        if self.strategy.name not in registry:
            registry = Registry([*registry.sources, Source(self.strategy, "under test")])
        assert self.strategy.name in registry

    def test_its_docstring_is_a_method_card(self) -> None:
        """A summary, and the five headings of ``autoopt.testing.method_cards``."""
        assert method_card(self.strategy)

    def test_it_says_whether_it_applies(self) -> None:
        """Yes in its case; every no, on either device and without a pipeline, comes with a reason."""
        own = self.strategy.applies(self.case())
        assert bool(own) is example_of(self.strategy).searched, own.reason
        for case in (sample_case("cpu"), sample_case("cuda:0"), sample_case("mps")):
            for given in (case, dataclasses.replace(case, pipeline=None, planned_steps=None, seconds_left=None)):
                answer = self.strategy.applies(given)
                assert isinstance(answer, Applies)
                assert answer or answer.reason, "a no needs a reason that a user understands"

    def test_its_settings_are_plain_data(self) -> None:
        """At least one; each the same after JSON, which the journal and plan.json are made of."""
        settings = example_settings(self.strategy, self.case())
        assert settings, "settings() gives nothing to try in a case where it applies"
        for setting in settings:
            assert json.loads(json.dumps(setting)) == setting

    def test_its_prediction_is_an_estimate_or_none(self) -> None:
        bare = dataclasses.replace(self.case(), pipeline=None)
        for setting in self._settings():
            for case in (self.case(), bare):
                predicted = self.strategy.predict(case, setting)
                assert predicted is None or (isinstance(predicted, Estimate) and predicted.low > 0)

    def test_what_saves_more_memory_costs_more_and_leaves_the_batch(self) -> None:
        """``memory_savings``: settings in their order, each another setup with the batch of a step as it is."""
        for fits in (True, False):
            case = dataclasses.replace(self.case(), fits=fits)
            found = list(islice(self.strategy.memory_savings(case), MOST_SETTINGS))
            costs = [cost for cost, _ in found]
            assert costs == sorted(costs), "what comes later must cost more"
            assert all(cost >= 0 for cost in costs)
            for _, setting in found:
                assert json.loads(json.dumps(setting)) == setting
                batch = self.strategy.apply(case.setup, setting).batch
                size, count = batch.size or case.workload.batch_size, batch.accumulation or case.workload.accumulation
                whole = (case.workload.batch_size or 0) * case.workload.accumulation
                assert (size or 0) * count == whole, "the batch of an optimizer step must stay what it is"

    def test_its_companions_are_changes(self) -> None:
        for setting in self._settings():
            for change in self.strategy.companions(self.case(), setting):
                assert change.strategy != self.strategy.name
                assert json.loads(json.dumps(change.setting)) == change.setting

    def test_apply_is_pure(self) -> None:
        """The same setup in, the same out; neither setup nor setting is changed; and something happens."""
        for setting in self._settings():
            setup, given = Setup(), copy.deepcopy(setting)
            first = self.strategy.apply(setup, given)
            assert isinstance(first, Setup)
            assert setup == Setup(), "apply() changed the setup that it was given"
            assert given == setting, "apply() changed the setting that it was given"
            assert first == self.strategy.apply(Setup(), copy.deepcopy(setting)), "apply() is not the same twice"
            assert first != Setup(), "apply() changes nothing"

    def test_its_transforms_have_source(self) -> None:
        """Module-level functions, partials of them or frozen dataclasses: the exporter prints them."""
        for setting in self._settings():
            setup = self.strategy.apply(Setup(), setting)
            for part in TRANSFORMS:
                for transform in getattr(setup, part, ()):
                    assert _has_source(transform), f"{transform!r} is not defined at the top level of a module"

    def test_its_recipe_is_data(self) -> None:
        for setting in self._settings():
            recipe = self.strategy.recipe(setting)
            assert isinstance(recipe, Recipe)
            for way in (recipe.lightning, recipe.transformers, recipe.accelerate):
                assert way is None or json.loads(json.dumps(way)) == way

    def test_a_few_steps_train_with_it(self) -> None:
        """On the CPU, on a tiny workload; every loss is finite."""
        import math

        import pytest

        if not example_of(self.strategy).trains:
            pytest.skip("it does not train on this machine")
        for setting in self._settings()[:1]:
            losses = train_few_steps(self.workload(), self.strategy.apply(Setup(), setting))
            assert all(math.isfinite(loss) for loss in losses)

    def test_a_model_that_it_has_changed_is_saved_as_the_users(self) -> None:
        """A script that saves its whole model can load it again, with its own classes alone."""
        import torch

        if self.strategy.risk is Risk.MODEL or not example_of(self.strategy).trains:
            return
        model, buffer = self.workload().model, io.BytesIO()
        kinds: list[Any] = [*{type(module) for module in model.modules()}]
        for transform in self.strategy.apply(Setup(), self._settings()[0]).model:
            model = transform(model)
        torch.save(model, buffer)
        buffer.seek(0)
        with torch.serialization.safe_globals(kinds):
            loaded = torch.load(buffer, weights_only=True)
        assert loaded.state_dict().keys() == model.state_dict().keys()

    def test_what_it_calls_switchable_is_taken_on_and_put_off(self) -> None:
        """A training under way takes its first setting on, trains on, and has the weights that it had before."""
        if self.strategy.switchable and example_of(self.strategy).trains:
            setup = self.strategy.apply(Setup(), self._settings()[0])
            assert switched_on_and_off(self.workload(), setup)


def _has_source(transform: Any) -> bool:
    if isinstance(transform, partial):
        return _has_source(transform.func)
    if inspect.isfunction(transform):
        return "<" not in transform.__qualname__
    return dataclasses.is_dataclass(transform) and "<" not in type(transform).__qualname__


def train_few_steps(workload: Any, setup: Setup, steps: int = 4) -> list[float]:
    """The losses of the first steps of a workload under a setup, on the CPU."""
    from autoopt.benchmark.seeding import seed_everything
    from autoopt.benchmark.training import Training

    seed_everything(0)
    training = Training(workload, setup, device="cpu", seed=0)
    try:
        return [float(training.step(training.next())) for _ in range(steps)]
    finally:
        training.close()


def switched_on_and_off(workload: Any, setup: Setup) -> bool:
    """Whether a training that took a setup on for two steps has the weights that it had before, on the CPU."""
    import torch

    from autoopt.benchmark.seeding import seed_everything
    from autoopt.benchmark.switching import Switching
    from autoopt.benchmark.training import Training

    seed_everything(0)
    training = Training(workload, Setup(), device="cpu", seed=0)
    try:
        training.step(training.next())
        switching, before = Switching(training), [p.detach().clone() for p in training.model.parameters()]
        with switching.to(setup):
            moved = [float(training.step(training.next())) for _ in range(2)]
        after = list(training.model.parameters())
        return len(moved) == 2 and all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    finally:
        training.close()


def tiny_workload(width: int = 8) -> Any:
    """A small convolution net with two equal blocks on generated images; the same weights every time of a width."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from autoopt.workload import Workload

    torch.manual_seed(0)
    images = torch.randn(64, 3, 8, 8)
    labels = (images.mean((1, 2, 3)) > 0).long()
    block = [nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(2)]
    return Workload(
        model=nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.Sequential(*block), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(width, 2),
        ),
        train_data=TensorDataset(images, labels),
        batch_size=16,
        loss=_cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        max_steps=16,
    )  # fmt: skip


def _cross_entropy(model: Any, batch: Any) -> Any:
    from torch.nn import functional as F

    return F.cross_entropy(model(batch[0]), batch[1])
