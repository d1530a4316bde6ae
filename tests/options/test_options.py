"""Every option: what it reads, what it refuses and how it says so."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import UsageError
from autoopt.options import KEYS, Options, check_names, make_options, parse_percent


def test_every_field_has_a_key() -> None:
    names = {key.replace("-", "_") for key in KEYS} - {"budget"} | {"budget_seconds"}
    assert names == {field.name for field in fields(Options)}


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("budget", "1h30m", "budget_seconds", 5400.0),
        ("target", "0.93", "target", 0.93),
        ("target", -1.5, "target", -1.5),
        ("tolerance", "0.5%", "tolerance", 0.005),
        ("tolerance", "0%", "tolerance", 0.0),
        ("min-gain", "1 %", "min_gain", 0.01),
        ("min_gain", "250%", "min_gain", 2.5),
        ("device", "cuda:1", "device", "cuda:1"),
        ("memory-limit", "8GiB", "memory_limit", 8 << 30),
        ("memory_limit", "1.5 MB", "memory_limit", 1_500_000),
        ("memory-limit", "4096B", "memory_limit", 4096),
        ("seed", "7", "seed", 7),
        ("seed", 4294967295, "seed", 2**32 - 1),
        ("only", "a, b,,a", "only", ("a", "b")),
        ("only", ("a,b", "c"), "only", ("a", "b", "c")),
        ("skip", ["a"], "skip", ("a",)),
        ("strategies", "my_pkg.my_mod:Mine,other:Theirs", "strategies", ("my_pkg.my_mod:Mine", "other:Theirs")),
        ("allow", "training,model", "allow", ("exact", "numeric", "training", "model")),
        ("allow", "model", "allow", ("exact", "numeric", "training", "model")),
        ("executor", "ray", "executor", "ray"),
        ("executor", "ray://10.0.0.1:10001", "executor", "ray://10.0.0.1:10001"),
        ("price", "3.50", "price", 3.5),
        ("log", "mlflow,wandb", "log", ("mlflow", "wandb")),
        ("out", "runs/first", "out", Path("runs/first")),
        ("out", Path("x"), "out", Path("x")),
        *(
            ("nproc", given, "processes", meant)
            for given, meant in (("1", (1, 1)), (4, (4, 4)), ("4", (4, 4)), ("1..4", (1, 4)), ("2..2", (2, 2)))
        ),
        ("json", True, "json", True),
        ("quiet", True, "quiet", True),
        ("open", False, "open", False),
    ],
)
def test_values_that_are_read(key: str, value: object, field: str, expected: object) -> None:
    assert getattr(make_options({key: value}), field) == expected


REFUSED: dict[str, dict[str, list[object]]] = {
    "budget": {"needs a unit": ["2"], "negative": ["-1h"], "can be used": [10**5000]},
    "target": {"not a finite number": ["high", "nan", "1e999", True]},
    "tolerance": {
        "not a percentage": ["banana", "%"],
        "needs its sign": ["0.5", 0.005],
        "from 0% to 100%": ["-1%", "101%"],
    },
    "min-gain": {"from 0% to 1000%": ["2000%"]},
    "device": {"no such device": ["cuda:x", "gpu"]},
    "seed": {"whole number": ["-1", "1.5", 1.0, True, "4294967296", "٣"], "can be used": [10**5000]},
    "only": {"names nothing": ["", " , "], "comma-separated": [3]},
    "skip": {"comma-separated": [[1]]},
    "strategies": {"no MODULE:CLASS": ["my_pkg.my_mod", "a:b:c"]},
    "allow": {"none of exact": ["everything"]},
    "executor": {"none of local, ray": ["slurm"]},
    "memory-limit": {"with its unit": ["8", "8iB", "-1GiB"], "above 0": ["0GiB"]},
    "price": {"above 0": ["0", "-2"], "not a finite number": ["3.50$"]},
    "log": {"none of mlflow": ["csv"]},
    "out": {"a directory is wanted": ["", "a\0b"], "no such home directory": ["~nobody-of-that-name/x"]},
    "nproc": {"nproc": ["0", "4..1", "-2", "two", "1...4", 2.0, True]},
    "json": {"true or false": ["yes"]},
    "quiet": {"true or false": [1]},
}


@pytest.mark.parametrize(
    ("key", "message", "place"),
    [
        (key, message, place)
        for key, messages in REFUSED.items()
        for message, values in messages.items()
        for place in range(len(values))
    ],
)
def test_values_that_are_refused(key: str, message: str, place: int) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_options({key: REFUSED[key][message][place]}, label=lambda key, _: f"--{key}")
    assert key in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("raw", "near"),
    [
        ({"budgett": "2h"}, "budget"),
        ({"mingain": "1%"}, "min-gain"),
        ({"executor": "rai"}, "ray"),
        ({"log": "mlfow"}, "mlflow"),
        ({"allow": "modle"}, "model"),
        ({"device": "CUDA"}, "cuda"),
    ],
)
def test_the_nearest_name_is_offered(raw: dict[str, object], near: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_options(raw)
    assert f"did you mean {near}?" in caught.value.hint


def test_messages_of_the_python_api_speak_python() -> None:
    with pytest.raises(UsageError, match=r"^optimize\(min_gain='x'\): not a percentage"):
        make_options({"min_gain": "x"})


RISKS = {"workers": "exact", "amp": "numeric", "batch": "training"}


@pytest.mark.parametrize(("key", "name", "near"), [("only", "ampp", "amp"), ("skip", "worker", "workers")])
def test_a_strategy_that_does_not_exist_gets_the_nearest_name(key: str, name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"--{key}: there is no strategy '{name}'") as caught:
        check_names(make_options({key: name}), RISKS)
    assert caught.value.hint == f"did you mean {near}?"


def test_allowing_a_class_that_no_strategy_has_pretends_nothing() -> None:
    options = make_options({"allow": "model"})
    with pytest.raises(UsageError, match="--allow model: there is no strategy"):
        check_names(options, RISKS)
    check_names(options, {**RISKS, "lora": "model"})


@given(st.integers(0, 10_000))
def test_percentages_are_fractions(hundredths: int) -> None:
    assert parse_percent(f"{hundredths / 100}%", most=1.0) == pytest.approx(hundredths / 10_000, abs=1e-15)


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text()), anything, max_size=4))
def test_any_mapping_becomes_options_or_one_line(raw: dict[str, object]) -> None:
    try:
        options = make_options(raw, label=lambda key, value: "--x")
    except UsageError as error:
        assert error.message
        assert "\n" not in error.message
    else:
        assert options.budget_seconds > 0
        assert 0 <= options.tolerance <= 1
