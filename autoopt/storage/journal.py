"""journal.jsonl: every record appended in one write and fsynced; what was torn by a crash is cut off.

A line is ``{"schema_version":1,"sequence":7,"length":52,"crc32":"0a1b2c3d","record":{...}}``. ``length`` counts the
bytes of the record as it stands in the line; the checksum covers sequence and record.

account.csv is made of it: every block and every whole run that was compared, one line each. The journal keeps the rows
of each comparison in the step that measured them; speeds, ratios and intervals can be computed again from the table.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from autoopt.errors import DocumentError, EnvironmentLacks, UsageError
from autoopt.records import SCHEMA_VERSION, JsonDict, Plan
from autoopt.records.account import Account, Row
from autoopt.records.writing import sync_folder


def now() -> str:
    """The present time as documents have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


_BEGINS = f'{{"schema_version":{SCHEMA_VERSION},"sequence":'.encode()


def encode(sequence: int, record: JsonDict) -> bytes:
    """One line of the journal.

    Raises:
        ValueError, TypeError: the record is not JSON.
    """
    body = json.dumps(record, allow_nan=False, separators=(",", ":")).encode()
    checksum = zlib.crc32(body, zlib.crc32(str(sequence).encode()))
    head = f'{sequence},"length":{len(body)},"crc32":"{checksum:08x}","record":'
    return _BEGINS + head.encode() + body + b"}\n"


def decode(data: bytes, name: str = "the journal") -> tuple[list[JsonDict], int]:
    """Reads a journal, leaving out a last record that was torn: its records, and how many of its bytes they fill.

    A crash tears at most one record, since each is on disk before the next is written: bytes after the last
    good record, with no line end but perhaps their own last byte, and no other record. Anything else is damage.

    Raises:
        DocumentError: damaged before its end, or of a newer schema.
    """
    records: list[JsonDict] = []
    at = 0
    while at < len(data):
        line = data[at : data.find(b"\n", at) + 1]
        record = _record(line, len(records), name)
        if record is None:
            if b"\n" in data[at:-1] or _BEGINS in data[at + 1 :]:
                raise DocumentError(
                    f"{name} is damaged at record {len(records) + 1} (byte {at}), with more after it",
                    hint="it cannot be resumed; start the run again",
                )
            break
        records.append(record)
        at += len(line)
    return records, at


def _record(line: bytes, sequence: int, name: str) -> JsonDict | None:
    """The record of a line; None where the line is not as it was written."""
    try:
        document = json.loads(line)
        version, number, record = (document[part] for part in ("schema_version", "sequence", "record"))
        newer, as_written = version > SCHEMA_VERSION, encode(number, record) == line
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if newer:
        raise DocumentError(
            f"{name} has schema_version {version}, this autoopt reads up to {SCHEMA_VERSION}",
            hint="it was written by a newer autoopt: upgrade with pip install --upgrade torch-autoopt",
        )
    if as_written and number != sequence:
        raise DocumentError(f"{name} is damaged: record {sequence} is missing")
    return record if as_written and isinstance(record, dict) else None


def read_journal(path: Path) -> list[JsonDict]:
    """The records of a journal that may be in use; the file is left as it is.

    Raises:
        DocumentError: it cannot be read, or see :func:`decode`.
    """
    try:
        return decode(path.read_bytes(), str(path))[0]
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror or error}") from None


