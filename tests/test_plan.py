"""plan.json: what is written is read, what is damaged is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import DocumentError
from autoopt.records import Change, Plan, PlanDocument
from autoopt.records.reading import read_plan

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
