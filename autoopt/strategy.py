"""The contract of a strategy: one class, used alike by built-in and custom ones."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from autoopt.errors import nearest
from autoopt.records import (
    Change,
    Environment,
    Estimate,
    JsonDict,
    Objective,
    Plan,
    Round,
    Sites,
    Stage,
    StrEnum,
    Trial,
)
from autoopt.records.facts import WorkloadFacts
from autoopt.setup import Setup

MOST_SETTINGS = 12
"""A strategy that goes on asking for more settings in one round is stopped here."""
STAGES = (
    "storage", "preparation", "collate", "pin", "copy", "host", "forward", "backward", "communication", "optimizer",
    "evaluate", "checkpoint", "epoch", "start",
)  # fmt: skip
"""Names of the stages of a step, and of what comes between steps, in their order."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Risk(StrEnum):
    """Class of a change, by which it is decided what must hold before it is kept; see the contract's table."""

    EXACT = "exact"
    NUMERIC = "numeric"
    TRAINING = "training"
    MODEL = "model"

    @property
    def rank(self) -> int:
        return list(Risk).index(self)

    @property
    def trains_otherwise(self) -> bool:
        """Whether such a change is another training by intent, which only trainings to the target can judge."""
        return self in (Risk.TRAINING, Risk.MODEL)


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
class Edit:
    """The edit that a change makes at one place of a training script, for its patch.

    ``at``: ``loader`` (the training's), ``evaluation`` (the validation's), ``optimizer``, ``trainer`` (a library's) and
    ``wrapper`` (``DistributedDataParallel``) get ``arguments`` where they are made, ``moves`` where a batch is moved to
    the device; ``optimizer`` may have a line instead, an expression around its call, which is ``{call}`` in it;
    ``dataset`` and ``collate`` get one line, an expression in which ``{dataset}`` and ``{collate}`` stand
    for what the loader is given (``training_dataset``, ``training_collate``: that of the training alone, evaluation
    reads as before; ``evaluation_dataset``: that of the evaluation alone; without a line the dataset's class is edited
    elsewhere, and evaluations that read it get the ``arguments`` alone); ``model`` and
    ``loader_made`` (the training's) get ``lines`` below the statement that makes it, in which ``{model}`` and
    ``{loader}`` stand for its name there; ``step`` gets them below the optimizer's step; ``start`` gets ``lines`` below
    the imports; ``left_out`` removes the statements that its ``lines`` name, as ``train.py:9 gc.collect``.
    ``function``: statements of a function are edited; its ``lines`` are a file and the function's qualified name, and
    its first part, called with the file's text, that name and the ``arguments``, gives the first line, the last line
    and the new text of each, empty where it goes. ``call``: its ``lines`` are a file, a line, the name that is called
    there, and the expression in the call's place, in which ``{call}``, ``{called}`` and ``{arguments}`` stand for what
    is there. ``environment``: its ``arguments`` are variables that the command is started with, which are no lines of
    the script. ``imports``: modules that the lines name; ``{torch}`` stands for what the file calls torch. ``parts``:
    ``module:name`` of classes and functions that the lines name, printed into a file next to the script. ``batch``: its
    ``arguments`` are the ``size`` of a micro-batch and the ``accumulation`` that keeps the batch of a step what it is,
    its one part cuts a batch into pieces.
    """

    at: Literal[
        "loader",
        "loader_made",
        "evaluation",
        "dataset",
        "training_dataset",
        "evaluation_dataset",
        "collate",
        "training_collate",
        "moves",
        "optimizer",
        "trainer",
        "wrapper",
        "model",
        "step",
        "start",
        "environment",
        "left_out",
        "function",
        "call",
        "batch",
    ]
    lines: tuple[str, ...] = ()
    arguments: JsonDict = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A change as a user would write it. ``None``: that way of training cannot express it.

    ``pytorch``: lines of code; ``lightning``: keywords of ``Trainer``; ``transformers``: keywords of
    ``TrainingArguments``; ``accelerate``: keys of its configuration file. A dict's ``"_note"`` is
    printed as a comment next to it.

    ``edits``: all that it puts into a script next to what follows from the setup by itself (arguments of the loader,
    datasets and collate functions by ``Wrap``, moves, flags, precision, compilation of the whole model). Without edits
    a ``Wrap`` of the model is a line below it, and a change of anything else stays with the plan.
    """

    pytorch: str | None = None
    lightning: JsonDict | None = None
    transformers: JsonDict | None = None
    accelerate: JsonDict | None = None
    edits: tuple[Edit, ...] = ()

    @classmethod
    def noted(cls, code: str, note: str = "", edits: tuple[Edit, ...] = (), **ways: JsonDict | None) -> Recipe:
        """The same lines in every way of training, reported as a note where a trainer has no argument for them.

        Args:
            ways: ``lightning``, ``transformers`` or ``accelerate``, where that has arguments for them.
        """
        words: JsonDict = {"_note": note or code}
        every = {"lightning": words, "transformers": words, "accelerate": words, **ways}
        return cls(pytorch=code, edits=edits, **every)


class PipelineView(Protocol):
    """The pipeline graph as strategies see it (``autoopt.simplify.pipeline.Pipeline``)."""

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

    def gain(self, seconds: Mapping[str, float] | None = None, **options: int | None) -> Estimate:
        """The predicted speedup of the same replacement; the interval carries the simulation's own error."""

    def after(self, seconds: Mapping[str, float] | None = None, **options: int | None) -> PipelineView:
        """The pipeline as it is predicted to be after the same replacement."""


