"""The contract of a strategy: one class, used alike by built-in and custom ones."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from autoopt.records import Change, Environment, Estimate, JsonDict, Objective, Plan, Round, Stage, Trial
from autoopt.records.facts import WorkloadFacts
from autoopt.setup import Setup

MOST_SETTINGS = 12
"""A strategy that goes on asking for more settings in one round is stopped here."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Risk(StrEnum):
    """What must hold before a change is kept; see the contract's table."""

    EXACT = "exact"
    NUMERIC = "numeric"
    TRAINING = "training"
    MODEL = "model"

    @property
    def rank(self) -> int:
        return list(Risk).index(self)


@dataclass(frozen=True)
class Applies:
    """Yes, or no with the reason that a user reads."""

    ok: bool
    reason: str = ""

    @classmethod
    def yes(cls) -> Applies:
        return cls(True)

    @classmethod
    def no(cls, reason: str) -> Applies:
        return cls(False, reason)

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Recipe:
    """A change as a person would write it. ``None``: that way of training cannot express it.

    ``pytorch``: lines of code; ``lightning``: keywords of ``Trainer``; ``transformers``: keywords of
    ``TrainingArguments``; ``accelerate``: keys of its configuration file. A dict's ``"_note"`` is
    printed as a comment beside it.
    """

    pytorch: str | None = None
    lightning: JsonDict | None = None
    transformers: JsonDict | None = None
    accelerate: JsonDict | None = None


class PipelineView(Protocol):
    """What strategies may ask of the pipeline graph (``autoopt.simplify.pipeline.Pipeline``)."""

    @property
    def round(self) -> Round:
        """The round's document: stages, operators, bottleneck."""

    @property
    def stages(self) -> tuple[Stage, ...]: ...

    @property
    def step_seconds(self) -> float:
        """The measured step, in seconds."""

    def stage(self, name: str) -> Stage | None: ...

    def simulate(
        self,
        seconds: Mapping[str, float] | None = None,
        *,
        workers: int | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
    ) -> float:
        """Seconds of a steady step with some stages' seconds replaced, and another number of workers
        or compute threads. Cores are shared: workers and compute threads compete for them."""

    def gain(
        self,
        seconds: Mapping[str, float] | None = None,
        *,
        workers: int | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
    ) -> Estimate:
        """The predicted speedup of the same replacement; the interval carries the simulation's own error."""


@dataclass(frozen=True)
class Case:
    """What the loop knows when it asks a strategy. Plain data but for ``pipeline``.

    ``fits``: False while ``plan`` runs out of device memory and one that does not is looked for.
    """

    workload: WorkloadFacts
    environment: Environment
    objective: Objective
    plan: Plan = field(default_factory=Plan)
    setup: Setup = field(default_factory=Setup)
    pipeline: PipelineView | None = None
    trials: tuple[Trial, ...] = ()
    seconds_left: float | None = None
    planned_steps: int | None = None
    fits: bool = True

    @property
    def device(self) -> str:
        """``cpu``, ``cuda`` or ``mps``."""
        return self.environment.device.split(":")[0]

    def loader_option(self, name: str) -> Any:
        """A loader option as the incumbent has it: from the plan, else the user's own."""
        return self.setup.loader.get(name, getattr(self.workload.loader, name, None))

    def inspected(self, strategy: str) -> JsonDict:
        """What that strategy's ``inspect`` found in the live workload."""
        return self.workload.inspected.get(strategy, {})


Settings = Iterable[JsonDict] | Generator[JsonDict, Trial | None, None]


class Strategy(ABC):
    """One way to make training faster.

    Class attributes:
        name: unique, snake_case.
        stages: the names of the stages that it can shorten.
        risk: decides what must hold before it is kept.
        after: strategies that must stand before it in a plan.
        title: a few words for the report; the name where empty.
    """

    name: ClassVar[str]
    stages: ClassVar[frozenset[str] | set[str]] = frozenset()
    risk: ClassVar[Risk] = Risk.NUMERIC
    after: ClassVar[frozenset[str] | set[str]] = frozenset()
    title: ClassVar[str] = ""

    def applies(self, case: Case) -> Applies:
        """Yes, or no with the reason that a user reads."""
        return Applies.yes()

    def predict(self, case: Case, setting: JsonDict) -> Estimate | None:
        """The expected speedup of the step; None asks for the what-if of its stages at their ceiling."""
        return None

    def settings(self, case: Case) -> Settings:
        """What to try, the likeliest first. A generator receives each finished trial by ``send``."""
        return [{}]

    def lighter(self, case: Case) -> Iterable[tuple[float, JsonDict]]:
        """Optional: settings that take less device memory, for a workload that does not fit (``case.fits``).

        The batch of an optimizer step must stay what it is. Each later setting takes less memory than the
        one before, and costs more: the number is the cost, as a share of a step (0.3: about 30 % longer);
        1 where it is training of another precision, to which the workload as it is cannot be compared.
        Nothing: it saves no memory here.
        """
        return ()

    def companions(self, case: Case, setting: JsonDict) -> list[Change]:
        """Changes that belong with this one: tried together with it, then taken apart."""
        return []

    @abstractmethod
    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        """The next setup. Pure."""

    def recipe(self, setting: JsonDict) -> Recipe:
        """The lines a person would write by hand."""
        return Recipe()

    def inspect(self, live: Any) -> JsonDict:
        """Optional: facts that need the live workload (``autoopt.benchmark.trial_context.Live``), as JSON.

        Runs in a trial's process under the incumbent; its crash is a result, not the end.
        """
        return {}


def check_strategy(strategy: Strategy) -> list[str]:
    """What is wrong with a strategy's declaration, a sentence each; empty where nothing is."""
    wrong = []
    name = getattr(strategy, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wrong.append(f"name must be snake_case, got {name!r}")
    if not isinstance(strategy.risk, Risk):
        wrong.append(f"risk must be a Risk, got {strategy.risk!r}")
    for attribute in ("stages", "after"):
        value = getattr(strategy, attribute)
        if isinstance(value, str) or not all(isinstance(item, str) for item in value):
            wrong.append(f"{attribute} must be a set of names, got {value!r}")
    return wrong
