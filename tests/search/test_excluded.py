"""Strategies that bring nothing beside each other stand in no plan together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autoopt.options import Options
from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from autoopt.search.baseline import benchmark, described
from autoopt.search.planner import Choice, build_queue, candidate_plan
from autoopt.search.screening import combined
from autoopt.testing.fakes import NoiseModel
from autoopt.testing.strategies import sample_case
from simulated import World, product, strategy

REGISTRY = load_strategies()
TRIMMED, PACKED = (Change(strategy=name, setting={"multiple": 8}) for name in ("trim_padding", "packing"))


def test_one_takes_the_place_of_what_it_excludes() -> None:
    threads = Change(strategy="threads", setting={"threads": 1})
    plan = candidate_plan(REGISTRY, Plan(changes=(TRIMMED, threads)), (PACKED,))
    assert plan.names() == ("packing", "threads")
    assert candidate_plan(REGISTRY, Plan(changes=(PACKED,)), (TRIMMED,)).names() == ("trim_padding",)


def test_what_it_excludes_is_not_tried_on_it() -> None:
    case = dataclasses.replace(sample_case(), plan=Plan(changes=(PACKED,)))
    skipped = {item.strategy.name: item.reason for item in build_queue(REGISTRY, case, Choice(), 1.01).skipped}
    assert skipped["trim_padding"] == "it has no effect in addition to packing"
    on_trimmed = dataclasses.replace(sample_case(), plan=Plan(changes=(TRIMMED,)))
    skipped = {item.strategy.name: item.reason for item in build_queue(REGISTRY, on_trimmed, Choice(), 1.01).skipped}
    assert "has no effect in addition" not in skipped.get("packing", "")


def test_a_stack_holds_the_better_of_two_that_exclude_each_other(tmp_path: Path) -> None:
    known = (strategy("one", excludes=frozenset({"two"})), strategy("two"), strategy("three"))
    world = World(
        tmp_path, *known, speed=product(dict.fromkeys(("one", "two", "three"), 1.1)), noise=NoiseModel("quiet")
    )
    described(world.context, Options(budget_seconds=world.budget))
    benchmark(world.context)
    registry = world.context.runner.registry

    def seen(name: str) -> Any:
        changes = (Change(strategy=name),)
        return SimpleNamespace(
            candidate=SimpleNamespace(strategy=registry[name], changes=changes, parts={name: (name, None)}),
            gain=0.1,
            error=0.01,
        )

    found = combined(world.context, [seen("two"), seen("one"), seen("three")])
    assert found is not None
    assert {change.strategy for change in found.changes} == {"two", "three"}
    assert set(found.plan.names()) == {"two", "three"}


def test_built_in_exclusions_name_strategies_that_there_are() -> None:
    assert all(name in REGISTRY for source in REGISTRY.sources for name in source.strategy.excludes)
