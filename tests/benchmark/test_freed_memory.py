"""Freed memory that stays with the process: counted in real processes, since nothing else shows it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from autoopt.benchmark.flags import M_MMAP_MAX, M_TRIM_THRESHOLD
from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from autoopt.testing.strategies import example_case, sample_case
from autoopt_strategies.memory.allocator import LINES, Allocator

STRATEGY = load_strategies()["allocator"]
TOUCHED = """
import torch
from autoopt.benchmark.cputime import cpu_times
from autoopt.benchmark.flags import keep_freed_memory

for keep in (False, True):
    if keep:
        keep_freed_memory()
    for step in range(6):
        before = cpu_times(with_children=False)
        torch.ones(40_000_000 // 4), torch.ones(12_000_000 // 4)
    print(cpu_times(with_children=False).page_faults - before.page_faults)
"""


def test_pages_of_large_tensors_are_asked_for_in_every_step_and_kept_where_that_is_wanted() -> None:
    if not STRATEGY.inspect(SimpleNamespace(freed_pages=lambda: None)):
        pytest.skip("the C library is not glibc")
    done = subprocess.run([sys.executable, "-c", TOUCHED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    usual, kept = map(int, done.stdout.split())
    assert usual > 40_000_000 // 65_536
    assert kept < 100


def test_it_is_tried_where_new_pages_take_a_share_of_the_step() -> None:
    import dataclasses

    case = example_case(STRATEGY)
    assert STRATEGY.applies(case)
    assert STRATEGY.predict(case, {}) is None, "page faults were not counted"
    none = dataclasses.replace(case, page_faults=3.0)
    assert "(3 page faults, measured)" in STRATEGY.applies(none).reason
    many = dataclasses.replace(case, page_faults=40_000.0)
    predicted = STRATEGY.predict(many, {})
    assert STRATEGY.applies(many)
    assert predicted is not None
    alone = dataclasses.replace(many, setup=many.setup.with_flags(threads=1))
    with_one = STRATEGY.predict(alone, {})
    assert with_one is not None
    assert with_one.value > 1.1
    assert with_one.value > predicted.value > 1.0, "threads that compute are given their pages at once"


def test_what_other_processes_may_give_back_counts_by_half() -> None:
    """A process of 1 fault a step was watched; five of eight bare ones had 10,000, and took 1.4 times as long."""
    import dataclasses

    found = {"page_seconds": 1e-6, "allocator": "", "freed_pages": 40_000}
    case = dataclasses.replace(sample_case("cpu", inspected={"allocator": found}), page_faults=1.0)
    assert STRATEGY.applies(case)
    between = STRATEGY.predict(case, {})
    seen, most = (
        STRATEGY.predict(dataclasses.replace(example_case(STRATEGY), page_faults=faults), {})
        for faults in (1.0, 40_000.0)
    )
    assert None not in (between, seen, most)
    assert seen.value < between.value < most.value
    assert between.low <= seen.value
    assert between.high >= most.value
    few = {**found, "freed_pages": 10}
    none = dataclasses.replace(sample_case("cpu", inspected={"allocator": few}), page_faults=1.0)
    assert not STRATEGY.applies(none)


@pytest.mark.parametrize(
    ("device", "inspected", "reason"),
    [
        ("mps", {"page_seconds": 1e-6, "allocator": ""}, "memory of mps"),
        ("cpu", {}, "not glibc"),
        ("cpu", {"page_seconds": 1e-6, "allocator": "jemalloc"}, "another allocator is loaded: jemalloc"),
    ],
)
def test_elsewhere_it_does_not_apply(device: str, inspected: dict[str, object], reason: str) -> None:
    assert reason in STRATEGY.applies(sample_case(device, inspected={"allocator": inspected})).reason


def test_the_switch_is_set_before_anything_is_built() -> None:
    plan = Plan(changes=(Change(strategy="allocator", setting={}),))
    assert load_strategies().fold(plan).flags == {"keep_freed_memory": True}


def test_the_lines_for_people_set_what_the_engine_sets() -> None:
    said = "\n".join(LINES)
    assert f"mallopt({M_MMAP_MAX}, 0)" in said
    assert f"mallopt({M_TRIM_THRESHOLD}, -1)" in said
    assert Allocator().recipe({}).lightning == {
        "_note": "before training: ctypes.CDLL(None).mallopt(-4, 0); ctypes.CDLL(None).mallopt(-1, -1)"
    }
