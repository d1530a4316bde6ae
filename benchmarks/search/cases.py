"""Simulated cases: strategies whose true gains, interactions and costs are those that were measured by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoopt.records import Change, Estimate, EstimateKind, JsonDict
from autoopt.setup import Setup
from autoopt.strategy import Applies, Case, Risk, Strategy

USELESS = dict.fromkeys(("pin", "prefetch", "matmul", "fused", "cudnn"), 1.0)

NUMERIC = frozenset({"amp", "attention", "channels_last", "compile", "cudnn", "fused", "matmul"})
"""Changes of rounding: their quality takes probes, at weights that a training keeps."""
SWITCHABLE = frozenset(
    {"amp", "matmul", "matmul_precision", "fused", "fused_optimizer", "threads", "prefetch", "device_prefetch"}
)
"""Changes that a running process takes on: as the strategies of these names say of themselves."""
TRIED = frozenset({"amp", "attention", "channels_last", "fused", "matmul"})
"""Changes that are tried on a copy of the module: what that predicts errs little, either way."""


@dataclass(frozen=True)
class Switched:
    """A change of the loss in name alone."""

    name: str

    def __call__(self, loss: Any) -> Any:
        return loss


@dataclass(frozen=True)
class SimulatedCase:
    """A workload on a machine.

    Args:
        gains: true speedup of each strategy alone, in priority order.
        together: the true speed of a set of changes, where that is not the product.
        costs: seconds that a change costs once in every start, by its name.
        companions: changes that a strategy names.
        hangs: strategies that hang while they are set up.
        predicted: whether a prediction is known: within a fifth of the truth, and above it for what brings nothing; of
            what is tried on a copy within 6 %, either way.
        numeric: changes that may alter the last digits of what is learnt.
        excludes: changes beside which one says that it does not apply; ``replaces``: those whose place it takes. As
            amp and matmul_precision do, where nothing else is given.
        switchable: changes that a running process can take on.
        graph: changes that make another graph, which is compiled anew; a later start finds what was compiled.
    """

    name: str
    gains: dict[str, float]
    together: Callable[[frozenset[str]], float | None] = lambda names: None
    costs: dict[str, float] = field(default_factory=dict)
    companions: dict[str, str] = field(default_factory=dict)
    hangs: frozenset[str] = frozenset()
    start_seconds: float = 2.0
    step_seconds: float = 0.05
    steps: int = 600
    predicted: bool = True
    numeric: frozenset[str] = NUMERIC
    excludes: dict[str, frozenset[str]] = field(default_factory=lambda: {"matmul": frozenset({"amp"})})
    replaces: dict[str, frozenset[str]] = field(default_factory=lambda: {"amp": frozenset({"matmul"})})
    graph: frozenset[str] | None = None
    switchable: frozenset[str] = SWITCHABLE

    def speed(self, names: tuple[str, ...]) -> float:
        found = self.together(frozenset(names))
        return found if found is not None else math.prod(self.gains[name] for name in names)

    def fixed(self, names: tuple[str, ...]) -> float:
        return sum(self.costs.get(name, 0.0) for name in names)

    def graph_of(self, names: tuple[str, ...]) -> frozenset[str]:
        """The part of a plan that a compiler's cache goes by."""
        return frozenset(names) if self.graph is None else self.graph & frozenset(names)

    def strategies(self, rng: np.random.Generator) -> list[Strategy]:
        return [_made(self, name, gain, rng) for name, gain in self.gains.items()]


def _made(case: SimulatedCase, name: str, gain: float, rng: np.random.Generator) -> Strategy:
    error = float(rng.standard_normal())
    reported = max(gain, 1.0) * math.exp(abs(0.1 * error))
    tried = gain * math.exp(0.03 * error)

    class Made(Strategy):
        excludes = case.replaces.get(name, frozenset()) & case.gains.keys()
        switchable = name in case.switchable
        risk = Risk.NUMERIC if name in case.numeric else Risk.EXACT
        stages = frozenset({"storage", "preparation"}) if name in ("workers", "cache") else frozenset({"forward"})

        def applies(self, known: Case) -> Applies:
            others = case.excludes.get(name, frozenset()) & set(known.plan.names())
            return Applies.no(f"not beside {min(others)}") if others else Applies.yes()

        def predict(self, known: Case, setting: JsonDict) -> Estimate | None:
            if not case.predicted:
                return None
            if name in TRIED:
                return Estimate(value=tried, low=0.94 * tried, high=1.06 * tried, n=3, kind=EstimateKind.TRIED)
            return Estimate(value=reported, low=1.0, high=1.2 * reported, n=1)

        def companions(self, known: Case, setting: JsonDict) -> list[Change]:
            other = case.companions.get(name)
            return [Change(strategy=other)] if other else []

        def apply(self, setup: Setup, setting: JsonDict) -> Setup:
            changed = setup.with_loss(Switched(name)) if self.switchable else setup.with_flags(**{name: True})
            return changed.with_compile() if name in case.costs else changed

    made: Any = Made
    made.name = name
    return Made()


