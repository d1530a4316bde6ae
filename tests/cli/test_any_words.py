"""Whatever words are typed: an exit code of the contract, one clear message, never a traceback of ours."""

from __future__ import annotations

import contextlib
import io
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample
from autoopt.cli import main
from autoopt.cli.group import COMMANDS
from autoopt.options import OPTIONS


@pytest.fixture(scope="module", autouse=True)
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An engine that answers at once, in an empty directory."""
    module: Any = types.ModuleType("autoopt.api")
    result = sample.no_gain()
    bare = result.model_copy(update={"reproduce": result.reproduce.model_copy(update={"run_directory": None})})
    module.optimize_run = lambda spec, options, *, listeners: bare
    module.profile_run = lambda spec, options, **_: sample.profile()
    folder = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(sys.modules, "autoopt.api", module)
        patch.setattr("autoopt.cli.doctor.describe_machine", lambda device: (result.environment, []))
        patch.setattr("autoopt.cli.finish.show", lambda page: None)
        yield folder


VALUES = ["2h", "2", "-1h", "0.5%", "banana", "cuda:1", "a,b", ",", "model", "ray", "mlflow", "nan", "m:C", "--", "."]
word = st.one_of(
    st.sampled_from([f"--{key}" for key in OPTIONS]),
    st.sampled_from(["", *VALUES]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)


def check(*words: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    assert code in (0, 2, 3, 4), (code, err.getvalue())
    assert "Traceback" not in err.getvalue()
    assert not code or (out.getvalue() == "" and err.getvalue().startswith(("autoopt: error: ", "Usage: ")))


@given(st.sampled_from(["optimize", "profile"]), st.lists(word, max_size=5))
def test_any_words_of_a_search(command: str, words: list[str]) -> None:
    check(command, "m:b", "--quiet", *words)


@given(
    st.sampled_from(["resume", "report", "export", "apply", "revert", "train", "verify"]), st.lists(word, max_size=4)
)
def test_any_words_of_a_command_about_a_run(command: str, words: list[str]) -> None:
    check(command, *words)


@given(st.lists(st.one_of(st.sampled_from(COMMANDS[1:8]), word), max_size=3))
def test_any_words_at_all(words: list[str]) -> None:
    check(*words)
