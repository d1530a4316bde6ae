"""Ledgers of two hundred placebo asks each, on machines in simulated time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from autoopt.comparing.ledger import TOTAL, share
from autoopt.records import Plan
from autoopt.search.compare.comparison import Decision, Rule
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel

ASKS = 200
CONTROL_PAIRS = 2
SPREAD = (0.01, 0.02, 0.04)
"""Standard deviations (log) by which processes differ, drawn for each ledger's machine."""


def one_ledger(kind: str, seed: int, asks: int = ASKS) -> list[int]:
    """The asks of one ledger that were called faster; each is a comparison as ``autoopt compare`` makes it."""
    rng = np.random.default_rng([seed, 3])
    spread = float(rng.choice(SPREAD))
    kept = []
    for number in range(1, asks + 1):
        machine = FakeMachine(
            behave=lambda plan: Behaviour(process_sd=spread),
            noise=NoiseModel(kind),  # type: ignore[arg-type]
            seed=seed * 1000 + number,
        )
        rule = Rule(min_gain=0.0, alpha=TOTAL * share(number), alpha_reject=0.05, max_seconds=120.0, max_pairs=24)
        noise = control(machine.start, Plan(), rule, clock=machine.clock, pairs=CONTROL_PAIRS, rng=rng)[0]
        found = compare(machine.start, Plan(), Plan(), rule, clock=machine.clock, noise=noise, rng=rng)
        if found.decision is Decision.ACCEPT:
            kept.append(number)
    return kept


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
