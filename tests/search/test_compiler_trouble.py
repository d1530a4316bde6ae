"""Trouble of the compiler stands in the reason of the verdict, and a strategy may answer to it."""

from __future__ import annotations

import pytest

from autoopt.benchmark.compiling import AGAIN
from autoopt.records import Change, Plan, Trial, Verdict
from autoopt.records.messages import Startup
from autoopt.registry import load_strategies
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.contest import compare
from autoopt.testing import FakeMachine
from autoopt.testing.fakes import FakeArm
from autoopt.testing.strategies import sample_case

COMPILED = Plan(changes=(Change(strategy="compile", setting={"mode": "default"}),))
STORM = f"{AGAIN} (forward, 8 times or more; the last for: size mismatch)"


def test_a_storm_is_named_in_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = FakeArm.warm_up

    def warm_up(self: FakeArm, max_seconds: float) -> Startup:
        startup = plain(self, max_seconds)
        return startup.model_copy(update={"compiler": STORM}) if self.plan.changes else startup

    monkeypatch.setattr(FakeArm, "warm_up", warm_up)
    fake = FakeMachine()
    found = compare(fake.start, Plan(), COMPILED, Rule(max_seconds=60), clock=fake.clock)
    assert found.reason.endswith(f"; {STORM}")
    assert AGAIN not in compare(fake.start, Plan(), Plan(), Rule(max_seconds=60), clock=fake.clock).reason


def trial(reason: str) -> Trial:
    return Trial(id=1, round=0, strategy="compile", setting={}, base="baseline", verdict=Verdict.NO_GAIN, reason=reason)


def test_after_a_storm_any_shape_is_expected() -> None:
    conversation = load_strategies()["compile"].settings(sample_case())
    first = next(conversation)
    assert not first.get("dynamic")
    assert conversation.send(trial(f"no gain; {STORM}")) == {**first, "dynamic": True}
    assert not conversation.send(trial("no gain")).get("dynamic")
