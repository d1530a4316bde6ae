"""The settings of one comparison, which the command, the tool and Python share."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from autoopt.cli.compare import compare_command
from autoopt.cli.judge import judge_command
from autoopt.comparing.ask import Ask, requirement_of
from autoopt.errors import UsageError
from autoopt.script.command import parse


def test_every_setting_is_an_option_of_a_command() -> None:
    options = {each.name for command in (compare_command, judge_command) for each in command.params}
    assert {"require" if each.name == "requirement" else each.name for each in fields(Ask)} <= options


def test_the_command_asks_for_the_same() -> None:
    ask = Ask("main", "train.py --fast", requirement_of("not-slower=3%"), Path("asks.jsonl"))
    assert ask.command(parse("train.py --epochs 3"), budget="5m", metric=None) == (
        "autoopt compare --baseline main --candidate 'train.py --fast' --ledger asks.jsonl --require not-slower=3% "
        "--budget 5m train.py -- --epochs 3"
    )


@pytest.mark.parametrize("text", ["faster", "not-slower=0%", "not-slower=3%"])
def test_a_requirement_is_read_as_it_is_told(text: str) -> None:
    assert requirement_of(text).text == text


@pytest.mark.parametrize(
    ("text", "said"), [("fastest", "no such requirement"), ("not-slower=3", "needs its sign"), ("not-slower=80%", "0%")]
)
def test_a_bad_requirement_is_refused_with_an_example(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--require {text}: .*{said}"):
        requirement_of(text)
