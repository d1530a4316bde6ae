"""The search over one strategy: what it asks of the strategy, and what it answers."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from pathlib import Path
from typing import Any

from autoopt.records import Trial, Verdict
from autoopt.setup import Setup
from autoopt.strategy import MOST_SETTINGS, Case, Strategy
from simulated import World, product, strategy, verdicts


class Asking(Strategy):
    """Asks for each setting twice, for as long as it is answered, and keeps the answers."""

    name = "asking"

    def __init__(self) -> None:
        self.answers: list[Trial | None] = []

    def settings(self, case: Case) -> Generator[dict[str, Any], Trial | None, None]:
        for number in itertools.count():
            self.answers.append((yield {"number": number // 2}))

    def apply(self, setup: Setup, setting: dict[str, Any]) -> Setup:
        return setup.with_flags(asking=setting["number"])


def test_a_strategy_that_asks_without_end_is_stopped_and_told_of_each_trial(tmp_path: Path) -> None:
    """Every other setting it has asked for before: that is not tried again, and answered with None."""
    asking = Asking()
    outcome = World(tmp_path, asking, speed=product({"asking": 0.75}), budget=36000.0).go()
    tried = [trial for trial in outcome.state.trials if trial.strategy == "asking"]
    assert [trial.setting["number"] for trial in tried] == list(range(MOST_SETTINGS // 2))
    assert len(asking.answers) == MOST_SETTINGS
    assert asking.answers[::2] == tried
    assert asking.answers[1::2] == [None] * (MOST_SETTINGS // 2)
    assert set(verdicts(outcome)["asking"]) <= {Verdict.HARMFUL, Verdict.NO_GAIN}


def test_no_more_of_a_list_is_tried_either(tmp_path: Path) -> None:
    settings = tuple({"number": number} for number in range(MOST_SETTINGS + 5))
    listed = strategy("listed", settings=settings)
    outcome = World(tmp_path, listed, speed=product({"listed": 0.8}), budget=36000.0).go()
    assert [trial.setting for trial in outcome.state.trials] == list(settings[:MOST_SETTINGS])
