"""An error budget over many asks: one file, one alpha, whoever asks how often.

Who asks often enough gets a false "faster" some day. A ledger divides one alpha over all asks, in their order: the
n-th may err with probability ``alpha * share(n)``, and the shares sum to 1. By the union bound the chance that any
placebo is ever called faster is at most alpha, however the asks depend on one another and on the answers before them.
An ask counts from when it begins, also where it is broken off. A comparison's confidence sequence at level ``1 - a``
leaves out "no faster" when its mixture's e-value reaches ``1 / a``: this is online testing with e-values, for the
family-wise error.

Each line holds a digest of itself and the line before it. Whoever keeps the last of them, the head, notices when the
file was deleted, cut, changed or put back to an older copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from autoopt.errors import DocumentError
from autoopt.records import JsonDict
from autoopt.records.comparing import LedgerEntry
from autoopt.records.writing import writing
from autoopt.storage.journal import now

TOTAL = 0.05
"""Probability of a false answer in all asks of a new ledger together; an old one keeps its own."""


class LedgerLostError(DocumentError):
    """The ledger is not the one that the last answer was written to."""


def share(ask: int) -> float:
    """The share of alpha of the n-th ask, counted from 1: it falls slowly, so that late asks can still be answered."""
    n = ask + 1
    # the sum of 1 / (n log(n)**2) over n from 2 on
    return 1.0 / (2.109742801236892 * n * math.log(n) ** 2)


def enter(path: Path, *, baseline: str, candidate: str, after: str | None = None) -> LedgerEntry:
    """Writes an ask into the ledger, before anything is measured.

    Args:
        path: the file; made where it is missing.
        baseline, candidate: what is compared, for people who read it.
        after: the head that the last answer reported; None: not checked.

    Raises:
        DocumentError: it is no ledger, or is damaged.
        LedgerLostError: its head is another one.
        EnvironmentLacks: it cannot be written.
    """
    with _locked(path) as file:
        lines = _lines(file.read(), path)
        head = lines[-1]["head"] if lines else ""
        if after is not None and head != after:
            raise LedgerLostError(
                f"{path} does not go on from the last answer's head {after}: it was deleted, cut or put back",
                hint="bring the file back, or begin another session; its asks would not be counted",
            )
        asks = [line for line in lines if "ask" in line]
        alpha, ask = asks[0]["total"] if asks else TOTAL, len(asks) + 1
        spent = sum(share(n) for n in range(1, ask + 1))
        entry = LedgerEntry(ask=ask, alpha=alpha * share(ask), total=alpha, left=alpha * max(0.0, 1.0 - spent))
        reported = {"ask": ask, "total": alpha, "alpha": entry.alpha, "baseline": baseline, "candidate": candidate}
        return entry.model_copy(update={"head": _append(file, reported, head)})


def answered(path: Path, entry: LedgerEntry, answer: str) -> LedgerEntry:
    """Writes what came of an ask below it, for people who read the file; nothing is counted by it.

    Returns:
        the entry with the ledger's head.

    Raises:
        DocumentError, EnvironmentLacks: it is no ledger any more, or cannot be written.
    """
    reported = {"answered": entry.ask, "answer": answer, "e_value": entry.e_value, "needed": entry.needed}
    with _locked(path) as file:
        lines = _lines(file.read(), path)
        return entry.model_copy(update={"head": _append(file, reported, lines[-1]["head"] if lines else "")})


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[TextIO]:
    with writing(path, "the ledger"), path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _append(file: TextIO, entry: JsonDict, head: str) -> str:
    line = {**entry, "at": now()}
    digest = _digest(line, head)
    file.write(json.dumps({**line, "head": digest}) + "\n")
    file.flush()
    os.fsync(file.fileno())
    return digest


def _digest(line: JsonDict, head: str) -> str:
    return hashlib.sha256((head + json.dumps(line, sort_keys=True)).encode()).hexdigest()[:16]


def _lines(text: str, path: Path) -> list[JsonDict]:
    """All lines: an ask (numbered from 1) or an answer to one before it."""
    lines: list[JsonDict] = []
    asks, head = 0, ""
    for number, words in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(words)
            found = line.pop("head")
            asks += "ask" in line
            fits = line["ask"] == asks and 0 < line["total"] < 1 if "ask" in line else 1 <= line["answered"] <= asks
            if not fits or found != _digest(line, head):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DocumentError(
                f"{path} is no ledger, or is damaged in line {number}", hint="its asks cannot be counted: begin another"
            ) from None
        head = found
        lines.append({**line, "head": head})
    return lines
