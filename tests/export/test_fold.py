"""Folding decides what is known, and leaves the rest of the source as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from autoopt.export import printed
from autoopt.export.script import Draft, known_of
from autoopt.export.text import GIVEN, fold
from autoopt.records import Plan
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_facts


def folded(source: str, **known: object) -> str:
    names = {name.replace("__", "."): value for name, value in known.items()}
    return fold(textwrap.dedent(source), names)  # type: ignore[arg-type]


def test_what_is_known_to_be_none_leaves_parameters_arguments_methods_and_their_documentation() -> None:
    source = '''
    class Step:
        """A step.

        Args:
            model: what is trained.
            scaler: or None,
                told twice.
        """

        def __init__(self, model, *, scaler=None):
            self.model = model
            self.scaler = scaler

        def scaled(self):
            assert self.scaler is not None
            with self.scaler:
                return 1
            return 2


    step = Step(model, scaler=scaler)
    '''
    known = {"scaler": None, "self__scaler": None, "self__scaled": None}
    assert folded(source, **known) == textwrap.dedent('''
    class Step:
        """A step.

        Args:
            model: what is trained.
        """

        def __init__(self, model):
            self.model = model


    step = Step(model)
    ''')
    kept = folded(source, scaler=GIVEN, self__scaler=GIVEN)
    assert "def __init__(self, model, *, scaler=None)" in kept
    assert "assert" not in kept


def test_an_elif_on_what_is_known_is_refused() -> None:
    with pytest.raises((ValueError, TypeError)):
        folded("if a:\n    b()\nelif plan.x:\n    c()\n", plan__x=True)


def test_every_condition_of_printed_code_is_decided() -> None:
    known = known_of(Draft(Plan(), load_strategies(())), sample_facts())
    sources = [path.read_text() for path in Path(printed.__path__[0]).glob("*.py")]
    assert {f"plan.{name}" for source in sources for name in re.findall(r"\bplan\.(\w+)", source)} <= set(known)
