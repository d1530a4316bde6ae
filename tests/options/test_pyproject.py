"""``[tool.autoopt]`` of the user's pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import UsageError
from autoopt.options.pyproject import find_config, read_config


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
