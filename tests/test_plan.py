"""plan.json: what is written is read, what is damaged is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import DocumentError
from autoopt.plan import parse_plan, read_plan
from autoopt.records import Change, Plan, PlanDocument

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


def test_the_document_is_that_of_the_contract() -> None:
    document = PlanDocument(changes=(Change(strategy="workers", setting={"num_workers": 2}),))
    assert document.model_dump() == {
        "schema_version": 1,
        "changes": [{"strategy": "workers", "setting": {"num_workers": 2}}],
    }


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "a plan is an object, got list"),
        ({"schema_version": 2, "changes": []}, "schema_version 2"),
        ({"schema_version": "x"}, "schema_version"),
        ({"changes": 3}, "changes"),
        ({"changes": [3]}, "changes.0"),
        ({"changes": [{"setting": {}}]}, "changes.0.strategy: is missing"),
        ({"changes": [{"strategy": "a", "setting": []}]}, "changes.0.setting"),
        ({"changes": [{"strategy": "a"}, {"strategy": "a"}]}, "'a' stands in it twice"),
    ],
)
def test_what_is_no_plan_says_where(document: object, said: str) -> None:
    with pytest.raises(DocumentError, match=said.replace(".", r"\.")) as caught:
        parse_plan(document, "plan.json")
    assert "\n" not in caught.value.message


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_file_is_a_plan_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "plan.json"
    path.write_bytes(content)
    with pytest.raises(DocumentError):
        read_plan(path)


@given(json_values)
def test_any_document_is_a_plan_or_refused(document: object) -> None:
    try:
        parse_plan(document)
    except DocumentError as error:
        assert "\n" not in error.message


@pytest.mark.parametrize("content", ["[" * 100_000, '{"schema_version": ' + "9" * 5000 + "}", "\ufeff{}"])
def test_documents_that_break_parsers_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content, encoding="utf-8")
    with pytest.raises(DocumentError):
        read_plan(tmp_path / "plan.json")
