"""A script's own evaluations at the weights of its first step, which are put back after every step."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from autoopt.records.evaluating import HeldEvaluations
from autoopt.script.between import Interruption
from autoopt.script.goal import Goal
from autoopt.script.held import HeldWeights


def held_evaluations(training: Any, count: int, seconds: float) -> HeldEvaluations:
    """Trains on until it has evaluated so often; the weights stay what they are.

    Args:
        training: the ``ScriptTraining``, which stands at a step's end.
        count: evaluations that are waited for.
        seconds: after which no other one is.
    """
    session, between, watchers = training.session, training.session.between, training.script.joints.watchers
    model = training.model
    state = session.in_main(lambda: {name: value.clone() for name, value in model.state_dict().items()})
    held, before, began = HeldWeights(training, state), len(between.of("evaluate")), perf_counter()
    watchers.append(held)

    def made() -> dict[int, list[Interruption]]:
        found: dict[int, list[Interruption]] = {}
        for each in between.of("evaluate")[before:]:
            found.setdefault(each.step, []).append(each)
        return found

    def enough(done: int, elapsed: float) -> bool:
        return len(made()) >= count or perf_counter() - began > seconds

    goal: Goal = training.follow(enough, lambda *_: held.put())
    watchers.remove(held)
    each = list(made().values())
    told = held.told(goal, None)
    return HeldEvaluations(
        seconds=tuple(sum(part.seconds for part in parts) for parts in each),
        samples=sum(part.samples for part in each[0]) or None if each else None,
        metric=told[0] if told else None,
        value=told[1] if told and not held.others else None,
        digits=decimals(told[1]) if told else None,
        why="" if each else f"no evaluation came within {perf_counter() - began:.0f} s",
    )


def decimals(value: float) -> int:
    """Decimals with which a number was told, by the shortest text that gives it."""
    return len(repr(value).partition("e")[0].partition(".")[2].rstrip("0"))