@dataclass(frozen=True)
class Case:
    """The state of the run when a strategy is asked. Plain data but for ``pipeline``.

    ``fits``: False while ``plan`` runs out of device memory and one that does not is looked for. ``sites``: of a
    script that is run as it is; a setup that cannot be put on it from outside is not tried. ``processes``: the most
    that may train together. ``page_faults``: minor faults of a step of the incumbent's main process; None where they
    were not counted.
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
    sites: Sites | None = None
    processes: int = 1
    page_faults: float | None = None

    @property
    def device(self) -> str:
        """``cpu``, ``cuda`` or ``mps``."""
        return self.environment.device.split(":")[0]

    def loader_option(self, name: str) -> Any:
        """A loader option as the incumbent has it: from the plan, else the user's own."""
        return self.setup.loader.get(name, getattr(self.workload.loader, name, None))

    def inspected(self, strategy: str) -> JsonDict:
        """Findings of that strategy's ``inspect`` in the live workload."""
        return self.workload.inspected.get(strategy, {})


@dataclass(frozen=True)
class Example:
    """A setting that trains anywhere and a case in which the strategy applies: all that its generic tests need.

    Attributes:
        setting: one that can be trained with on a CPU, on the tiny workload of ``autoopt.testing``.
        device: of the case in which it applies: ``cpu`` or ``cuda:0``.
        facts: fields of that case's ``WorkloadFacts`` that must be otherwise than in ``sample_case``.
        inspected: what its ``inspect`` finds in that case.
        setup: the incumbent's setup in that case.
        losses: how far the losses of the first steps may be from the untouched loop's, relatively; None: they differ.
        processes: the most that may train together in that case.
        fits: whether the incumbent does, in that case.
        sites: of the script in that case, as the fields of ``Sites``; None: a ``build()``.
        trains: whether a few steps can be trained with it on a CPU within a second or two.
        searched: False where no search tries it, and a user's plan alone holds it: it never applies, and says why.
    """

    setting: JsonDict = field(default_factory=dict)
    device: str = "cpu"
    facts: JsonDict = field(default_factory=dict)
    inspected: JsonDict = field(default_factory=dict)
    setup: Setup = field(default_factory=Setup)
    losses: float | None = 0.0
    trains: bool = True
    searched: bool = True
    processes: int = 1
    fits: bool = True
    sites: JsonDict | None = None


Settings = Iterable[JsonDict] | Generator[JsonDict, Trial | None, None]


