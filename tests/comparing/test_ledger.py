"""One alpha over all asks: what a ledger gives, keeps and refuses."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autoopt.comparing.ledger import TOTAL, LedgerLostError, answered, enter, share
from autoopt.errors import DocumentError, EnvironmentLacks
from autoopt.records import Change, Plan
from autoopt.search.compare.comparison import Decision, Rule
from autoopt.search.compare.contest import compare
from autoopt.testing.fakes import Behaviour, FakeMachine


def ask(path: Path) -> float:
    return enter(path, baseline="main", candidate="mine").alpha


def test_shares_sum_to_one_at_most_and_fall() -> None:
    many = 200_000
    tail = 1 / (2.109742801236892 * math.log(many + 1.5))  # the integral of what is left
    assert sum(share(n) for n in range(1, many + 1)) + tail == pytest.approx(1.0, abs=1e-6)
    assert all(share(n) > share(n + 1) for n in range(1, 300))


def test_every_ask_counts_and_says_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "asks.jsonl"
    entries = [enter(path, baseline="a", candidate="b") for _ in range(5)]
    assert [entry.ask for entry in entries] == [1, 2, 3, 4, 5]
    assert entries[-1].left == pytest.approx(TOTAL - sum(entry.alpha for entry in entries))
    assert [json.loads(line)["ask"] for line in path.read_text().splitlines()] == [1, 2, 3, 4, 5]


def test_what_came_of_an_ask_stands_below_it_and_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "asks.jsonl"
    entry = enter(path, baseline="a", candidate="b")
    answered(path, entry.model_copy(update={"e_value": 12.5}), "undecided")
    assert enter(path, baseline="a", candidate="b").ask == 2
    asked, told, again = map(json.loads, path.read_text().splitlines())
    assert (asked["ask"], again["ask"]) == (1, 2)
    assert (told["answered"], told["answer"], told["e_value"]) == (1, "undecided", 12.5)
    assert told["needed"] == pytest.approx(1 / entry.alpha)


@pytest.mark.parametrize("gain", [0.0, -0.03])
def test_an_ask_is_answered_faster_where_its_e_value_is_reached(gain: float) -> None:
    for seed in range(6):
        machine = FakeMachine(lambda plan: Behaviour(step_seconds=0.019 if plan.changes else 0.02), seed=seed)
        rule = Rule(min_gain=gain, alpha=0.01, alpha_reject=0.05, max_seconds=60.0)
        candidate = Plan(changes=(Change(strategy="threads"),))
        found = compare(machine.start, Plan(), candidate, rule, clock=machine.clock)
        assert (found.e_value >= 100.0) == (found.estimate.low > 1 + gain) == (found.decision is Decision.ACCEPT)


def test_asks_at_the_same_time_are_counted_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "asks.jsonl"
    with ThreadPoolExecutor(8) as pool:
        alphas = list(pool.map(lambda _: ask(path), range(24)))
    assert sorted(alphas, reverse=True) == [pytest.approx(TOTAL * share(n)) for n in range(1, 25)]


@pytest.mark.parametrize("damage", ["not json", '{"ask": 7, "total": 0.05}', '{"ask": 1, "total": 3}', "[]"])
def test_a_damaged_ledger_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_text(damage + "\n")
    with pytest.raises(DocumentError, match=r"damaged in line 1"):
        ask(path)


def test_a_ledger_that_was_deleted_forked_or_changed_is_noticed(tmp_path: Path) -> None:
    """Whoever keeps the head of the last answer is not told a false account of the asks."""
    path, copy = tmp_path / "asks.jsonl", tmp_path / "copy.jsonl"
    first = answered(path, enter(path, baseline="a", candidate="b"), "undecided")
    copy.write_bytes(path.read_bytes())
    second = answered(path, enter(path, baseline="a", candidate="b", after=first.head), "faster")
    assert enter(path, baseline="a", candidate="b", after=second.head).ask == 3
    for text in ("", copy.read_text()):
        path.write_text(text)
        with pytest.raises(LedgerLostError, match="it was deleted, cut or put back"):
            enter(path, baseline="a", candidate="b", after=second.head)
    path.write_text(copy.read_text().replace('"candidate": "b"', '"candidate": "c"'))
    with pytest.raises(DocumentError, match="damaged in line 1"):
        ask(path)


def test_a_ledger_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks, match="cannot write the ledger"):
        ask(tmp_path / "nowhere" / "asks.jsonl")


@pytest.mark.parametrize("asks", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_placebos_in_a_row_are_not_called_faster(asks: int) -> None:
    """An agent that asks again and again, on a machine whose processes differ by some per cent."""
    kept = 0
    for number in range(1, asks + 1):
        machine = FakeMachine(lambda plan: Behaviour(), seed=number)
        rule = Rule(min_gain=0.0, alpha=TOTAL * share(number), alpha_reject=0.05, max_seconds=60.0)
        found = compare(machine.start, Plan(), Plan(), rule, clock=machine.clock)
        kept += found.decision is Decision.ACCEPT
    assert kept == 0
