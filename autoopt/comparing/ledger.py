"""An error budget over many asks: one file, one alpha, whoever asks how often.

Who asks often enough gets a false "faster" some day. A ledger divides one alpha over all asks, in their order: the
n-th may err with probability ``alpha * share(n)``, and the shares sum to 1. By the union bound the chance that any
placebo is ever called faster is at most alpha, however the asks depend on one another and on the answers before them.
An ask counts from when it begins, also where it is broken off. A comparison's confidence sequence at level ``1 - a``
leaves out "no faster" when its mixture's e-value reaches ``1 / a``: this is online testing with e-values, for the
family-wise error.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path

from autoopt.errors import DocumentError, EnvironmentLacks
from autoopt.records.comparing import LedgerEntry

TOTAL = 0.05
_SUM = 2.109742801236892
"""Of 1 / (n log(n)**2) over n from 2 on."""


def share(ask: int) -> float:
    """The share of alpha of the n-th ask, counted from 1: it falls slowly, so that late asks can still be answered."""
    n = ask + 1
    return 1.0 / (_SUM * n * math.log(n) ** 2)


def enter(path: Path, *, baseline: str, candidate: str, total: float = TOTAL) -> LedgerEntry:
    """Writes an ask into the ledger, before anything is measured.

    Args:
        path: the file; made where it is missing.
        baseline, candidate: what is compared, for people who read it.
        total: the alpha of a new ledger; an old one keeps its own.

    Raises:
        DocumentError: it is no ledger, or is damaged.
        EnvironmentLacks: it cannot be written.
    """
    try:
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            asks = _asks(file.read(), path)
            alpha = asks[0]["total"] if asks else total
            ask = len(asks) + 1
            spent = sum(share(n) for n in range(1, ask + 1))
            entry = LedgerEntry(ask=ask, alpha=alpha * share(ask), total=alpha, left=alpha * max(0.0, 1.0 - spent))
            told = {"ask": ask, "total": alpha, "alpha": entry.alpha, "baseline": baseline, "candidate": candidate}
            file.write(json.dumps({**told, "at": datetime.now(UTC).isoformat(timespec="seconds")}) + "\n")
            file.flush()
            os.fsync(file.fileno())
            return entry
    except OSError as error:
        raise EnvironmentLacks(f"cannot write the ledger {path}: {error.strerror or error}") from None


def answered(path: Path, entry: LedgerEntry, answer: str) -> None:
    """Writes what came of an ask below it, for people who read the file; nothing is counted by it.

    Raises:
        EnvironmentLacks: it cannot be written any more.
    """
    told = {"answered": entry.ask, "answer": answer, "e_value": entry.e_value, "needed": entry.needed}
    try:
        with path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps({**told, "at": datetime.now(UTC).isoformat(timespec="seconds")}) + "\n")
    except OSError as error:
        raise EnvironmentLacks(f"cannot write the ledger {path}: {error.strerror or error}") from None


def _asks(text: str, path: Path) -> list[dict[str, float]]:
    asks: list[dict[str, float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            ask = json.loads(line)
            if 1 <= ask.get("answered", 0) <= len(asks):
                continue
            if ask["ask"] != len(asks) + 1 or not 0 < ask["total"] < 1:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DocumentError(
                f"{path} is no ledger, or is damaged in line {number}", hint="its asks cannot be counted: begin another"
            ) from None
        asks.append(ask)
    return asks
