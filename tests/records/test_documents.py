"""Reading what a run left behind, and a plan, whole or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import DocumentError
from autoopt.records import Change, Plan, PlanDocument, Result
from autoopt.records.reading import read_plan, read_result
from sample import no_gain, win


def save(folder: Path, text: str | bytes) -> Path:
    path = folder / "result.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return json.loads(no_gain().model_dump_json())


@pytest.mark.parametrize("by_file", [True, False])
def test_a_result_is_read_from_its_file_or_its_run(tmp_path: Path, by_file: bool) -> None:
    result = win()
    path = save(tmp_path, result.model_dump_json())
    assert read_result(path if by_file else tmp_path) == result


def test_fields_of_a_later_autoopt_of_the_same_schema_are_passed_over(tmp_path: Path, good: dict[str, Any]) -> None:
    save(tmp_path, json.dumps({**good, "something_new": 1}))
    assert isinstance(read_result(tmp_path), Result)


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
        *(({"schema_version": version}, "reads up to 1") for version in (2, 99, 10**30)),
        ({"seconds": float("nan")}, "damaged: seconds"),
    ],
)
def test_damage_is_told_in_one_line(
    tmp_path: Path, good: dict[str, Any], text: str | bytes | dict[str, Any], message: str
) -> None:
    path = save(tmp_path, json.dumps({**good, **text}) if isinstance(text, dict) else text)
    with pytest.raises(DocumentError, match=message) as caught:
        read_result(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert "upgrade" in caught.value.hint or "reads up to" not in message


def test_a_missing_file_an_empty_folder_and_an_interrupted_run_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot read"):
        read_result(tmp_path / "nothing")
    for hint in ("run directory", f"autoopt resume {tmp_path}"):
        with pytest.raises(DocumentError, match=r"holds no result\.json") as caught:
            read_result(tmp_path)
        assert hint in caught.value.hint
        (tmp_path / "journal.jsonl").touch()


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


# plan.json: what is written is read, what is damaged is refused in one line.

names = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
plans = st.lists(
    st.builds(Change, strategy=names, setting=st.dictionaries(st.text(), json_values, max_size=3)),
    max_size=4,
    unique_by=lambda change: change.strategy,
).map(lambda changes: Plan(changes=tuple(changes)))


@given(plans)
def test_a_plan_comes_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = tmp_path_factory.getbasetemp() / "plan.json"
    path.write_text(PlanDocument(changes=plan.changes).model_dump_json())
    assert read_plan(path) == plan


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "an object is wanted, got an array"),
        ({"schema_version": 2, "changes": []}, "schema_version 2"),
        ({"schema_version": "x"}, "schema_version"),
        ({"changes": 3}, "changes"),
        ({"changes": [3]}, "changes.0"),
        ({"changes": [{"setting": {}}]}, "changes.0.strategy: Field required"),
        ({"changes": [{"strategy": "a", "setting": []}]}, "changes.0.setting"),
        ({"changes": [{"strategy": "a"}, {"strategy": "a"}]}, "'a' stands in it twice"),
    ],
)
def test_what_is_no_plan_says_where(tmp_path: Path, document: object, said: str) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=said.replace(".", r"\.")) as caught:
        read_plan(tmp_path / "plan.json")
    assert "\n" not in caught.value.message


def test_the_document_is_that_of_the_contract() -> None:
    changes = [{"strategy": "workers", "setting": {"num_workers": 2}}]
    assert PlanDocument.model_validate({"changes": changes}).model_dump() == {"schema_version": 1, "changes": changes}


def test_a_plan_of_a_user_needs_no_version(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"changes": [{"strategy": "workers", "setting": {"num_workers": 2}}]}')
    assert read_plan(tmp_path / "plan.json").setting("workers") == {"num_workers": 2}


@given(st.one_of(json_values.map(lambda value: json.dumps(value).encode()), st.binary(max_size=60)))
def test_any_file_is_a_plan_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "plan.json"
    path.write_bytes(content)
    try:
        read_plan(path)
    except DocumentError as error:
        assert "\n" not in error.message