def _images(names: frozenset[str]) -> float:
    """Per-sample JPEG images on two cores: workers and threads compete for cores."""
    speed = 2.1 if {"cache", "workers", "threads"} <= names else 1.58 if {"workers", "threads"} <= names else (
        1.32 if "workers" in names else 0.93 if "threads" in names else 1.0)  # fmt: skip
    return speed * (1.25 if "cache" in names and not {"workers", "threads"} <= names else 1.0)


def _attention(names: frozenset[str]) -> float:
    """A GPT with hand-written attention: two good changes together may be worse than one."""
    speed = 1.9 if "attention" in names else 1.0
    speed *= 0.9 if "amp" in names else 1.0
    speed *= 1.25 if "compile" in names and "attention" not in names else 0.97 if "compile" in names else 1.0
    return speed * (1.08 if "fused" in names else 1.0) * (0.68 if "threads" in names else 1.0)


def _text(names: frozenset[str]) -> float:
    """A GPT whose steps are slow: products in half precision leave nothing to a lower precision of the others."""
    speed = 1.62 if "amp" in names else 1.25 if "matmul" in names else 1.0
    return speed * (1.15 if "compile" in names else 1.0) * (0.6 if "threads" in names else 1.0)


def _fed(names: frozenset[str]) -> float:
    """Samples that are made one by one before a network that two cores compute: milliseconds of either on the cores."""
    made = 50.0
    computed = 39.0 * (0.67 if "amp" in names else 1.0) * (0.66 if "channels_last" in names else 1.0)
    alone = 1.75 * computed  # with one thread
    if "workers" not in names:
        return 89.0 / (made + (alone if "threads" in names else computed))
    beside = alone if "threads" in names else 1.15 * alone
    return 89.0 / max(beside, (1.05 * made + beside) / 2)


def _nothing(names: frozenset[str]) -> float:
    return 0.93 ** len(names & {"threads", "checkpointing"})


_CASES = (
    SimulatedCase(
        "images",
        {"workers": 1.32, "cache": 1.25, "amp": 0.99, "compile": 1.0, "threads": 0.93, **USELESS},
        together=_images,
        costs={"compile": 20.0},
        companions={"workers": "threads"},
    ),
    SimulatedCase(
        "attention",
        {"amp": 0.9, "fused": 1.08, "compile": 1.25, "threads": 0.68, "attention": 1.9, "pin": 1.0, "cudnn": 1.0},
        together=_attention,
        costs={"compile": 40.0},
        step_seconds=0.08,
    ),
    SimulatedCase(
        "convolution",
        {"workers": 1.0, "cache": 1.21, "amp": 1.33, "channels_last": 1.25, "compile": 1.5, **USELESS},
        costs={"compile": 30.0},
    ),
    SimulatedCase(
        "small",
        {"fused": 1.08, "threads": 0.68, "zero": 1.04, "compile": 0.98, "pin": 1.0},
        costs={"compile": 30.0},
    ),
    SimulatedCase(
        "planted",
        {"hangs": 1.5, "slow": 0.7, "a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "double": 2.0, "e": 1.1},
        hangs=frozenset({"hangs"}),
        predicted=False,
    ),
    SimulatedCase(
        "gpu",
        {"workers": 1.4, "pin": 1.02, "amp": 1.6, "channels_last": 1.15, "fused": 1.05, "compile": 1.3, "cudnn": 1.0},
        costs={"compile": 40.0},
        start_seconds=8.0,
        step_seconds=0.1,
        steps=600,
    ),
    SimulatedCase(
        "nothing",
        {"workers": 1.0, "amp": 1.0, "threads": 0.93, "compile": 1.0, "checkpointing": 0.93, "pin": 1.0, "fused": 1.0},
        together=_nothing,
    ),
    SimulatedCase(
        "slow images",
        {
            "workers": 0.65,
            "amp": 1.6,
            "channels_last": 1.15,
            "compile": 1.1,
            "threads": 0.6,
            "matmul": 1.02,
            "fused": 1.01,
        },
        costs={"compile": 40.0},
        companions={"amp": "channels_last"},
        step_seconds=0.35,
        steps=5000,
    ),
    SimulatedCase(
        "fed network",
        {"workers": 1.1, "amp": 1.17, "channels_last": 1.18, "threads": 0.75, **USELESS},
        together=_fed,
        companions={"workers": "threads", "amp": "channels_last"},
        step_seconds=0.089,
        steps=800,
    ),
    SimulatedCase(
        "slow text",
        {"workers": 1.0, "amp": 1.62, "matmul": 1.25, "compile": 1.15, "threads": 0.6, "fused": 1.0, "pin": 1.0},
        together=_text,
        costs={"compile": 40.0},
        step_seconds=0.6,
        steps=5000,
    ),
    SimulatedCase(
        "many small",
        {
            "amp": 1.04,
            "matmul": 1.03,
            "padding": 1.09,
            "cache": 1.05,
            "allocator": 1.0,
            "compile": 1.02,
            "threads": 0.76,
        },
        costs={"compile": 25.0},
        start_seconds=5.0,
        step_seconds=0.09,
        steps=2000,
    ),
)
CASES = {case.name: case for case in _CASES}
