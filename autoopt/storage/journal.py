"""journal.jsonl: every record appended in one write and fsynced; what was torn by a crash is cut off.

A line is ``{"schema_version":1,"sequence":7,"length":52,"crc32":"0a1b2c3d","record":{...}}``. ``length`` counts the
bytes of the record as it stands in the line; the checksum covers sequence and record.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from autoopt.errors import DocumentError, EnvironmentLacks, UsageError
from autoopt.records import SCHEMA_VERSION, JsonDict
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
        self._catch_up()
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

    def _catch_up(self) -> None:
        """A signal may have broken off :meth:`append` between the write and its own book-keeping."""
        if os.fstat(self._file).st_size != self._size:
            self.records, self._size = decode(os.pread(self._file, os.fstat(self._file).st_size, 0), str(self.path))
            os.ftruncate(self._file, self._size)

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
