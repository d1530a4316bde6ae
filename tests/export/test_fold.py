"""Folding decides what is known, and leaves the rest of the source as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from autoopt.export import printed
from autoopt.export.script import Draft, known_of
from autoopt.export.text import GIVEN, Code, fold
from autoopt.records import Plan
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_facts


def folded(source: str, **known: object) -> str:
    names = {name.replace("__", "."): value for name, value in known.items()}
    return fold(textwrap.dedent(source), names)  # type: ignore[arg-type]


def test_conditions_are_decided_and_comments_stay() -> None:
    source = """
    # why
    if plan.cold:
        # inner
        warm()  # beside
    else:
        rest()
    while True:
        if plan.cold and here() or plan.dtype is None:
            go(1 if plan.cold else 2)
    """
    assert folded(source, plan__cold=True, plan__dtype=Code("torch.bfloat16")) == textwrap.dedent("""
    # why
    # inner
    warm()  # beside
    while True:
        if here():
            go(1)
    """)
    assert folded(source, plan__cold=False, plan__dtype=None) == textwrap.dedent("""
    # why
    rest()
    while True:
        go(2)
    """)


def test_loops_over_what_is_known_are_unrolled_and_keywords_are_written_out() -> None:
    source = "for change in plan.model:\n    model = change(model)\nload(data, size=1, **plan.options)\n"
    assert folded(source, plan__model=[Code("one(x=2)"), Code("two")], plan__options={"workers": Code("4")}) == (
        "model = one(x=2)(model)\nmodel = two(model)\nload(data, size=1, workers=4)\n"
    )
    assert folded(source, plan__model=[], plan__options={}) == "load(data, size=1)\n"


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
    known = known_of(Draft("m:build", Plan(), Setup()), sample_facts())
    sources = [path.read_text() for path in Path(printed.__path__[0]).glob("*.py")]
    assert {f"plan.{name}" for source in sources for name in re.findall(r"\bplan\.(\w+)", source)} <= set(known)
