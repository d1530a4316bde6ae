"""The benchmark of placebo asks: what it counts."""

from __future__ import annotations

import ast

from benchmarks.asks import simulated
from benchmarks.asks.__main__ import table
from benchmarks.asks.revisions import EXAMPLE, decoded_once


def test_ledgers_are_counted() -> None:
    found = simulated.ledgers("normal", 1, asks=3)
    assert (found["ledgers"], found["asks_each"], found["keeps"], found["ledgers_with_a_keep"]) == (1, 3, 0, 0)
    text = table({"simulated": {"normal": found}, "live": {"asks": [{"answer": "undecided"}, {"answer": "slower"}]}})
    assert "0 of 1 ledgers of 3 placebo asks with any called faster, 0 of 3 asks" in text
    assert "2 placebo commits under one ledger: 1 slower, 1 undecided" in text
    assert "0 of them came to an interval in their time" in text


def test_the_second_revision_of_the_example_is_what_it_says() -> None:
    before = EXAMPLE.read_text()
    after = decoded_once(before)
    ast.parse(after)
    assert "Image.open(self.files[index])" not in after
    assert after.count("self.images") == 2
