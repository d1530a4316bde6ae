"""Every option: what it reads, what it refuses and how it says so, on the command line and in pyproject.toml."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import UsageError
from autoopt.options import OPTIONS, Options, check_names, make_options, parse_percent
from autoopt.options.parsers import format_duration, parse_duration
from autoopt.options.pyproject import find_config, read_config


def test_every_field_has_a_key() -> None:
    names = {key.replace("-", "_") for key in OPTIONS} - {"budget"} | {"budget_seconds"}
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


@given(st.dictionaries(st.one_of(st.sampled_from(sorted(OPTIONS)), st.text()), anything, max_size=4))
def test_any_mapping_becomes_options_or_one_line(raw: dict[str, object]) -> None:
    try:
        options = make_options(raw, label=lambda key, value: "--x")
    except UsageError as error:
        assert error.message
        assert "\n" not in error.message
    else:
        assert options.budget_seconds > 0
        assert 0 <= options.tolerance <= 1


# Durations as text.


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


# The table ``[tool.autoopt]`` of the user's pyproject.toml.


def write(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_keys_are_those_of_the_command_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        '[tool.autoopt]\nbudget = "90m"\ntarget = 0.93\nmin-gain = "2%"\nseed = 3\nonly = ["amp", "workers"]\n'
        'skip = "compile,batch"\nquiet = true\n',
    )
    assert read_config(tmp_path) == {
        "budget_seconds": 5400.0,
        "target": 0.93,
        "min_gain": 0.02,
        "seed": 3,
        "only": ("amp", "workers"),
        "skip": ("compile", "batch"),
        "quiet": True,
    }


def test_the_nearest_table_wins_and_files_without_one_are_passed(tmp_path: Path) -> None:
    write(tmp_path, "[tool.autoopt]\nseed = 1\n")
    near = write(tmp_path / "a", "[tool.autoopt]\nseed = 2\n")
    write(tmp_path / "a" / "b", "[tool.ruff]\n")
    assert read_config(tmp_path / "a" / "b" / "c") == {"seed": 2}
    found = find_config(tmp_path / "a" / "b")
    assert found[0] == near


def test_a_relative_run_directory_belongs_to_the_file_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, '[tool.autoopt]\nout = "runs/x"\n')
    assert read_config(tmp_path / "deep" / "down")["out"] == tmp_path / "runs" / "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.autoopt]\nbudgt = '2h'\n", r"\[tool.autoopt\] budgt = '2h' in .*pyproject.toml: there is no such"),
        ("[tool.autoopt]\nbudget = 2\n", "budget = 2 in .*needs a unit"),
        ("[tool.autoopt]\nout = '\\u0000'\n[tool.x", "not valid TOML"),
        ('[tool.autoopt]\nout = "\\u0000"\n', "a directory is wanted"),
        ("[tool\n", "not valid TOML"),
        (b"\xff\xfe", "cannot read"),
        ("tool = 3\n[x]\n", None),
        ("[tool]\nautoopt = 3\n", "must be a table"),
        ("[[tool.autoopt]]\nseed = 3\n", "must be a table"),
        ("[tool.autoopt.nested]\nseed = 3\n", "nested = .*no such option"),
        (f"[tool.autoopt]\nseed = 0x{'f' * 6000}\n", "seed: not a value|whole number"),
        (f"[tool.autoopt]\nseed = {'9' * 6000}\n", "not valid TOML"),
        ("[tool.autoopt]\nseed = " + "[" * 5000 + "]" * 5000, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str | bytes, message: str | None) -> None:
    write(tmp_path, text)
    if message is None:
        assert read_config(tmp_path) == {}
        return
    with pytest.raises(UsageError, match=message) as caught:
        read_config(tmp_path)
    assert "\n" not in caught.value.message
    assert "budgt" not in str(text) or caught.value.hint == "did you mean budget?"


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: f"[tool.autoopt]\n{text}".encode())))
def test_any_file_gives_options_or_one_line(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    write(folder, text)
    try:
        read_config(folder)
    except UsageError as error:
        assert error.message
