"""A workload that does not fit: the first stack of memory strategies under which a step trains, its baseline.

``autoopt optimize`` needs a baseline that trains. This looks for the smallest stack that makes it one, with
the strategies that there are and trials that may run out of memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoopt.errors import AutooptError, TrialFailed
from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import TrialSpec

STACK = (
    Change(strategy="checkpointing", setting={"every": 1, "selective": False}),
    Change(strategy="optimizer_in_backward"),
    Change(strategy="amp", setting={"dtype": "bfloat16"}),
)
"""The likeliest and the least harmful first. Attention is rewritten by the search proper alone: it must see it run."""


@dataclass(frozen=True)
class Fitted:
    """``tried``: what each plan came to, the failures in words; ``plan``: the one that trains, or None."""

    plan: Plan | None
    tried: tuple[dict[str, Any], ...]

    @property
    def untouched_fits(self) -> bool:
        return self.plan is not None and not self.plan.changes


def fit(spec: TrialSpec, logs: Path, *, launcher: Launcher, say: Callable[[str], None] = lambda text: None) -> Fitted:
    """Tries the untouched workload, then one memory strategy more at a time.

    Args:
        spec: the untouched trial.
        logs: the folder of the trials' logs.
    """
    tried: list[dict[str, Any]] = []
    registry = load_strategies()
    for number, plan in enumerate(plans(registry)):
        outcome = trains(launcher, spec.model_copy(update={"plan": plan}), logs / f"fit-{number}.log")
        names = ", ".join(plan.names()) or "untouched"
        say(f"{names}: {outcome or 'fits'}")
        tried.append({"plan": list(plan.names()), "outcome": outcome or "fits"})
        if outcome is None:
            return Fitted(plan, tuple(tried))
    return Fitted(None, tuple(tried))


def plans(registry: Any) -> list[Plan]:
    """The plans to try, from the empty one on."""
    changes: list[Change] = []
    found = [Plan()]
    for change in STACK:
        changes.append(change)
        found.append(registry.order(Plan(changes=tuple(changes))))
    return found


def trains(launcher: Launcher, spec: TrialSpec, log: Path) -> str | None:
    """None where steps train, on the largest batch too; else why not."""
    flags = load_strategies().fold(spec.plan).flags
    try:
        trial = launcher.start(spec.model_copy(update={"flags": {**spec.flags, **flags}}), log=log, timeout=900)
        with trial:
            trial.call("autoopt.benchmark.tasks:ready", timeout=900)
            trial.call("autoopt.benchmark.tasks:probe_losses", timeout=900, steps=3)
            trial.call("autoopt.benchmark.tasks:largest_batch", timeout=900)
    except TrialFailed as failure:
        return str(failure.reason)
    except AutooptError as error:
        return f"error: {error.message}"
    return None


def spec_of(workload: str, device: str, memory_limit: int | None = None) -> TrialSpec:
    """The trial of the untouched workload."""
    return TrialSpec(workload=workload, device=device, seed=0, directory=os.getcwd(), memory_limit_bytes=memory_limit)
