"""Ledgers of two hundred placebo asks each, on machines in simulated time."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from autoopt.comparing.ledger import TOTAL, share
from autoopt.records import Change, Plan
from autoopt.search.compare.comparison import Decision, Rule
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control, learned
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel

ASKS = 200
CONTROL_PAIRS = 2
SPREAD = (0.01, 0.02, 0.04)
"""Standard deviations (log) by which processes differ, drawn for each ledger's machine."""
GAINS, PLACES, MOST_SECONDS = (0.05, 0.1, 0.3), (1, 20), 600.0
"""Of the asks whose power is measured: true gains, places in the ledger, and the time of an answer at most."""


def machine_of(kind: str, seed: int, spread: float, gain: float = 0.0) -> FakeMachine:
    """A machine whose processes scatter by ``spread``, and on which a plan with a change is faster by ``gain``."""

    def behave(plan: Plan) -> Behaviour:
        faster = 1.0 + gain if plan.changes else 1.0
        return Behaviour(step_seconds=0.02 / faster, process_sd=spread)

    return FakeMachine(behave, NoiseModel(kind), seed=seed)  # type: ignore[arg-type]


def rule_of(ask: int, seconds: float) -> Rule:
    """That of ``autoopt judge``."""
    return Rule(min_gain=0.0, alpha=TOTAL * share(ask), alpha_reject=0.05, max_seconds=seconds, max_pairs=24)


def one_ledger(kind: str, seed: int, asks: int = ASKS) -> list[int]:
    """The asks of one ledger that were called faster: one session, whose control is measured by its first ask."""
    rng = np.random.default_rng([seed, 3])
    spread, kept = float(rng.choice(SPREAD)), []
    noise = None
    for number in range(1, asks + 1):
        machine, rule = machine_of(kind, seed * 1000 + number, spread), rule_of(number, 120.0)
        if noise is None:
            noise = control(machine.start, Plan(), rule, clock=machine.clock, pairs=CONTROL_PAIRS, rng=rng)[0]
        found = compare(machine.start, Plan(), Plan(), rule, clock=machine.clock, noise=noise, rng=rng)
        noise = learned(noise, found)
        if found.decision is Decision.ACCEPT:
            kept.append(number)
    return kept


def power(kind: str, asks: int) -> dict[str, Any]:
    """How often and how soon a true gain is found, as the first and as the twentieth ask of a ledger."""
    began, rows = time.monotonic(), []
    other = Plan(changes=(Change(strategy="threads"),))
    for gain, ask in itertools.product(GAINS, PLACES):
        seconds = []
        for seed in range(asks):
            rng = np.random.default_rng([seed, 5])
            machine = machine_of(kind, 7000 + seed, float(rng.choice(SPREAD)), gain)
            rule = rule_of(ask, MOST_SECONDS)
            noise = control(machine.start, Plan(), rule, clock=machine.clock, pairs=CONTROL_PAIRS, rng=rng)[0]
            found = compare(machine.start, Plan(), other, rule, clock=machine.clock, noise=noise, rng=rng)
            if found.decision is Decision.ACCEPT:
                seconds.append(round(found.seconds, 1))
        seconds.sort()
        half = seconds[(asks - 1) // 2] if len(seconds) > (asks - 1) // 2 else None
        rows.append(
            {"gain": gain, "ask": ask, "asks": asks, "found": len(seconds), "median_seconds": half,
             "in_a_minute": sum(each <= 60 for each in seconds)}
        )  # fmt: skip
    return {"rows": rows, "most_seconds": MOST_SECONDS, "seconds": time.monotonic() - began}


def ledgers(kind: str, count: int, asks: int = ASKS) -> dict[str, Any]:
    """So many ledgers under one kind of noise."""
    began = time.monotonic()
    kept = [one_ledger(kind, seed, asks) for seed in range(count)]
    return {
        "ledgers": count,
        "asks_each": asks,
        "alpha": TOTAL,
        "ledgers_with_a_keep": sum(map(bool, kept)),
        "keeps": sum(map(len, kept)),
        "kept_asks": [asks for asks in kept if asks],
        "seconds": time.monotonic() - began,
    }