class Journal:
    """A journal open for writing, by this process alone.

    Args:
        path: of the file.
        create: make a new one; else one is read, and its torn tail cut off.

    Raises:
        UsageError: another run is writing it.
        DocumentError: see :func:`decode`.
        EnvironmentLacks: it cannot be opened or written.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise EnvironmentLacks(f"cannot open {path}: {error.strerror or error}") from None
        try:
            self._lock()
            data = path.read_bytes()
            if create and data:
                raise UsageError(
                    f"{path.parent} holds a run already", hint=f"autoopt resume {path.parent}, or another --out"
                )
            self.records, self._size = decode(data, str(path))
            if self._size < len(data):
                os.ftruncate(self._file, self._size)
                os.fsync(self._file)
            with contextlib.suppress(OSError):
                sync_folder(path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{self.path.parent} is in use by another run", hint="wait for it to end, or give another --out"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):  # a file system without locks
                raise

    def append(self, record: JsonDict) -> None:
        """Writes a record; it is on disk when this returns.

        Raises:
            EnvironmentLacks: the disk is full, the file or its folder is gone, or another error of the disk.
                The journal then ends with the record before.
        """
        if os.fstat(self._file).st_size != self._size:  # a signal broke this off between the write and its book-keeping
            self.records, self._size = decode(os.pread(self._file, os.fstat(self._file).st_size, 0), str(self.path))
            os.ftruncate(self._file, self._size)
        line = encode(len(self.records), record)
        if os.fstat(self._file).st_nlink == 0:
            raise EnvironmentLacks(
                f"the run directory {self.path.parent} was deleted while the run was going on",
                hint="start the run again; nothing of it can be resumed",
            )
        try:
            self._write(line)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise EnvironmentLacks(
                f"cannot write {self.path}: {'the disk is full' if full else error.strerror or error}",
                hint=f"make room, then: autoopt resume {self.path.parent}" if full else "",
            ) from None
        self._size += len(line)
        self.records.append(json.loads(line)["record"])

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Entry:
    """A row with what it was measured for.

    Args:
        evidence: purpose of the step that measured it, such as ``trial 6`` or ``verification``.
        comparison: number of the comparison, from 1.
    """

    evidence: str
    comparison: int
    row: Row


def entries(journal: Path) -> Iterator[Entry]:
    """Rows of all comparisons of a run, in the order in which they were measured.

    Raises:
        DocumentError: the journal is damaged.
    """
    begun: dict[int, JsonDict] = {}
    number = 0
    for record in read_journal(journal):
        if record.get("type") == "start":
            begun[record["step"]] = record
        elif record.get("type") == "end":
            start = begun.get(record["step"], {"kind": "", "key": {}})
            purpose, document = str(start["key"].get("purpose", start["kind"])), record.get("document")
            compared = [[Row.model_validate(row) for row in each["rows"]] for each in _comparisons(document)]
            for rows in (*compared, *filter(None, [[*_whole_runs(start, document)]])):
                number += 1
                yield from (Entry(purpose, number, row) for row in rows)


def _whole_runs(start: JsonDict, document: object) -> Iterator[Row]:
    """A pair of whole runs as a block of each; one alone has nothing that it is compared with."""
    key = start["key"]
    if not key.get("whole") or not isinstance(document, dict):
        return
    for side, plan in (("baseline", "baseline"), ("best", "plan")):
        if isinstance(run := document.get(side), dict) and plan in key:
            yield Row(
                plan=json.dumps(key[plan]),
                process=f"whole run, seed {key.get('seed')}",
                round=0,
                start=start.get("at", 0.0),
                steps=run["steps"],
                samples=run["samples"],
                seconds=run["seconds"],
            )


def _comparisons(document: object) -> Iterator[JsonDict]:
    """Comparisons with rows that a step's document is, or holds."""
    if isinstance(document, dict):
        if "decision" in document and document.get("rows"):
            yield document
        else:
            for value in document.values():
                yield from _comparisons(value)
    elif isinstance(document, list):
        for value in document:
            yield from _comparisons(value)


def summary(found: Sequence[Entry]) -> Account:
    """What was measured in all."""
    return Account(
        blocks=len(found),
        processes=len({entry.row.process for entry in found}),
        seconds=sum(entry.row.seconds for entry in found),
    )


def table(found: Sequence[Entry]) -> str:
    """The text of account.csv: a column for each stage after :data:`COLUMNS`, in seconds."""
    stages = sorted({name for entry in found for name in entry.row.stage_seconds})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"{name}_s" for name in stages)])
    for entry in found:
        own = [column(entry) for column in COLUMNS.values()]  # None leaves its cell empty
        writer.writerow([*own, *(round(entry.row.stage_seconds.get(name, 0.0), 6) for name in stages)])
    return text.getvalue()


def _plan(entry: Entry) -> str:
    changes = Plan.model_validate_json(entry.row.plan).changes
    return " + ".join(f"{change.strategy}{change.setting or ''}" for change in changes) or "baseline"


COLUMNS: dict[str, Callable[[Entry], object]] = {
    "evidence": lambda entry: entry.evidence,
    "comparison": lambda entry: entry.comparison,
    "plan": _plan,
    "process": lambda entry: entry.row.process,
    "round": lambda entry: entry.row.round,
    "start_s": lambda entry: round(entry.row.start, 3),
    "steps": lambda entry: entry.row.steps,
    "samples": lambda entry: entry.row.samples,
    "seconds": lambda entry: round(entry.row.seconds, 6),
    "foreign_cpu_s": lambda entry: None if (used := entry.row.foreign_cpu_seconds) is None else round(used, 3),
    "late_s": lambda entry: round(entry.row.late_seconds, 6),
}
