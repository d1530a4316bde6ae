"""Measures one case of prediction.py: documents alone, from which the table computes what is predicted."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch

from autoopt.benchmark.cputime import cpu_times, foreign_cores
from autoopt.benchmark.training import Training
from autoopt.options import Options
from autoopt.records import Change as Item
from autoopt.records import Peaks, Plan
from autoopt.registry import Registry, load_strategies
from autoopt.search.baseline import objective_of
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.contest import compare
from autoopt.search.planner import candidate_plan
from autoopt.search.state import SearchState
from autoopt.setup import Setup
from autoopt.simplify.analyse import build_round
from autoopt.simplify.drift import running_block, whole
from autoopt.simplify.peaks import measured_peaks
from autoopt.simplify.stage_profile import RAMP_SECONDS, Description, StageProfile, describe, profile_stages
from autoopt.simplify.tasks import measure_stages
from autoopt.strategy import Case
from benchmarks.prediction.cases import CHANGES, WORKLOADS, Change
from benchmarks.prediction.planted import Plant, plants
from benchmarks.runners import runner_of

BOX = 9.0
BLOCK_SECONDS = 0.5
RULE = Rule(max_seconds=45.0, until_error=0.03, min_pairs=3, max_pairs=3, warm_up_seconds=8.0)
"""Three pairs of processes, which a rule with ``until_error`` waits for: two leave a factor of two open."""
COMPILING = RULE.model_copy(update={"max_seconds": 150.0, "warm_up_seconds": 120.0, "min_pairs": 2, "max_pairs": 2})


def measure(name: str, done: dict[str, Any]) -> dict[str, Any]:
    """One case's document.

    Args:
        name: of the case.
        done: documents of the cases before it.
    """
    kind, rest = name.split(":", 1)
    if kind == "plant":
        return plant(next(item for item in plants() if item.name == rest))
    if kind == "step":
        return step(rest.rsplit(":", 1)[0])
    return gain(next(item for item in CHANGES if item.name == name), done)


def plant(item: Plant) -> dict[str, Any]:
    """A planted pipeline, measured in this process between two blocks of its running, as a trial is profiled."""
    threads = torch.get_num_threads()
    peaks = measured_peaks(torch.device("cpu"))
    torch.set_num_threads(threads if item.all_threads else 1)  # else it drowns in how threads wait for each other
    torch.manual_seed(0)
    training = Training(item.build(), setup_of(item, peaks), device="cpu")
    try:
        before = cpu_times(with_children=True), time.perf_counter()
        first, reference = running_block(training, BLOCK_SECONDS, 5, RAMP_SECONDS)
        document = measure_stages(SimpleNamespace(training=training), seconds=4.0)
        second, later = running_block(training, BLOCK_SECONDS, 5, RAMP_SECONDS)
        foreign = foreign_cores(before[0], cpu_times(with_children=True), time.perf_counter() - before[1])
    finally:
        training.close()
        torch.set_num_threads(threads)
    block, mean = whole((first, reference), (second, later))
    return {
        "timings": {**document, "reference": mean},
        "block": block.model_dump(),
        "peaks": peaks.model_dump(),
        "foreign_cores": foreign,
    }


def setup_of(item: Plant, peaks: Peaks) -> Setup:
    """The plant's own, in the precision whose measured matmul peak is the highest where it asks for that."""
    low, full = peaks.matmul_bf16_flops_per_second or 0.0, peaks.matmul_fp32_flops_per_second or 0.0
    return item.setup.with_precision(dtype="bfloat16") if item.best_precision and low > full else item.setup


def step(workload: str) -> dict[str, Any]:
    """The baseline profiled once, as the first round of a run does it."""
    with runner_of(WORKLOADS[workload]) as runner:
        description = describe(runner)
        profile = profile_stages(runner, Plan(), seconds=BOX, advise=False)
    return {"description": description.model_dump(), "profile": profile.model_dump()}


def gain(change: Change, done: dict[str, Any]) -> dict[str, Any]:
    """The change beside the baseline, in pairs of live processes and interleaved blocks."""
    registry = load_strategies()
    if change.strategy in registry and not change.forced:
        applies = registry[change.strategy].applies(case_of(change.workload, done, registry))
        if not applies:
            return {"refused": applies.reason}
    with runner_of(WORKLOADS[change.workload]) as runner:
        plan = plan_of(change, done, runner.registry)
        rule = COMPILING if change.strategy == "compile" else RULE
        found = compare(runner.start, Plan(), plan, rule, clock=time.monotonic)
    return {"plan": plan.model_dump(), "comparison": found.model_dump()}


def plan_of(change: Change, done: dict[str, Any], registry: Registry) -> Plan:
    """The change with what its strategy would try it with."""
    if change.strategy == "graph":
        items = [
            Item(strategy="workers", setting={"num_workers": change.setting["workers"], "persistent_workers": True})
        ]
        items.append(Item(strategy="threads", setting={"threads": change.setting["threads"]}))
        return candidate_plan(registry, Plan(), tuple(items))
    own = Item(strategy=change.strategy, setting=change.setting)
    case = case_of(change.workload, done, registry)
    companions = () if change.alone else tuple(registry[change.strategy].companions(case, change.setting))
    return candidate_plan(registry, Plan(), (own, *companions))


def case_of(workload: str, done: dict[str, Any], registry: Registry, number: int = 0) -> Case:
    """The case that a strategy is asked about after the workload was looked at for the ``number``-th time."""
    document = done[f"step:{workload}:{number}"]
    description = Description.model_validate(document["description"])
    profile = StageProfile.model_validate(document["profile"])
    _, pipeline = build_round(description, profile)
    facts = description.facts.model_copy(update={"inspected": profile.inspected})
    search = SearchState(facts=facts, environment=description.environment, objective=objective_of(facts, Options()))
    return search.case(registry, pipeline=pipeline)
