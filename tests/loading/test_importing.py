"""Import strings: five failures, five messages, and nothing but a WorkloadError whatever is given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.errors import WorkloadError
from autoopt.loading.importing import load, parse


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "") or ""):
            del sys.modules[name]


BUILD = "def build(): return 7\n"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("spec", "files"),
    [
        ("mine_one:build", {"mine_one.py": BUILD}),
        ("sub/mine_two.py:A.build", {"sub/mine_two.py": "class A:\n    @staticmethod\n    def build(): return 7\n"}),
        ("{here}/sub/mine_two.py:build", {"sub/mine_two.py": BUILD}),
        (
            "sub/mine_three.py:build",
            {"sub/by_three.py": BUILD, "sub/mine_three.py": "from by_three import *\n"},
        ),
        pytest.param("json.py:build", {"json.py": BUILD}, id="a file named like a known module"),
    ],
)
def test_what_a_spec_names_is_imported(here: Path, spec: str, files: dict[str, str]) -> None:
    import json

    write(here, files)
    assert load(spec.format(here=here))() == 7
    assert sys.modules["json"] is json


def test_a_file_in_a_package_keeps_its_relative_imports(here: Path) -> None:
    relative = "from ..other import value\nbuild = lambda: value\n"
    files = {"__init__.py": "", "inner/__init__.py": "", "other.py": "value = 10\n", "inner/mine.py": relative}
    write(here / "pack_four", files)
    build = load("pack_four/inner/mine.py:build")
    assert build() == 10
    assert build.__module__ == "pack_four.inner.mine"


def test_a_search_path_is_used_and_the_class_can_be_pickled_by_name(here: Path) -> None:
    write(here, {"far/mine_five.py": "class Data: pass\n"})
    data = load("mine_five:Data", [str(here / "far")])
    assert sys.modules[data.__module__].Data is data


@pytest.mark.parametrize("spec", ["", ":", "a", "a:", ":b", "a b:c", "a:b c", "a:1", "a::b", "1a:b", "a\n:b", "a..b:c"])
def test_malformed(spec: str) -> None:
    with pytest.raises(WorkloadError, match="is not MODULE:ATTRIBUTE") as caught:
        load(spec)
    assert "such as" in caught.value.hint


@pytest.mark.parametrize(
    ("spec", "there", "said", "hint"),
    [
        ("my_trainin:build", "my_training.py", "there is no module 'my_trainin'.*{here}", "my_training"),
        ("trian.py:build", "train.py", "there is no file trian.py, searched from", "train.py"),
        ("flat_six.deep:build", "flat_six.py", "there is no module 'flat_six.deep'", ""),
        pytest.param("mine_nine:build", "mine_nine.py", "importing mine_nine failed", "", id="its parent is missing"),
    ],
)
def test_what_is_not_found_is_told_with_the_directory_and_the_nearest(
    here: Path, spec: str, there: str, said: str, hint: str
) -> None:
    (here / there).write_text("import mine_nine.deeper\n" if "nine" in spec else "")
    with pytest.raises(WorkloadError, match=said.format(here=here)) as caught:
        load(spec)
    assert hint in caught.value.hint


def test_an_import_inside_shows_the_users_traceback_without_our_frames(here: Path) -> None:
    (here / "mine_seven.py").write_text("def f():\n    import not_there_at_all\n\nf()\n")
    with pytest.raises(WorkloadError, match=r"importing mine_seven failed: ModuleNotFoundError") as caught:
        load("mine_seven:build")
    assert "mine_seven.py" in caught.value.detail
    assert "line 2" in caught.value.detail
    assert "not_there_at_all" in caught.value.detail
    assert "importing.py" not in caught.value.detail
    assert "importlib" not in caught.value.detail


@pytest.mark.parametrize("where", ["mine_eight:build", "mine_eight.py:build"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ValueError('two\\nlines')", "ValueError: two"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(4)", "SystemExit: 4"),
        ("from json import not_in_it", "ImportError"),
        ("1/0", "ZeroDivisionError"),
    ],
)
def test_any_failure_inside(here: Path, where: str, code: str, said: str) -> None:
    (here / "mine_eight.py").write_text(code)
    with pytest.raises(WorkloadError, match="importing .*mine_eight.* failed") as caught:
        load(where)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 3


def test_attribute_missing_names_the_nearest_and_the_callables(here: Path) -> None:
    (here / "mine_ten.py").write_text(
        "from os.path import join\nlimit = 3\ndef build_it(): pass\ndef other(): pass\nclass Net: pass\n"
    )
    with pytest.raises(WorkloadError, match="mine_ten has no 'build'") as caught:
        load("mine_ten:build")
    assert "did you mean 'build_it'?" in caught.value.hint
    assert "Net, build_it, other" in caught.value.hint
    assert "join" not in caught.value.hint


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        where, attribute = parse(text)
    except WorkloadError as error:
        assert "\n" not in error.message
    else:
        assert f"{where}:{attribute}" == text


@given(st.from_regex(r"[a-z_./\\~0-9é\x00 ]{1,12}(\.py)?:[a-z_.]{1,6}", fullmatch=True))
def test_what_looks_like_an_import_string_is_loaded_or_refused(text: str) -> None:
    try:
        load(text)
    except WorkloadError as error:
        assert error.message


@given(st.one_of(st.none(), st.integers(), st.binary(), st.lists(st.text())))
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(WorkloadError):
        load(value)  # type: ignore[arg-type]
