"""Room in the device's memory: what counts against a setting, and what does not."""

from __future__ import annotations

import pytest

from autoopt.records import Environment
from autoopt.search.accept.evidence import lost_margin, memory_limit, near_limit
from autoopt.search.compare.comparison import Side

LIMIT = 1000


@pytest.mark.parametrize(
    ("peak", "limit", "retries", "refused"),
    [
        (950, LIMIT, 0, False),
        (951, LIMIT, 0, True),
        (None, LIMIT, 0, False),
        (5000, None, 0, False),
        (10, LIMIT, 1, True),
    ],
)
def test_five_per_cent_must_stay_free(peak: int | None, limit: int | None, retries: int, refused: bool) -> None:
    assert bool(near_limit(peak, limit, retries)) is refused


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (Side(peak_memory_bytes=500), Side(peak_memory_bytes=960), True),
        (Side(peak_memory_bytes=960), Side(peak_memory_bytes=960), False),
        (Side(peak_memory_bytes=960), Side(peak_memory_bytes=990), True),
        (Side(), Side(allocation_retries=2), True),
        (Side(allocation_retries=1), Side(allocation_retries=2), False),
        (Side(peak_memory_bytes=500), Side(peak_memory_bytes=500), False),
    ],
)
def test_what_the_incumbent_does_too_is_not_held_against_a_candidate(before: Side, after: Side, refused: bool) -> None:
    assert bool(lost_margin(before, after, LIMIT)) is refused


def test_what_the_allocator_only_keeps_is_held_against_nobody() -> None:
    """Reserved memory of 99 % of which tensors hold 60 % is cache, which goes before anything fails."""
    assert near_limit(990, LIMIT, 0, 600) == ""
    assert near_limit(990, LIMIT, 0, 960) != ""
    assert "ran out 2 times" in near_limit(990, LIMIT, 2, 600)
    before = Side(peak_memory_bytes=500, allocated_memory_bytes=400)
    assert lost_margin(before, Side(peak_memory_bytes=990, allocated_memory_bytes=600), LIMIT) == ""
    assert lost_margin(before, Side(peak_memory_bytes=990, allocated_memory_bytes=970), LIMIT) != ""
    full = Side(peak_memory_bytes=999, allocated_memory_bytes=980)
    assert lost_margin(full, Side(peak_memory_bytes=999, allocated_memory_bytes=970), LIMIT) == ""


def test_the_cpu_has_a_limit_where_one_was_set() -> None:
    cpu = Environment(python="3", device="cpu", ram_bytes=100, device_memory_bytes=100)
    assert memory_limit(cpu) is None
    assert memory_limit(cpu.model_copy(update={"device_memory_bytes": 50})) == 50
    assert memory_limit(cpu.model_copy(update={"device": "cuda:0"})) == 100


def test_what_tensors_held_is_told_where_it_is_known() -> None:
    assert "tensors held 600 MiB" in near_limit(990 << 20, 1000 << 20, 1, 600 << 20)
    assert "tensors held" not in near_limit(990 << 20, 1000 << 20, 1)
