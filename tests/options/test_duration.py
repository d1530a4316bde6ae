"""Durations as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import UsageError
from autoopt.options.parsers import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200.0),
        ("90m", 5400.0),
        ("1h30m", 5400.0),
        ("45s", 45.0),
        ("1.5h", 5400.0),
        (".5m", 30.0),
        ("1d", 86400.0),
        ("1H 30M", 5400.0),
        ("  2h\n", 7200.0),
        ("1h0m1s", 3601.0),
    ],
)
def test_durations_that_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("value", ["2", "2.5", 2, 90.0, "+3"])
def test_a_bare_number_asks_for_its_unit(value: object) -> None:
    with pytest.raises(UsageError, match="needs a unit") as caught:
        parse_duration(value)
    assert "1h30m" in caught.value.hint


@pytest.mark.parametrize(
    "value",
    [
        *["-1h", "-5", "-", "", " ", "0s", "0h0m", "h", "1m1h", "1h1h", "banana", "1e9h", "nan", "infs", "²h", "٣h"],
        *["1h-2m", "9" * 400 + "h", True, None, [], {}, b"2h"],
    ],
)
def test_what_is_no_duration_gets_an_example(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(value)
    assert "such as 2h, 90m, 1h30m or 45s" in caught.value.hint
    assert "\n" not in caught.value.message


@given(st.integers(1, 10**9))
def test_what_is_formatted_is_read_back(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.binary(), st.from_regex(r"[-+0-9.dhms ]*")))
def test_any_value_is_a_duration_or_a_usage_error(value: object) -> None:
    try:
        seconds = parse_duration(value)
    except UsageError as error:
        assert error.hint
    else:
        assert 0 < seconds < math.inf


@pytest.mark.parametrize(
    ("seconds", "text"), [(5400, "1h30m"), (45.2, "45s"), (3600, "1h"), (0.25, "0.25s"), (0.0, "0s"), (60.4, "1m")]
)
def test_durations_as_people_write_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
