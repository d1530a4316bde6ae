"""The GPU cases on a simulated device: half an hour finds what brings most, though each start costs seconds."""

from __future__ import annotations

import json

import pytest

from benchmarks.search.gpu import CASES, FILE, PAGE, page, run


def test_the_page_is_made_of_what_was_run() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(json.loads(FILE.read_text(encoding="utf-8"))), "run python -m benchmarks.search.gpu --page"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_half_an_hour_finds_most_of_what_there_is(case) -> None:
    found = run(case, 1800.0)
    assert found["share"] > 0.5
    assert all(trial["minute"] <= 30.0 for trial in found["trials"])


def test_what_takes_a_minute_to_start_does_not_keep_the_rest_from_its_proof() -> None:
    """Eight minutes: compiled for 50 s in each process, the stack could not be proved; without that it is."""
    gpt2 = next(case for case in CASES if case.name == "gpt2")
    assert "amp" in run(gpt2, 480.0)["plan"]
