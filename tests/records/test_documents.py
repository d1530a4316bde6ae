"""Reading what a run left behind, whole or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import DocumentError
from autoopt.records import Result
from autoopt.records.reading import read_result
from sample import no_gain, win


def save(folder: Path, text: str | bytes) -> Path:
    path = folder / "result.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(no_gain().model_dump_json())
    return document


@pytest.mark.parametrize("by_file", [True, False])
def test_a_result_is_read_from_its_file_or_its_run(tmp_path: Path, by_file: bool) -> None:
    result = win()
    path = save(tmp_path, result.model_dump_json())
    assert read_result(path if by_file else tmp_path) == result


def test_fields_of_a_later_autoopt_of_the_same_schema_are_passed_over(tmp_path: Path, good: dict[str, Any]) -> None:
    save(tmp_path, json.dumps({**good, "something_new": 1}))
    assert isinstance(read_result(tmp_path), Result)


@pytest.mark.parametrize("version", [2, 99, 10**30])
def test_a_newer_schema_is_refused_with_what_to_do(tmp_path: Path, good: dict[str, Any], version: int) -> None:
    save(tmp_path, json.dumps({**good, "schema_version": version}))
    with pytest.raises(DocumentError, match="reads up to 1") as caught:
        read_result(tmp_path)
    assert "upgrade" in caught.value.hint


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(DocumentError, match=r"holds no result\.json") as caught:
        read_result(tmp_path)
    assert f"autoopt resume {tmp_path}" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("null", "an object is wanted, got null"),
        ("[]", "got an array"),
        ('"x"', "got text"),
        ("3", "got a number"),
        ("{}", "schema_version is missing"),
        ('{"schema_version": "1"}', "whole number"),
        ('{"schema_version": true}', "whole number"),
        ('{"schema_version": 0}', "damaged"),
        ('{"schema_version": 1}', "damaged: autoopt_version: Field required"),
        (b"\xff", "not UTF-8 at byte 0"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ('{"schema_version": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_damage_is_told_in_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = save(tmp_path, text)
    with pytest.raises(DocumentError, match=message) as caught:
        read_result(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_a_missing_run_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot read"):
        read_result(tmp_path / "nothing")
    with pytest.raises(DocumentError, match=r"holds no result\.json") as caught:
        read_result(tmp_path)
    assert "run directory" in caught.value.hint


def test_numbers_that_are_not_numbers_are_refused(tmp_path: Path, good: dict[str, Any]) -> None:
    save(tmp_path, json.dumps({**good, "seconds": float("nan")}))
    with pytest.raises(DocumentError, match="damaged: seconds"):
        read_result(tmp_path)


@given(cut=st.integers(0, 20_000), put=st.binary(max_size=8), drop=st.integers(0, 40))
def test_a_spoilt_document_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, good: dict[str, Any], cut: int, put: bytes, drop: int
) -> None:
    whole = json.dumps(good).encode()
    at = cut % len(whole)
    path = save(tmp_path_factory.getbasetemp(), whole[:at] + put + whole[at + drop :])
    try:
        read_result(path)
    except DocumentError as error:
        assert "\n" not in error.message
