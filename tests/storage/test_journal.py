"""The journal: what is appended is there, what was torn is cut off, what is damaged is refused."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import DocumentError, EnvironmentLacks, UsageError
from autoopt.storage.journal import Journal, decode, encode, read_journal

RECORDS = [{"type": "run", "n": 0}, {"type": "start", "key": {"a": "ü\n"}}, {"type": "end", "document": {"x": [1.5]}}]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=4)


def lines(records: list[dict]) -> bytes:
    return b"".join(encode(number, record) for number, record in enumerate(records))


@given(st.lists(json_objects, max_size=5))
def test_what_was_written_is_read_back(records: list[dict]) -> None:
    data = lines(records)
    assert decode(data) == (records, len(data))


def test_every_line_is_a_json_document_that_names_its_length() -> None:
    for number, line in enumerate(lines(RECORDS).splitlines()):
        document = json.loads(line)
        assert document["schema_version"] == 1
        assert document["sequence"] == number
        assert document["record"] == RECORDS[number]
        body = line[line.index(b'"record":') + len(b'"record":') : -1]
        assert document["length"] == len(body)


def test_the_last_record_torn_at_every_byte_costs_that_record_alone(tmp_path: Path) -> None:
    data = lines(RECORDS)
    keep = len(lines(RECORDS[:-1]))
    path = tmp_path / "journal.jsonl"
    for size in range(keep, len(data)):
        path.write_bytes(data[:size])
        with Journal(path, create=False) as journal:
            assert journal.records == RECORDS[:-1]
            journal.append({"type": "after"})
        assert list(read_journal(path)) == [*RECORDS[:-1], {"type": "after"}]


def test_a_record_whose_blocks_never_reached_the_disk_is_torn_too() -> None:
    data = lines(RECORDS)
    keep = len(lines(RECORDS[:-1]))
    for size in range(keep, len(data) - 1):
        assert decode(data[:size] + b"\0" * (len(data) - size))[0] == RECORDS[:-1]
        assert decode(data[:size] + b"\0" * (len(data) - size - 1) + b"\n")[0] == RECORDS[:-1]


@given(st.data())
def test_a_changed_byte_before_the_last_record_is_damage(data: st.DataObject) -> None:
    whole = lines(RECORDS)
    end = len(lines(RECORDS[:-1]))
    at = data.draw(st.integers(0, end - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    with pytest.raises(DocumentError, match=r"damaged|schema_version"):
        decode(whole[:at] + bytes([byte]) + whole[at + 1 :])


@given(st.binary(max_size=200))
def test_any_bytes_give_records_or_one_clear_error(data: bytes) -> None:
    for noise in (data, lines(RECORDS) + data, data + lines(RECORDS)):
        try:
            _, size = decode(noise)
        except DocumentError as error:
            assert "\n" not in error.message
        else:
            assert size <= len(noise)


def test_a_record_that_was_taken_out_is_noticed() -> None:
    parts = [encode(number, record) for number, record in enumerate(RECORDS)]
    with pytest.raises(DocumentError, match="record 1 is missing"):
        decode(parts[0] + parts[2])


def test_a_newer_schema_is_refused_with_what_to_do() -> None:
    line = encode(0, {}).replace(b'"schema_version":1', b'"schema_version":2')
    with pytest.raises(DocumentError) as error:
        decode(line)
    assert "schema_version 2" in error.value.message
    assert "upgrade" in error.value.hint


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, create=True) as journal:
        journal.append({"type": "run"})
        for create in (True, False):
            with pytest.raises(UsageError, match="in use by another run"):
                Journal(path, create=create)
    Journal(path, create=False).close()
    with pytest.raises(UsageError, match="holds a run already"):
        Journal(path, create=True)


def test_numbers_that_are_not_finite_never_get_in(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl", create=True) as journal:
        with pytest.raises(ValueError, match="JSON"):
            journal.append({"x": float("nan")})
        journal.append({"x": 1})
        assert list(read_journal(journal.path)) == [{"x": 1}]


def failing_write(monkeypatch: pytest.MonkeyPatch, number: int, times: int, keep: int = 10) -> None:
    """Makes ``os.write`` write a part and then fail, as a full disk does."""
    write: Callable[[int, bytes], int] = os.write
    left = [times]

    def fail(descriptor: int, data: bytes) -> int:
        if left[0] <= 0:
            return write(descriptor, data)
        left[0] -= 1
        write(descriptor, data[:keep])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("autoopt.storage.journal.os.write", fail)


def test_a_full_disk_leaves_the_journal_at_the_record_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path / "journal.jsonl", create=True) as journal:
        journal.append({"n": 0})
        failing_write(monkeypatch, errno.ENOSPC, times=1)
        with pytest.raises(EnvironmentLacks, match="the disk is full") as error:
            journal.append({"n": 1})
        assert "autoopt resume" in error.value.hint
        assert list(read_journal(journal.path)) == [{"n": 0}]
        journal.append({"n": 2})
        assert list(read_journal(journal.path)) == [{"n": 0}, {"n": 2}]


def test_an_error_of_the_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path / "journal.jsonl", create=True) as journal:
        failing_write(monkeypatch, errno.EIO, times=5)
        with pytest.raises(EnvironmentLacks, match="Input/output error"):
            journal.append({"n": 0})


def test_a_deleted_directory_is_noticed_at_the_next_record(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with Journal(folder / "journal.jsonl", create=True) as journal:
        journal.append({"n": 0})
        journal.path.unlink()
        folder.rmdir()
        with pytest.raises(EnvironmentLacks, match="was deleted"):
            journal.append({"n": 1})


def test_a_signal_between_write_and_book_keeping_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync
    with Journal(tmp_path / "journal.jsonl", create=True) as journal:
        journal.append({"n": 0})

        def interrupted(descriptor: int) -> None:
            sync(descriptor)
            raise KeyboardInterrupt

        monkeypatch.setattr("autoopt.storage.journal.os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.append({"n": 1})
        monkeypatch.setattr("autoopt.storage.journal.os.fsync", sync)
        journal.append({"n": 2})
        assert list(read_journal(journal.path)) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_missing_journal_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot read"):
        read_journal(tmp_path / "journal.jsonl")
    with pytest.raises(EnvironmentLacks, match="cannot open"):
        Journal(tmp_path / "journal.jsonl", create=False)


def test_the_journal_is_private(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl", create=True) as journal:
        assert journal.path.stat().st_mode & 0o077 == 0