class Strategy(ABC):
    """One way to make training faster.

    Class attributes:
        name: unique, snake_case.
        stages: the names of the stages that it can shorten.
        risk: decides what must hold before it is kept.
        after: strategies that must stand before it in a plan.
        excludes: strategies that bring nothing next to it: it takes their place in a plan, and they are not tried on
        it.
        title: a few words for the report; the name where empty.
        switchable: a process that trains can take its change on between two steps, and put it off again: one of
            ``with_precision``, ``with_loss``, ``with_transfer``, ``with_flags(threads=)``, of ``with_optimizer``
            where the class of the optimizer stays, or of ``with_model`` where its function changes the layout of
            tensors alone, and says so by an attribute ``layout_alone``. It is then examined block by block in one
            process before it is verified in processes of its own; with anything else in its setup it has a measurement
            of its own all the same.
        example: what ``autoopt.testing.StrategyTestCase`` tests it with; None: its defaults.
    """

    name: ClassVar[str]
    stages: ClassVar[frozenset[str] | set[str]] = frozenset()
    risk: ClassVar[Risk] = Risk.NUMERIC
    after: ClassVar[frozenset[str] | set[str]] = frozenset()
    excludes: ClassVar[frozenset[str] | set[str]] = frozenset()
    title: ClassVar[str] = ""
    switchable: ClassVar[bool] = False
    example: ClassVar[Example | None] = None

    def applies(self, case: Case) -> Applies:
        """Yes, or no with the reason that a user reads."""
        return Applies.yes()

    @property
    def between_steps(self) -> bool:
        """Whether it can shorten evaluations, or checkpoints, and nothing else, and trains as before."""
        own = set(self.stages)
        return len(own) == 1 and own <= {"evaluate", "checkpoint"} and not self.risk.trains_otherwise

    def predict(self, case: Case, setting: JsonDict) -> Estimate | None:
        """The expected speedup of the step; None asks for the what-if of its stages at their ceiling."""
        return None

    def settings(self, case: Case) -> Settings:
        """Settings to try, the likeliest first. A generator receives each finished trial by ``send``."""
        return [{}]

    def memory_savings(self, case: Case) -> Iterable[tuple[float, JsonDict]]:
        """Optional: settings that take less device memory, for a workload that does not fit (``case.fits``).

        The batch of an optimizer step must stay what it is. Each later setting takes less memory than the
        one before, and costs more: the number is the cost, as a share of a step (0.3: about 30 % longer);
        1 where it is training of another precision, to which the workload as it is cannot be compared.
        Nothing: it saves no memory here.
        """
        return ()

    def memory_saved(self, case: Case) -> float | None:
        """Optional: bytes that its ``memory_savings`` save at the very most; those that save little are tried later.

        Nothing: that is not known, and may be all that is missing.
        """
        return None

    def once_seconds(self, case: Case, setting: JsonDict) -> float | None:
        """Optional: seconds that a start with it takes beyond another one, such as to compile or to fill a cache.

        A start is not taken for hung before it had twice as long. Nothing: it starts as fast as the baseline.
        """
        return None

    def companions(self, case: Case, setting: JsonDict) -> list[Change]:
        """Changes that belong with this one: tried together with it, then ablated."""
        return []

    @abstractmethod
    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        """The next setup. Pure."""

    def recipe(self, setting: JsonDict) -> Recipe:
        """The lines a user would write manually."""
        return Recipe()

    def inspect(self, live: Any) -> JsonDict:
        """Optional: facts that need the live workload (``autoopt.benchmark.trial_context.Live``), as JSON.

        Runs in a trial's process under the incumbent, between two steps; its crash is a result, not the end.
        """
        return {}

    def inspect_steps(self, live: Any) -> JsonDict:
        """Optional: the same of what shows while the training goes on (``live.training.follow``)."""
        return {}


def check_strategy(strategy: Strategy) -> list[str]:
    """Faults of a strategy's declaration, a sentence each; empty where there are none."""
    wrong = []
    name = getattr(strategy, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wrong.append(f"name must be snake_case, got {name!r}")
    if not isinstance(strategy.risk, Risk):
        wrong.append(f"risk must be a Risk, got {strategy.risk!r}")
    for attribute in ("stages", "after", "excludes"):
        value = getattr(strategy, attribute)
        if isinstance(value, str) or not all(isinstance(item, str) for item in value):
            wrong.append(f"{attribute} must be a set of names, got {value!r}")
        elif attribute == "stages":
            unknown = sorted(set(value) - set(STAGES))
            wrong += [f"there is no stage {item!r}; {nearest(item, STAGES)}" for item in unknown]
    return wrong
