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


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("budget", "2", "needs a unit"),
        ("budget", "-1h", "negative"),
        ("target", "high", "not a finite number"),
        ("target", "nan", "not a finite number"),
        ("target", "1e999", "not a finite number"),
        ("target", True, "not a finite number"),
        ("tolerance", "banana", "not a percentage"),
        ("tolerance", "0.5", "needs its sign: 0.5%"),
        ("tolerance", 0.005, "needs its sign"),
        ("tolerance", "-1%", "from 0% to 100%"),
        ("tolerance", "101%", "from 0% to 100%"),
        ("tolerance", "%", "not a percentage"),
        ("min-gain", "2000%", "from 0% to 1000%"),
        ("device", "cuda:x", "no such device"),
        ("device", "gpu", "no such device"),
        ("seed", "-1", "whole number"),
        ("seed", "1.5", "whole number"),
        ("seed", 1.0, "whole number"),
        ("seed", True, "whole number"),
        ("seed", "4294967296", "whole number"),
        ("seed", "٣", "whole number"),
        ("only", "", "names nothing"),
        ("only", " , ", "names nothing"),
        ("only", 3, "comma-separated"),
        ("skip", [1], "comma-separated"),
        ("strategies", "my_pkg.my_mod", "no MODULE:CLASS"),
        ("strategies", "a:b:c", "no MODULE:CLASS"),
        ("allow", "everything", "none of exact"),
        ("executor", "slurm", "none of local, ray"),
        ("memory-limit", "8", "with its unit"),
        ("memory-limit", "8iB", "with its unit"),
        ("memory-limit", "-1GiB", "with its unit"),
        ("memory-limit", "0GiB", "above 0"),
        ("price", "0", "above 0"),
        ("price", "-2", "above 0"),
        ("price", "3.50$", "not a finite number"),
        ("log", "csv", "none of mlflow"),
        ("out", "", "a directory is wanted"),
        ("out", "a\0b", "a directory is wanted"),
        ("out", "~nobody-of-that-name/x", "no such home directory"),
        *(("nproc", given, "nproc") for given in ("0", "4..1", "-2", "two", "1...4", 2.0, True)),
        ("json", "yes", "true or false"),
        ("quiet", 1, "true or false"),
        pytest.param("seed", 10**5000, "can be used", id="huge seed"),
        pytest.param("budget", 10**5000, "can be used", id="huge budget"),
    ],
)
def test_values_that_are_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_options({key: value}, label=lambda key, _: f"--{key}")
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


def test_what_is_given_wins_over_the_configuration() -> None:
    options = make_options({"seed": "3", "tolerance": None}, {"seed": 1, "tolerance": 0.02})
    assert (options.seed, options.tolerance) == (3, 0.02)


def test_a_strategy_cannot_be_both_chosen_and_left_out() -> None:
    with pytest.raises(UsageError, match="'amp' stands in both"):
        make_options({"only": "amp", "skip": "workers,amp"})


def test_messages_of_the_python_api_speak_python() -> None:
    with pytest.raises(UsageError, match=r"^optimize\(min_gain='x'\): not a percentage"):
        make_options({"min_gain": "x"})


RISKS = {"workers": "exact", "amp": "numeric", "batch": "training"}


def test_names_that_there_are_pass() -> None:
    check_names(make_options({"only": "amp", "skip": "workers"}), RISKS)


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
